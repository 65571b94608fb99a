"""Titles, the one sentence on a page, and its first table."""

import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from fedpace.report.notes import diverged_schemes, headline, title_of
from fedpace.report.setups import setups_of
from fedpace.report.study_tables import columns, heading, main_table, terminal_table
from fedpace.report.summary import Summary, summarise
from fedpace.report.tables import runs_table
from fedpace.report.time_to_target import Interval, seeds_needed, student_factor
from fedpace.studies.study import load_study

from .made import START, arriving, made_run, small_study


def summary_of(folder: Path, **seconds: float) -> Summary:
    study = small_study(folder)
    loss = study.stop.loss or 0.0
    assert loss is not None
    runs = [
        made_run(study, name.replace("_", "-"), seed, [START, ("train", 1, s + seed, loss, 0.5)])
        for name, s in seconds.items()
        for seed in (0, 1)
    ]
    return summarise(setups_of(runs)[0])


def test_the_first_is_named_with_what_it_gains(tmp_path: Path) -> None:
    summary = summary_of(tmp_path, uniform=599.5, optimal_mean=299.5, pace=99.5)
    assert headline(summary) == (
        f"pace reached {summary.target} in 100 s, 3.0× sooner than optimal-mean, 6.0× than "
        "uniform; 2 seeds."
    )


def test_a_difference_that_the_interval_denies_is_not_claimed(tmp_path: Path) -> None:
    study = small_study(tmp_path)
    times = {"uniform": (100.0, 160.0, 130.0), "pace": (90.0, 130.0, 140.0), "full": (900.0,) * 3}
    runs = [
        made_run(study, scheme, seed, [START, ("train", 1, seconds, 1.7, 0.5)])
        for scheme, each in times.items()
        for seed, seconds in enumerate(each)
    ]
    summary = summarise(setups_of(runs)[0])
    ratio = summary.ratio("uniform", "pace")
    assert ratio.low < 1 < ratio.value
    more = seeds_needed(ratio)
    assert headline(summary) == (
        f"pace reached {summary.target} in 120 s, 7.5× sooner than full; no clear difference from "
        f"uniform with 3 seeds; about {more} more would show one."
    )
    assert "★" not in main_table(summary)


def test_several_unclear_differences_are_one_sentence(tmp_path: Path) -> None:
    study = small_study(tmp_path)
    times = {"uniform": (100.0, 160.0, 130.0), "pace": (90.0, 130.0, 140.0),
             "full": (95.0, 150.0, 120.0)}  # fmt: skip
    runs = [
        made_run(study, scheme, seed, [START, ("train", 1, seconds, 1.7, 0.5)])
        for scheme, each in times.items()
        for seed, seconds in enumerate(each)
    ]
    summary = summarise(setups_of(runs)[0])
    few, many = sorted(seeds_needed(summary.ratio(x, "pace")) or 0 for x in ("uniform", "full"))
    assert headline(summary) == (
        f"pace reached {summary.target} in 120 s; no clear difference from full and uniform with "
        f"3 seeds; about {few} to {many} more would show one."
    )


def test_one_seed_shows_no_difference(tmp_path: Path) -> None:
    study = small_study(tmp_path)
    runs = [
        made_run(study, scheme, 0, [START, ("train", 1, seconds, 1.7, 0.5)])
        for scheme, seconds in (("uniform", 20.0), ("pace", 10.0))
    ]
    said = headline(summarise(setups_of(runs)[0]))
    assert "sooner" not in said
    assert "one seed gives no interval: run three or more" in said


@given(st.floats(1.01, 5.0), st.floats(1.05, 20.0), st.integers(2, 12))
def test_the_seeds_named_would_show_the_difference(value: float, half: float, n: int) -> None:
    ratio = Interval(value, value / half, value * half, n)
    more = seeds_needed(ratio, most=300)
    spread = math.log(half) * math.sqrt(n) / student_factor(n)

    def width(seeds: int) -> float:
        return student_factor(seeds) * spread / math.sqrt(seeds)

    if more is None:
        assert width(n + 300) >= math.log(value)
    else:
        assert width(n + more) < math.log(value)
        assert more == 0 or width(n + more - 1) >= math.log(value)


