"""Tuning: equal budgets, the best goes on, and winners are compared on other seeds."""

import csv
from pathlib import Path
from typing import Any

import pytest

from fedpace.errors import InputError
from fedpace.report.tuning import Trial, compare_tuned, export, trials, tune
from fedpace.studies.store import Store
from fedpace.studies.study import Study, change
from tests.cli.calling import assert_refused
from tests.cli.calling import run as called
from tests.studies.tiny import tiny_study

LINE = " (asynchronous)"


@pytest.fixture
def study(tmp_path: Path) -> Study:
    settings = ["stop.loss=1.5", "stop.seconds=30", "training.schedule=constant:0.02"]
    return tiny_study(tmp_path, *settings, "training.local_steps=10")


def test_every_scheme_has_as_many_trials_of_rate_steps_and_its_own_knobs(study: Study) -> None:
    for scheme in ("uniform", "tifl", f"ringleader{LINE}", f"fedbuff{LINE}"):
        found = trials(study, scheme, 12)
        assert len({trial.settings for trial in found}) == 12
        assert found[0].settings[:2] == (
            "training.schedule=constant:0.02", "training.local_steps=10",
        )  # fmt: skip
        assert found == trials(study, scheme, 12)
    assert len(trials(study, "uniform", 99)) == 15  # five rates, three numbers of steps
    assert len(trials(study, "tifl", 99)) == 45
    knobs = {trial.settings[2] for trial in trials(study, f"fedbuff{LINE}", 99)}
    assert "sampling.knobs.fedbuff.buffer=1" in knobs


def test_the_trial_that_is_soonest_wins_and_others_end_early(study: Study, tmp_path: Path) -> None:
    won = tune(study, "uniform", [1000], tmp_path / "tuning", count=5, processes=1)
    runs = list(Store(tmp_path / "tuning").runs())
    assert won.settings in {trial.settings for trial in trials(study, "uniform", 5)}
    ends = [run.study.stop.seconds or 0.0 for run in runs]
    assert ends.count(30 / 9) == 5
    assert sum(end > 5 for end in ends) <= 3
    again = tune(study, "uniform", [1000], tmp_path / "tuning", count=5, processes=1)
    assert isinstance(again, Trial)
    assert again.settings == won.settings
    assert len(list(Store(tmp_path / "tuning").runs())) == len(runs)


def test_winners_are_compared_on_other_seeds_and_exported(study: Study, tmp_path: Path) -> None:
    schemes = ["pace", "uniform"]
    said: list[str] = []
    how: dict[str, Any] = {"tuning_seeds": [1000], "count": 2, "processes": 1, "say": said.append}
    path = compare_tuned(study, schemes, tmp_path, seeds=[0, 1], **how)
    with path.open() as file:
        lines = list(csv.DictReader(file))
    assert [line["scheme"] for line in lines] == schemes
    assert [line["seeds"] for line in lines] == ["2", "2"]
    assert lines[0]["settings"] == ""  # pace is not tuned
    assert float(lines[0]["pace_over_it"]) == 1
    assert float(lines[1]["seconds"]) > 0
    before = path.read_text()
    assert compare_tuned(study, schemes, tmp_path, seeds=[0, 1], **how).read_text() == before
    assert any("CPU hours" in line for line in said)
    path.unlink()
    assert called("field", "export", tmp_path).returncode == 0
    assert path.read_text() == before
    with pytest.raises(InputError, match="seeds must not be those of the tuning"):
        compare_tuned(study, schemes, tmp_path, seeds=[1000], **how)


def test_refuses_what_cannot_be_tuned(study: Study, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a study to tune for must have stop"):
        tune(change(study, ["stop.loss=none"]), "uniform", [0], tmp_path, count=2)
    with pytest.raises(InputError, match="must hold a compared cell"):
        export(tmp_path)
    assert_refused(called("field", "export", tmp_path), "must hold compared cells, got none")
    arguments = ("field", "compare", "simulation-1", "--out", tmp_path, "--schemes", "pac")
    assert_refused(called(*arguments), "did you mean 'pace'")
