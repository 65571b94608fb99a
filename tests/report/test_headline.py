"""Titles and the one sentence on a page."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from fedpace.report.headline import headline
from fedpace.report.notes import diverged
from fedpace.report.setups import setups_of
from fedpace.report.study_tables import columns, heading, terminal_table
from fedpace.report.summary import Summary, summarise
from fedpace.report.tables import runs_table
from fedpace.report.titles import title_of
from fedpace.studies.study import load_study

from .made import START, made_run, small_study


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


def test_a_single_scheme_is_compared_with_nobody(tmp_path: Path) -> None:
    summary = summary_of(tmp_path, pace=3.0)
    assert headline(summary) == f"pace reached {summary.target} in 3.5 s; 2 seeds."


def test_nothing_is_said_of_targets_that_nobody_reached(tmp_path: Path) -> None:
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
    (line,) = diverged(summarise(setups_of([run])[0]))
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