def test_the_table_has_the_winner_first_and_times_sooner_with_intervals(tmp_path: Path) -> None:
    summary = summary_of(tmp_path, uniform=599.5, optimal_mean=299.5, pace=99.5)
    text = main_table(summary)
    rows = re.findall(r'<tr[^>]*data-scheme="([^"]*)">(.*?)</tr>', text)
    assert [name for name, _ in rows] == ["pace", "optimal-mean", "uniform"]
    assert text.count("<th ") == 5
    assert "★ pace" in text
    assert text.count("★") == text.count('class="first"') == 1
    cells = [re.sub("<[^>]*>", " ", cell).split() for cell in re.findall("<td.*?</td>", rows[0][1])]
    assert cells[2][0] == "6.00×"
    assert cells[3][0] == "3.00×"
    (inverse_low, inverse_high) = (
        1 / summary.rows[2].to_uniform.high,
        1 / summary.rows[2].to_uniform.low,
    )
    assert cells[2][1:] == [f"[{inverse_low:.2f},", f"{inverse_high:.2f}]"]


def test_asynchronous_rows_are_compared_with_uniform_too(tmp_path: Path) -> None:
    study = small_study(tmp_path, "training.mode=asynchronous")
    runs = [
        arriving(study, scheme, seed, seconds + seed)
        for scheme, seconds in (("uniform", 8.0), ("pace", 2.0))
        for seed in range(2)
    ]
    rows = {row.scheme: row for row in summarise(setups_of(runs)[0]).rows}
    assert rows["pace (asynchronous)"].to_uniform.value == pytest.approx(2.5 / 8.5)
    both = summarise(
        setups_of([*runs, *(arriving(small_study(tmp_path), "uniform", s, 5.0) for s in range(2))])[
            0
        ]
    )
    (row,) = (row for row in both.rows if row.scheme == "pace (asynchronous)")
    assert row.to_uniform.value == pytest.approx(0.5)  # the synchronous one, where there is one


def test_a_single_scheme_has_no_comparison(tmp_path: Path) -> None:
    summary = summary_of(tmp_path, pace=3.0)
    assert headline(summary) == f"pace reached {summary.target} in 3.5 s; 2 seeds."


def test_nothing_is_said_of_targets_that_no_scheme_reached(tmp_path: Path) -> None:
    run = made_run(small_study(tmp_path), "pace", 0, [START])
    assert headline(summarise(setups_of([run])[0])) == ""


def test_a_changed_setup_is_not_called_by_its_title_nor_given_the_papers_figures() -> None:
    usual = load_study("simulation-1")
    assert title_of(usual) == usual.title
    assert title_of(load_study("simulation-1", ["stop.seconds=9", "data.seed=3"])) != usual.title
    changed = load_study("simulation-1", ["training.k=3", "data.sizes=power-law",
                                          "data.clients=20"])  # fmt: skip
    assert title_of(changed).endswith("logistic regression, Synthetic(1, 1), N = 20, K = 3")
    lines = [START, ("train", 1, 2.0, 0.1, 0.5)]
    for study, papers in ((usual, True), (changed, False)):
        summary = summarise(setups_of([made_run(study, "uniform", 0, lines)])[0])
        assert any("paper" in column.title for column in columns(summary)) == papers
        assert heading(summary) == title_of(study)


@pytest.mark.parametrize(
    ("made", "third"), [(terminal_table, "pace"), (runs_table, "optimal_mean_no_pilots")]
)
def test_tables_of_the_terminal_fit_80_columns(
    made: Callable[[Summary], Table], third: str, tmp_path: Path
) -> None:
    summary = summary_of(tmp_path, uniform=123456.0, optimal_mean=12345.5, **{third: 99999.5})
    table = made(summary)
    console = Console(width=10_000)
    assert Measurement.get(console, console.options, table).maximum <= 80
    assert len(table.columns) >= 4


def test_a_run_that_diverged_is_told_with_a_remedy(tmp_path: Path) -> None:
    lines = [START, ("train", 1, 1.0, float("nan"), 0.1)]
    run = replace(made_run(small_study(tmp_path), "uniform", 0, lines), ended="diverged")
    (line,) = diverged_schemes(summarise(setups_of([run])[0]))
    assert line.startswith("uniform: 1 run diverged")
    assert "learning rate" in line


def test_intervals_of_times_stay_positive(tmp_path: Path) -> None:
    study = small_study(tmp_path)
    loss = study.stop.loss or 0.0
    runs = [
        made_run(study, "uniform", seed, [START, ("train", 1, seconds, loss, 0.5)])
        for seed, seconds in enumerate((1.0, 1000.0))
    ]
    (row,) = summarise(setups_of(runs)[0]).rows
    assert row.seconds.low > 0
