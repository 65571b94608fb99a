"""From runs to numbers."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedpace.report.notes import limit_note
from fedpace.report.setups import Setup, setups_of, without_sweeps
from fedpace.report.summary import SchemeSummary, Summary, summarise
from fedpace.report.time_to_target import (
    client_times,
    mean_interval,
    ratio_interval,
    seconds_to_hear_all,
)
from fedpace.studies.store import StoredRun
from fedpace.training.history import History

from .made import START, arriving, made_run, missing, small_study

seconds = st.floats(0.1, 1e4)
pairs = st.lists(st.tuples(seconds, seconds), min_size=2, max_size=20)


def setup_of(*runs: StoredRun) -> Setup:
    (setup,) = setups_of(runs)
    return setup


def row_of(summary: Summary, scheme: str) -> SchemeSummary:
    (row,) = (row for row in summary.rows if row.scheme == scheme)
    return row


@given(st.lists(st.integers(-1000, 1000), min_size=2, max_size=30, unique=True))
def test_mean_interval_is_that_of_student(values: list[int]) -> None:
    interval = mean_interval(values)
    low, high = stats.t.interval(0.95, len(values) - 1, np.mean(values), stats.sem(values))
    assert (interval.low, interval.high) == pytest.approx((low, high))
    assert interval.value == pytest.approx(np.mean(values), abs=1e-9)


def test_mean_interval_is_over_those_that_arrived_and_says_that_it_is_a_lower_bound() -> None:
    interval = mean_interval([1.0, 3.0, math.inf])
    assert (interval.value, interval.seeds, interval.bound) == (2.0, 2, "≥")
    assert mean_interval([1.0, 3.0]).bound == ""


def test_one_run_has_a_mean_and_no_interval() -> None:
    interval = mean_interval([5.0])
    assert interval.value == 5.0
    assert math.isnan(interval.low)
    assert math.isnan(interval.high)


@given(pairs)
def test_the_inverse_ratio_has_the_inverse_interval(values: list[tuple[float, float]]) -> None:
    tops, bottoms = ({i: pair[j] for i, pair in enumerate(values)} for j in (0, 1))
    ratio, inverse = ratio_interval(tops, bottoms), ratio_interval(bottoms, tops)
    assert inverse.value == pytest.approx(1 / ratio.value)
    assert inverse.low == pytest.approx(1 / ratio.high)
    assert inverse.high == pytest.approx(1 / ratio.low)


@given(st.lists(seconds, min_size=2, max_size=20), st.floats(0.1, 10))
def test_what_a_seed_does_to_both_schemes_does_not_widen_the_ratio(
    values: list[float], factor: float
) -> None:
    bottoms = dict(enumerate(values))
    tops = {seed: factor * value for seed, value in bottoms.items()}
    ratio = ratio_interval(tops, bottoms)
    assert (ratio.low, ratio.value, ratio.high) == pytest.approx((factor, factor, factor))


def test_ratio_interval_agrees_with_a_bootstrap_over_many_seeds() -> None:
    rng = np.random.default_rng(0)
    bottoms = rng.lognormal(0, 0.4, 200)
    tops = 2 * bottoms * rng.lognormal(0, 0.2, 200)
    ratio = ratio_interval(dict(enumerate(tops)), dict(enumerate(bottoms)))
    draws = rng.integers(200, size=(20_000, 200))
    low, high = np.percentile(tops[draws].sum(axis=1) / bottoms[draws].sum(axis=1), (2.5, 97.5))
    assert ratio.low == pytest.approx(low, rel=0.01)
    assert ratio.high == pytest.approx(high, rel=0.01)


def test_ratio_interval_of_three_seeds_covers_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(1000):
        bottoms = rng.normal(10, 1, 3)
        tops = bottoms * 2 + rng.normal(0, 1, 3)
        ratio = ratio_interval(dict(enumerate(tops)), dict(enumerate(bottoms)))
        hits += ratio.low <= 2 <= ratio.high
    standard_error = math.sqrt(0.95 * 0.05 / 1000)
    assert abs(hits / 1000 - 0.95) < 5 * standard_error


@pytest.mark.parametrize(
    ("tops", "bottoms", "bound"),
    [
        ([4.0, math.inf, 6.0], [2.0, 2.0, 3.0], "≥"),
        ([4.0, 4.0, 6.0], [2.0, math.inf, 3.0], "≤"),
        ([4.0, math.inf, math.inf], [2.0, 1.0, math.inf], "≈"),
    ],
)
def test_ratio_is_over_pairs_that_both_arrived_and_says_which_way_the_others_pull(
    tops: list[float], bottoms: list[float], bound: str
) -> None:
    ratio = ratio_interval(dict(enumerate(tops)), dict(enumerate(bottoms)))
    assert (ratio.value, ratio.bound) == (2.0, bound)


def test_ratio_uses_only_the_seeds_that_both_schemes_have() -> None:
    ratio = ratio_interval({0: 4.0, 1: 6.0, 7: 1000.0}, {0: 2.0, 1: 3.0, 8: 1000.0})
    assert (ratio.value, ratio.seeds) == (2.0, 2)


def test_nothing_in_common_has_no_ratio() -> None:
    assert math.isnan(ratio_interval({0: 1.0}, {1: 1.0}).value)


def test_runs_that_never_reach_the_target_are_counted_and_left_out_of_the_mean(
    tmp_path: Path,
) -> None:
    study = small_study(tmp_path)
    runs = [arriving(study, "uniform", 0, 4.0), arriving(study, "uniform", 1, 6.0)]
    row = row_of(summarise(setup_of(*runs, missing(study, "uniform", 2))), "uniform")
    assert (row.runs, row.reached) == (3, 2)
    assert (row.seconds.value, row.seconds.bound) == (5.0, "≥")


def test_pilots_are_shown_apart_and_taken_off(tmp_path: Path) -> None:
    study = small_study(tmp_path)
    lines = [
        ("pilot-uniform", 0, 0.0, 2.0, 1.0),
        ("pilot-uniform", 1, 1.0, 1.9, 0.2),
        ("pilot-weighted", 1, 3.0, 1.8, 0.2),
        ("train", 2, 5.0, 1.7, 0.4),
    ]
    run = made_run(study, "optimal-mean", 0, lines)
    summary = summarise(setup_of(run, arriving(study, "uniform", 0, 10.0)))
    row = row_of(summary, "optimal-mean")
    assert (row.seconds.value, row.pilot_seconds.value, row.net_seconds.value) == (5.0, 3.0, 2.0)
    assert (row.to_uniform.value, row.net_to_uniform.value) == (0.5, 0.2)
    assert row.rounds.value == 2
    uniform = row_of(summary, "uniform")
    assert (uniform.to_proposed.value, uniform.net_to_proposed.value) == (2.0, 5.0)


def test_target_accuracy_is_that_of_the_proposed_scheme_at_the_target_loss(tmp_path: Path) -> None:
    study = small_study(tmp_path)
    lines = [START, ("train", 1, 2.0, 1.9, 0.3), ("train", 2, 3.0, 1.7, 0.6)]
    later = [START, ("train", 1, 2.0, 1.9, 0.3), ("train", 2, 8.0, 1.7, 0.4)]
    proposed = [
        made_run(study, "optimal-mean", seed, each) for seed, each in ((0, lines), (1, later))
    ]
    summary = summarise(setup_of(*proposed, made_run(study, "uniform", 0, lines)))
    assert summary.accuracy.value == pytest.approx(0.5)
    # The initial model, with all classes tied, is not what reached it.
    row = row_of(summary, "uniform")
    assert (row.accuracy_seconds.value, row.accuracy_reached) == (3.0, 1)
    assert row_of(summary, "optimal-mean").accuracy_reached == 1


def test_a_study_that_stops_at_an_accuracy_is_timed_to_it(tmp_path: Path) -> None:
    study = small_study(tmp_path, "stop.loss=none", "stop.accuracy=0.5")
    run = made_run(study, "uniform", 0, [START, ("train", 1, 7.0, 1.9, 0.5)])
    summary = summarise(setup_of(run))
    assert summary.target == "accuracy 50 %"
    assert row_of(summary, "uniform").seconds.value == 7.0


def test_a_study_without_a_target_has_no_time_to_it(tmp_path: Path) -> None:
    study = small_study(tmp_path, "stop.loss=none")
    summary = summarise(setup_of(arriving(study, "optimal-mean", 0, 4.0)))
    assert (summary.rows[0].reached, summary.rows[0].runs) == (0, 1)
    assert math.isnan(summary.accuracy.value)


def test_the_paper_stands_beside_ours(tmp_path: Path) -> None:
    study = small_study(tmp_path)
    summary = summarise(setup_of(*(arriving(study, name, 0, 4.0) for name in ("full", "uniform"))))
    row = row_of(summary, "uniform")
    assert (row.paper_seconds, row.paper_ratio) == (30.0, 3.0)
    assert math.isnan(row_of(summary, "full").paper_seconds)


def test_configurations_and_versions_are_separate_setups(tmp_path: Path) -> None:
    study, other = small_study(tmp_path), small_study(tmp_path, "training.k=2")
    old = made_run(study, "uniform", 0, [START], version="0")
    runs = [*(arriving(study, "uniform", seed, 4.0) for seed in range(3)), old]
    runs += [arriving(other, "uniform", seed, 4.0) for seed in range(2)]
    setups = setups_of(runs)
    assert [len(setup.runs) for setup in setups] == [3, 2, 1]
    assert [setup.label for setup in setups] == [
        "small",
        "small, training.k = 2",
        "small, version = 0",
    ]
    assert len({setup.slug for setup in setups}) == 3


def test_setups_that_differ_in_nothing_a_file_name_shows_have_different_files(
    tmp_path: Path,
) -> None:
    studies = [
        small_study(tmp_path, 'name="a b"'),
        small_study(tmp_path, 'name="a+b"', "training.k=2"),
    ]
    runs = [arriving(study, "uniform", 0, 4.0) for study in studies]
    assert len({setup.slug for setup in setups_of(runs)}) == 2


def test_setups_that_differ_in_a_given_c_only_are_one_sweep(tmp_path: Path) -> None:
    base, elsewhere = small_study(tmp_path), small_study(tmp_path, "training.k=2")
    given_c = [small_study(tmp_path, f"sampling.c_over_s0={c}") for c in (3.0, 0.0)]
    alone = small_study(tmp_path, "training.k=2", "sampling.c_over_s0=1.0")
    studies = [base, elsewhere, alone, *given_c]
    setups = setups_of(arriving(study, "optimal-mean", 0, 4.0) for study in studies)
    kept, (sweep,) = without_sweeps(setups)
    assert len(kept) == 3
    assert all(setup.study in (base, elsewhere, alone) for setup in kept)
    assert sweep.values == [0.0, 3.0]
    assert sweep.base is not None
    assert sweep.base.study == base


def test_the_limit_is_the_time_to_hear_every_client_once(tmp_path: Path) -> None:
    # Clients of 1 s and 4 s with half of the data each: one at work needs 5 s, two need 4 s.
    study = small_study(tmp_path, "training.k=1")
    runs = [arriving(study, "uniform", 0, 15.0), arriving(study, "full", 0, 20.0, rounds=4)]
    summary = summarise(setups_of(runs)[0])
    assert {row.scheme: row.to_limit.value for row in summary.rows} == {"full": 4, "uniform": 3}
    once, in_turn = summary.limits
    # Four rounds of full participation as four steps of 2.5 s on average.
    assert (once.value, in_turn.value) == (5, 10)
    assert "over 5 s, max(t_max, Σ t / 1)" in limit_note(summary).replace("5.00", "5")
    assert "would take 10 s" in limit_note(summary)
    two = small_study(tmp_path, "training.k=2")
    assert summarise(setups_of([arriving(two, "uniform", 0, 8.0)])[0]).rows[0].to_limit.value == 2


def test_the_limit_takes_times_as_measured_where_they_are_not_known(tmp_path: Path) -> None:
    study = small_study(tmp_path, "training.k=1", "devices.known=false")
    run = arriving(study, "uniform", 0, 9.0)
    start, last = run.history.rows
    came = last._replace(clients=np.array([0, 0]), client_seconds=np.array([1.0, 2.0]))
    assert client_times(run).tolist() == [1, 4]  # nothing measured
    run = replace(run, history=History([start, came]))
    # Client 2 never answered: as the mean.
    assert client_times(run).tolist() == [1.5, 1.5]
    assert seconds_to_hear_all(run) == 3
