"""Mean and band of many runs on a common grid."""

from pathlib import Path

import numpy as np
import pytest

from fedpace.report.setups import setups_of, without_sweeps
from fedpace.report.study_charts import estimate_note
from fedpace.report.summary import curve, own_rounds, pilots_end, sensitivities
from fedpace.samplers.pilots import RatioEstimate
from fedpace.studies.build import run_one
from fedpace.studies.store import Store

from .made import START, Line, arriving, made_run, small_study


def lasting(seconds: float) -> list[Line]:
    """Return a run whose loss falls from 2 to 1 half-way and to 0 at its end."""
    half, end = ("train", 1, seconds / 2, 1.0, 0.3), ("train", 2, seconds, 0.0, 0.6)
    return [START, half, end]


def test_what_is_known_at_a_time_is_the_last_evaluation_before_it(tmp_path: Path) -> None:
    line = curve([made_run(small_study(tmp_path), "full", 0, lasting(10.0))], "loss", "seconds")
    expected = np.where(line.x < 5, 2.0, np.where(line.x < 10, 1.0, 0.0))
    np.testing.assert_array_equal(line.mean, expected)
    np.testing.assert_array_equal(line.low, line.high)


@pytest.mark.parametrize(
    ("ends", "expected"), [([4.0], 4.0), ([4.0, 10.0], 10.0), ([4.0, 10.0, 6.0], 6.0),
                           ([1.0, 2.0, 3.0, 4.0], 3.0)]
)  # fmt: skip
def test_curve_ends_where_fewer_than_half_are_still_going(
    ends: list[float], expected: float, tmp_path: Path
) -> None:
    study = small_study(tmp_path)
    runs = [made_run(study, "full", seed, lasting(end)) for seed, end in enumerate(ends)]
    assert curve(runs, "loss", "seconds").x[-1] == expected


def test_a_run_that_has_ended_keeps_its_last_value(tmp_path: Path) -> None:
    study = small_study(tmp_path)
    runs = [made_run(study, "full", seed, lasting(end)) for seed, end in ((0, 4.0), (1, 20.0))]
    line = curve(runs, "loss", "seconds")
    between = (line.x > 4) & (line.x < 10)
    np.testing.assert_array_equal(line.mean[between], 1.0)  # 0 and 2
    np.testing.assert_allclose(line.low[between], 0.2)
    np.testing.assert_allclose(line.high[between], 1.8)


def test_accuracy_begins_with_the_first_trained_model(tmp_path: Path) -> None:
    line = curve([made_run(small_study(tmp_path), "full", 0, lasting(10.0))], "accuracy", "seconds")
    assert line.x[0] == 5.0
    assert line.mean.max() == 0.6


def test_rounds_are_whole(tmp_path: Path) -> None:
    line = curve([made_run(small_study(tmp_path), "full", 0, lasting(10.0))], "loss", "round")
    np.testing.assert_array_equal(line.x, [0, 1, 2])
    np.testing.assert_array_equal(line.mean, [2, 1, 0])


def test_a_run_that_diverged_does_not_stop_the_report(tmp_path: Path) -> None:
    lines: list[Line] = [
        START,
        ("train", 1, 1.0, float("inf"), 0.1),
        ("train", 2, 2.0, float("nan"), 0.1),
    ]
    runs = [made_run(small_study(tmp_path), "full", 0, lines)]
    assert curve(runs, "loss", "seconds").mean[0] == 2.0


@pytest.mark.parametrize("seed", range(4))
def test_rounds_of_the_final_model_follow_one_another(seed: int, tmp_path: Path) -> None:
    """Whichever pilot training goes on from, as Algorithm 2 runs it."""
    study, store = small_study(tmp_path), Store(tmp_path)
    store.save(study, "optimal-mean", seed, run_one(study, "optimal-mean", seed))
    (run,) = store.runs()
    rows = own_rounds(run)
    assert [row.round for row in rows] == list(range(len(rows)))
    pilots = {row.phase for row in rows[1:]} - {"train"}
    (phase,) = pilots
    last = {row.phase: row.loss for row in run.history.rows}
    assert last[phase] == min(last["pilot-uniform"], last["pilot-weighted"])


def test_pilots_end_at_the_mean_over_runs(tmp_path: Path) -> None:
    study = small_study(tmp_path)
    lines: list[list[Line]] = [
        [("pilot-uniform", 0, 0.0, 2.0, 1.0), ("pilot-uniform", 1, 1.0, 1.9, 0.1),
         ("pilot-weighted", 1, end, 1.8, 0.1), ("train", 2, 9.0, 1.0, 0.5)]
        for end in (2.0, 4.0)
    ]  # fmt: skip
    runs = [made_run(study, "optimal-mean", seed, each) for seed, each in enumerate(lines)]
    assert pilots_end(runs, "seconds") == 3.0
    assert pilots_end(runs, "round") == 1.0
    assert np.isnan(pilots_end([arriving(study, "full", 0, 1.0)], "seconds"))


def test_sensitivity_has_a_time_for_each_c_and_the_estimates_in_units_of_s0(tmp_path: Path) -> None:
    base = small_study(tmp_path)
    given_c = {c: small_study(tmp_path, f"sampling.c_over_s0={c}") for c in (0.1, 1.0)}
    runs = [arriving(study, "optimal-mean", 0, 10 * c) for c, study in given_c.items()]
    for seed, value in enumerate((2.0, 4.0)):  # S_0 is 4
        ratio = RatioEstimate(value, 0, 9, seed == 0, "", 1.0)
        lines: list[Line] = [START, ("train", 1, 6.0, 1.7, 0.5)]
        runs.append(made_run(base, "optimal-mean", seed, lines, ratio=ratio))
    _, (sweep,) = without_sweeps(setups_of(runs))
    (line,) = sensitivities(sweep)
    assert [point.value for point in line.seconds] == [1.0, 10.0]
    assert line.chosen == [0.5, 1.0]
    assert line.estimated.value == 6.0
    assert "in 1 of 2 runs" in estimate_note([line])
