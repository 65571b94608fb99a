"""Forecasts from the first rounds: parts by hand, and whole ones against runs that were made."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpace.errors import InputError
from fedpace.report.forecast import NAMES, first_rounds, forecasts, scores
from fedpace.report.notes import predicted_note
from fedpace.report.setups import setups_of
from fedpace.report.summary import summarise
from fedpace.studies.build import run_one
from fedpace.studies.store import Store
from fedpace.training.history import History, Row, read_csv
from tests.cli.calling import assert_refused
from tests.cli.calling import run as called
from tests.studies.tiny import tiny_study


def made_rows(losses: Any, seconds: tuple[float, float] = (1.0, 3.0)) -> list[Row]:
    """Return rounds in which both clients answer, with equal weights and norms 2 and 1."""
    rows, clock, both = [], 0.0, np.array([0, 1])
    for round_, loss in enumerate(losses):
        here = round_ > 0
        clock += 4.0 * here
        columns = (both, np.full(2, 0.5), np.array(seconds), np.array([2.0, 1.0]))
        come: Any = [column[: 2 * here] for column in columns]
        rows.append(Row("train", round_, clock, float(loss), 0.5, math.nan, 4.0 * here, *come))
    return rows


def prints(*arguments: object) -> str:
    done = called(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def curve(rounds: int, limit: float = 0.2, power: float = 0.7) -> Any:
    return limit + 3 * (np.arange(rounds) + 1.0) ** -power


def test_the_first_rounds_say_what_clients_take_and_how_much_draws_vary() -> None:
    seen = first_rounds(made_rows(curve(30)), 20)
    assert (seen.k, seen.losses.size, seen.profile.times.tolist()) == (2, 20, [1, 3])
    np.testing.assert_allclose(seen.profile.grad_norms, [2, 1])
    # Rounds of 4 s whose slowest takes 3; K Σ weights² G² = 2 (¼ · 4 + ¼ · 1).
    assert (seen.overhead, seen.variance) == (1.0, 2.5)
    uneven = first_rounds(made_rows(curve(30)), 20, weights=np.array([0.7, 0.2, 0.1]), k=1)
    assert uneven.profile.times.tolist() == [1, 3, 2]  # the third was never seen
    assert uneven.variance == 1.25


@pytest.mark.parametrize("target", [0.4, 0.3])
def test_a_curve_that_goes_on_is_continued(target: float) -> None:
    needed = (3 / (target - 0.2)) ** (1 / 0.7) - 1
    seen = first_rounds(made_rows(curve(40)), 40)
    (found,) = forecasts(seen, target, ["full"])
    # Two clients in every round, of 3 + 1 s; full participation varies less, but c is unknown.
    (same,) = forecasts(seen._replace(variance=0.0), target, ["full"])
    assert same.seconds == pytest.approx(4 * needed, rel=0.2)
    assert 0.9 * same.low <= 4 * needed <= 1.1 * same.high
    assert found.seconds < same.seconds


def test_a_target_that_was_reached_takes_what_it_took_and_one_below_all_is_never_reached() -> None:
    seen = first_rounds(made_rows(curve(40)), 40)._replace(variance=0.0)
    first = int(np.argmax(curve(40) <= 1.0))
    (found,) = forecasts(seen, 1.0, ["full"])
    assert found.low == found.high == 4 * first
    flat = first_rounds(made_rows([3.0, *[1.0] * 30]), 30)
    assert forecasts(flat, 0.001, ["full"])[0].seconds > 1e3


def test_an_asynchronous_scheme_takes_as_many_completions() -> None:
    seen = first_rounds(made_rows(curve(40)), 40)
    (found,) = forecasts(seen, 1.0, ["weighted (asynchronous)"])
    # Always at work, both: K completions take K / (1/1 + 1/3) s where shares follow the times,
    # and with equal shares as long as the slow one's two.
    assert found.round_seconds == pytest.approx(2 * 0.5 * (1 + 3) / 2, rel=0.5)
    assert found.low <= found.seconds <= found.high


def test_refuses_what_it_cannot_use() -> None:
    with pytest.raises(InputError, match="must have 8 rounds with a loss, got 5 with a loss"):
        first_rounds(made_rows(curve(6)), 20)
    rows = made_rows(curve(20))
    asynchronous = [*rows[:5], rows[5]._replace(versions=np.array([3, 4])), *rows[6:]]
    with pytest.raises(InputError, match="must be in rounds, got an asynchronous one"):
        first_rounds(asynchronous, 20)
    with pytest.raises(InputError, match="clients must be those of the file, got client 1 of 1"):
        first_rounds(rows, 20, weights=np.ones(1))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with real runs of a tiny study to a target that comes after 20 rounds."""
    folder = tmp_path_factory.mktemp("runs")
    study = tiny_study(
        folder, "stop.loss=1.1", "stop.rounds=120", "training.schedule=constant:0.02"
    )
    for scheme in ("uniform", "weighted", "optimal-max"):
        for seed in range(2):
            Store(folder).save(study, scheme, seed, run_one(study, scheme, seed))
    return folder


