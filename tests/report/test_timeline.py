"""The timeline of a run: every reply in its place on the clock."""

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpace.report.charts import COLOURS, colour, pale, spec
from fedpace.report.setups import setups_of
from fedpace.report.summary import Summary
from fedpace.report.timeline import (
    MOST_CLIENTS,
    MOST_REPLIES,
    MOST_ROUNDS,
    Timeline,
    client_labels,
    timeline_figure,
    timelines,
)
from fedpace.studies.store import StoredRun
from fedpace.studies.study import Study
from fedpace.training.history import History

from .looking import assert_legible, column, looked_at, titles
from .made import START, made_run, small_study
from .measured_runs import measured_run, measured_setup, measured_study


def timeline_of(run: StoredRun) -> Timeline:
    (setup,) = setups_of([run])
    (shown,) = timelines(setup)
    return shown


@pytest.fixture(scope="module")
def study() -> Study:
    return measured_study()


@pytest.fixture(scope="module")
def run(study: Study) -> StoredRun:
    return measured_run(study, "optimal-mean")


def test_simulated_runs_have_one_that_says_so(summary: Summary) -> None:
    shown = timelines(summary.setup)
    assert [each.scheme for each in shown] == summary.setup.schemes
    for each in shown:
        assert each.title.endswith("seed 0")
        assert each.caption.endswith(". The clock is simulated.")
        assert not each.split
    (full, *_) = shown
    assert len(full.replies) == 12 * len(full.rounds)


def test_simulated_devices_have_the_times_of_their_seed(summary: Summary) -> None:
    (full, *_) = timelines(summary.setup)
    first = next(run for run in summary.setup.of("full") if run.seed == 0)
    mine = [row.client_seconds for row in first.history.rows[1:]]
    np.testing.assert_allclose(full.usual, np.median(mine, axis=0))


def test_measured_devices_are_the_same_in_all_runs() -> None:
    setup = measured_setup(schemes=("uniform",), seeds=2)
    rows = [row for run in setup.runs for row in run.history.rows]
    times = np.concatenate([row.client_seconds[row.clients == 3] for row in rows])
    (shown,) = timelines(setup)
    assert shown.usual[3] == pytest.approx(np.median(times))


def test_a_run_that_asked_nobody_has_none(tmp_path: Path) -> None:
    run = made_run(small_study(tmp_path), "uniform", 0, [START, ("train", 1, 1.0, 1.7, 0.5)])
    assert timelines(setups_of([run])[0]) == []


@pytest.mark.parametrize(("n", "rounds", "lines"), [(100, 40, 100), (500, 8, 250), (9_000, 2, 392)])
def test_a_large_fleet_has_fewer_rounds_and_lines(
    study: Study, n: int, rounds: int, lines: int
) -> None:
    run = measured_run(study, "full", times=np.linspace(1, 2, n), rounds=45, chance=1.0)
    shown = timeline_of(run)
    assert (len(shown.rounds), len(shown.clients)) == (rounds, lines)
    assert len(shown.replies) == rounds * lines <= MOST_REPLIES
    assert shown.clients[-1] == np.argmax(shown.usual)  # the slowest is there
    assert (f"Clients shown: {lines} of {n:,}." in shown.caption) == (lines < n)


def test_a_run_that_ended_before_its_first_round_has_none(run: StoredRun, study: Study) -> None:
    empty = StoredRun(
        study, "full", 0, "1", "", History(run.history.rows[:1]), None, run.profile, None
    )
    assert timelines(setups_of([empty])[0]) == []


def test_each_scheme_has_one_of_its_first_seed() -> None:
    shown = timelines(measured_setup(schemes=("full", "uniform"), seeds=2))
    assert [each.scheme for each in shown] == ["full", "uniform"]
    assert all(each.title.endswith("seed 0") for each in shown)


def test_a_long_run_is_shown_around_the_switch(run: StoredRun) -> None:
    shown = timeline_of(run)
    assert len(shown.rounds) == MOST_ROUNDS
    assert [(each.phase, each.first, each.last) for each in shown.stages] == [
        ("pilot-weighted", 6, 25), ("train", 26, 45),
    ]  # fmt: skip
    assert "weighted pilot 6–25, training 26–45; the run has 110." in shown.caption
    assert shown.stages[0].end == shown.stages[1].start


def test_a_long_run_without_pilots_is_shown_from_its_start(study: Study) -> None:
    shown = timeline_of(measured_run(study, "uniform"))
    assert "training 1–40; the run has 60." in shown.caption
    assert shown.rounds[0] == 0.0


@pytest.mark.parametrize(("pilots", "rounds"), [(30, 3), (3, 60), (2, 3)])
def test_as_many_rounds_as_there_is_room_for(study: Study, pilots: int, rounds: int) -> None:
    run = measured_run(study, "optimal-mean", pilot_rounds=pilots, rounds=rounds)
    shown = timeline_of(run)
    assert len(shown.rounds) == min(MOST_ROUNDS, 2 * pilots + rounds)
    assert shown.stages[-1].phase == "train"
    assert ("the run has" in shown.caption) == (2 * pilots + rounds > MOST_ROUNDS)


def test_a_bar_goes_from_the_start_of_its_round_to_the_arrival(run: StoredRun) -> None:
    shown = timeline_of(run)
    rows = {(row.phase, row.round): row for row in run.history.rows}
    row = rows["train", 30]
    mine = [reply for reply in shown.replies if reply.round == 30]
    assert [reply.client for reply in mine] == row.clients.tolist()
    assert {reply.start for reply in mine} == {row.seconds - row.round_seconds}
    assert [reply.seconds for reply in mine] == row.client_seconds.tolist()
    assert [reply.computing for reply in mine] == row.computing_seconds.tolist()