def test_scores_are_of_runs_that_were_made(folder: Path) -> None:
    (setup,) = setups_of(Store(folder).runs())
    found = list(scores(setup.runs, "uniform", 12))
    assert {(each.scheme, each.seed) for each in found} == {
        (scheme, seed) for scheme in ("uniform", "weighted", "optimal-max") for seed in (0, 1)
    }
    uniform = [each for each in found if each.scheme == "uniform"]
    for each in uniform:
        assert 1 / 3 < each.found.seconds / each.took < 3
    assert list(scores(setup.runs, "full", 12)) == []


def test_the_command_predicts_from_a_directory_and_from_a_csv(folder: Path) -> None:
    text = prints("predict", str(folder), "--rounds", "12")
    assert "80 % interval" in text
    assert all(name in text for name in ("optimal-mean", "pace", "weighted (asynchronous)"))
    run = next(run for run in Store(folder).runs() if (run.scheme, run.seed) == ("uniform", 0))
    path = folder / "history.csv"
    History(run.history.rows).write_csv(path)
    rows = read_csv(path)
    for one, other in zip(rows, run.history.rows, strict=True):
        assert (one.round, one.seconds, one.loss) == (other.round, other.seconds, other.loss)
        np.testing.assert_array_equal(one.client_seconds, other.client_seconds)
    answer = prints("predict", str(path), "--target", "1.1", "--rounds", "12", "--json")
    found = json.loads(answer)
    assert {each["scheme"] for each in found["schemes"]} == set(NAMES)
    lines = (f"c{i},{i + 1},1,1\n" for i in range(12))
    shares = "client,samples,time,grad_norm\n" + "".join(lines)
    clients = folder / "clients.csv"
    clients.write_text(shares)
    with_shares = prints(
        "predict", str(path), "--target", "1.1", "--clients", str(clients), "--json"
    )
    assert json.loads(with_shares) != found


def test_the_command_says_how_often_it_was_right(folder: Path) -> None:
    text = " ".join(prints("predict", str(folder), "--score", "--rounds", "12").split())
    assert "interval held" in text
    assert "was the best in" in text
    assert "of 2 seeds" in text


def test_the_command_refuses_in_one_line(folder: Path, tmp_path: Path) -> None:
    problem = "--scheme and --seed must be those of a run, got pace with seed 0"
    assert_refused(called("predict", folder, "--scheme", "pace"), problem)
    broken = tmp_path / "history.csv"
    broken.write_text("round,seconds\nx,y\n")
    assert_refused(called("predict", broken, "--target", 1), "cannot be read as a history")
    run = next(Store(folder).runs())
    History(run.history.rows).write_csv(broken)
    assert_refused(called("predict", broken), "--target must be given where the run has none")
    assert_refused(called("predict", folder, "--score", "--scheme", "full"), "must hold runs")


def test_the_report_says_what_the_first_rounds_predict(folder: Path) -> None:
    (setup,) = setups_of(Store(folder).runs())
    (line,) = predicted_note(summarise(setup))
    assert line.startswith("Predicted from the first 20 rounds of uniform, seed 0: ")
    assert line.count(" s (") == len(setup.schemes)
    none = replace(setup, runs=tuple(setup.of("weighted")))
    assert predicted_note(summarise(none)) == []