def test_a_missing_reply_is_a_cross_at_the_end_of_its_round(run: StoredRun) -> None:
    shown = timeline_of(run)
    assert shown.missing
    asked = {
        (row.round, client): row.seconds
        for row in run.history.rows
        if row.phase in ("pilot-weighted", "train")
        for client in row.missing.tolist()
    }
    assert all(asked[each.round, each.client] == each.end for each in shown.missing)


def test_the_slowest_client_is_on_top_and_one_that_never_answered_above_it(study: Study) -> None:
    run = measured_run(study, "full", times=np.array([0.2, 0.9, 0.4, 0.3]), chance=1.0)
    rows = [
        row._replace(
            clients=row.clients[:3],
            client_seconds=row.client_seconds[:3],
            computing_seconds=row.computing_seconds[:3],
            missing=row.clients[3:],
        )
        for row in run.history.rows
    ]
    run = StoredRun(study, "full", 0, "1", "", History(rows), None, run.profile, None)
    shown = timeline_of(run)
    assert shown.clients == [0, 2, 1, 3]
    assert client_labels(shown, 10)[1][0] == "3 (–)"


def test_of_many_clients_those_asked_are_shown(study: Study) -> None:
    times = np.linspace(1, 2, 500)
    shown = timeline_of(measured_run(study, "uniform", times=times, rounds=5))
    asked = {each.client for each in shown.replies} | {each.client for each in shown.missing}
    assert set(shown.clients) == asked
    places, labels = client_labels(shown, 4)
    assert len(places) == len(labels) <= 4
    assert places[0] == len(shown.clients) - 1


def test_every_scheme_has_two_shades_of_its_own() -> None:
    shades = {colour(scheme) for scheme in COLOURS} | {pale(scheme) for scheme in COLOURS}
    assert all(pale(scheme) != colour(scheme) for scheme in COLOURS)
    assert len({pale(scheme) for scheme in COLOURS}) == len(COLOURS)
    assert all(re.fullmatch("#[0-9a-f]{6}", shade.lower()) for shade in shades)


@pytest.mark.parametrize("n", [3, 40, MOST_CLIENTS, 200])
@pytest.mark.parametrize("scheme", ["full", "optimal-mean"])
def test_the_figure_can_be_read(study: Study, n: int, scheme: str) -> None:
    run = measured_run(study, scheme, times=np.linspace(0.1, 2, n), computing=0.2)
    picture = assert_legible(timeline_figure(timeline_of(run)))
    assert titles(picture) == ["wall-clock time, s", "client (its usual time, s)"]
    legend = [box for box in picture.texts if box.role == "legend-label"]
    assert [box.text for box in legend] == ["computing", "transfer, both ways", "no reply"]
    heading = [box for box in picture.texts if box.role.startswith("title")]
    assert not any(box.overlaps(other) for box in legend for other in heading)


def parts(shown: Timeline, name: str) -> list[dict[str, Any]]:
    return [row for row in timeline_figure(shown).data["replies"] if row["part"] == name]


def test_the_figure_draws_what_was_measured(run: StoredRun) -> None:
    shown = timeline_of(run)
    computing, transfer = parts(shown, "computing"), parts(shown, "transfer, both ways")
    arrivals = [reply.start + reply.seconds for reply in shown.replies]
    starts = [bar["start"] for bar in computing]
    assert starts == pytest.approx([reply.start for reply in shown.replies], rel=1e-5)
    assert [bar["end"] for bar in transfer] == pytest.approx(arrivals, rel=1e-5)
    assert [bar["end"] for bar in computing] == [bar["start"] for bar in transfer]
    lines = [shown.places[reply.client] for reply in shown.replies]
    assert [(bar["low"] + bar["high"]) / 2 for bar in computing] == pytest.approx(lines)
    figure = timeline_figure(shown)
    assert {"weighted pilot", "training"} <= {box.text for box in looked_at(figure).texts}
    assert column(figure, "missing", "end") == pytest.approx(
        [each.end for each in shown.missing], rel=1e-5
    )
    assert ("refused" in column(figure, "missing", "what")) == any(m.refused for m in shown.missing)
    low, high = spec(figure)["layer"][0]["encoding"]["x"]["scale"]["domain"]
    assert math.isclose(high, shown.stages[-1].end, rel_tol=1e-5)
    assert all(low <= start * (1 + 1e-5) <= high for start, _ in shown.labelled)
    assert figure.scheme == "optimal-mean"


def test_without_computing_times_there_is_one_shade(study: Study) -> None:
    shown = timeline_of(measured_run(study, "uniform", computing=0.0, chance=1.0))
    assert not shown.split
    assert {row["part"] for row in timeline_figure(shown).data["replies"]} == {"until the reply"}
    assert timeline_figure(shown).note.startswith("Bars: until the reply. Rounds shown")


def test_clients_that_do_not_tell_how_long_they_computed_have_one_shade(study: Study) -> None:
    run = measured_run(study, "uniform", chance=1.0)
    rows = [
        row._replace(computing_seconds=np.where(row.clients % 2, np.nan, 9.0))
        for row in run.history.rows
    ]
    run = StoredRun(study, "uniform", 0, "1", "", History(rows), None, run.profile, None)
    for reply in timeline_of(run).replies:
        assert reply.computing == (0.0 if reply.client % 2 else reply.seconds)
