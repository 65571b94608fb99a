"""How busy the clients of a round are: what is drawn is what the rows say."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpace.report.busy import LABEL, TITLE, busy_drawing, busy_share, shares
from fedpace.report.drawing import colour
from fedpace.report.figures import figure_of
from fedpace.report.page import page
from fedpace.report.pictures import write_figures
from fedpace.report.plots import plot_of
from fedpace.report.setups import Setup, setups_of
from fedpace.report.summary import Summary, summarise
from fedpace.rounds.rows import History, Row
from fedpace.studies.store import StoredRun
from tests.rounds.fakes import row

from .made import START, made_run, small_study
from .test_figures import assert_legible

# Two clients of 1 s and 3 s in a round of 4 s: half of the time, on average.
HALF: dict[str, Any] = {"client_seconds": [1.0, 3.0], "round_seconds": 4.0}


def with_rows(run: StoredRun, *rows: Row) -> StoredRun:
    return replace(run, history=History([run.history.rows[0], *rows]))


@pytest.fixture
def run(tmp_path: Path) -> StoredRun:
    return made_run(small_study(tmp_path), "uniform", 0, [START])


@pytest.fixture
def setup(run: StoredRun) -> Setup:
    """Return two seeds of uniform with 40 % and 60 %, and one of full with 25 %."""
    runs = [
        replace(with_rows(run, working(share)), scheme=scheme, seed=seed)
        for scheme, seed, share in (("uniform", 0, 0.4), ("uniform", 1, 0.6), ("full", 0, 0.25))
    ]
    return setups_of(runs)[0]


def working(share: float) -> Row:
    return row([1, 2], client_seconds=[10 * share, 10 * share], round_seconds=10.0)


def test_a_round_counts_the_work_of_those_who_answered_over_its_length(run: StoredRun) -> None:
    assert busy_share(with_rows(run, row([1, 2], **HALF))) == 0.5
    missing = row([1, 2], missing=[3, 4, 5], **HALF)
    assert busy_share(with_rows(run, missing)) == 0.5


def test_rounds_count_alike_however_long(run: StoredRun) -> None:
    long = row([7], client_seconds=[100.0], round_seconds=100.0)
    assert busy_share(with_rows(run, row([1, 2], **HALF), long)) == 0.75


def test_pilots_and_rounds_without_an_answer_do_not_count(run: StoredRun) -> None:
    pilot = row([1], phase="pilot-weighted", client_seconds=[4.0], round_seconds=4.0)
    nobody = row([], missing=[1], round_seconds=4.0)
    assert busy_share(with_rows(run, pilot, nobody, row([1, 2], **HALF))) == 0.5
    assert math.isnan(busy_share(with_rows(run, pilot, nobody)))


def test_a_scheme_is_the_mean_of_its_seeds_in_percent_with_an_interval(setup: Setup) -> None:
    found = shares(setup)
    assert list(found) == ["full", "uniform"]
    assert found["uniform"].value == pytest.approx(50)
    # Student's factor for two seeds, times the standard error 10.
    assert found["uniform"].high == pytest.approx(50 + 12.7062 * 10)
    assert found["full"].value == 25
    assert math.isnan(found["full"].low)


def test_a_share_of_real_runs_is_a_share(summary: Summary) -> None:
    found = shares(summary.setup)
    # The others reached their target within the pilots.
    assert list(found) == ["full", "uniform", "weighted"]
    assert all(0 < share.value <= 100 for share in found.values())
    # Everyone waits for the slowest of all, not for that of three.
    assert found["full"].value == min(share.value for share in found.values())


def test_the_figure_has_a_bar_and_a_number_for_each_scheme(summary: Summary) -> None:
    figure = figure_of(busy_drawing(summary.setup))
    assert_legible(figure)
    (axes,) = figure.axes
    found = shares(summary.setup)
    widths = [bar.get_paths()[0].get_extents().x1 for bar in axes.collections]
    assert widths == pytest.approx([each.value for each in found.values()])
    assert [label.get_text() for label in axes.get_yticklabels()] == list(found)
    assert [text.get_text() for text in axes.texts] == [f"{s.value:.0f} %" for s in found.values()]
    assert (axes.get_xlabel(), axes.get_xlim()) == (LABEL, (0, 100))
    for line, share in zip(axes.lines, found.values(), strict=True):
        np.testing.assert_allclose(np.asarray(line.get_xdata()), [share.low, share.high])
    assert axes.get_ylim()[0] > axes.get_ylim()[1]  # the first scheme is on top


def test_one_seed_has_a_bar_without_a_whisker(setup: Setup) -> None:
    (axes,) = figure_of(busy_drawing(setup)).axes
    assert (len(axes.collections), len(axes.lines)) == (2, 1)
    full, _, uniform, whisker, _ = plot_of(busy_drawing(setup))["data"]
    assert whisker["x"] == pytest.approx([50 - 127.062, 50 + 127.062])
    assert "interval" not in full["hovertemplate"]
    assert "interval" in uniform["hovertemplate"]


def test_the_plot_of_the_page_has_the_same_bars(setup: Setup) -> None:
    plot = plot_of(busy_drawing(setup))
    json.dumps(plot, allow_nan=False)
    bars = [trace for trace in plot["data"] if trace["type"] == "bar"]
    assert [(bar["legendgroup"], bar["x"], bar["y"]) for bar in bars] == [
        ("full", [25.0], [0]), ("uniform", [50.0], [1]),
    ]  # fmt: skip
    assert bars[0]["marker"]["line"]["color"] == colour("full")
    assert plot["layout"]["yaxis"]["ticktext"] == ["full", "uniform"]
    assert plot["layout"]["xaxis"]["title"]["text"].endswith("%")


def test_it_is_on_the_page_and_among_the_files(setup: Setup, tmp_path: Path) -> None:
    summary = summarise(setup)
    text = page([summary], [], runs_in=tmp_path, files_in=tmp_path)
    assert len(re.findall(f"<h3>{TITLE}</h3>", text)) == 1
    names = {path.name for path in write_figures([summary], [], tmp_path)}
    assert {"small-busy.png", "small-busy.pdf"} <= names


def test_runs_that_do_not_tell_have_no_such_figure(run: StoredRun, tmp_path: Path) -> None:
    summary = summarise(setups_of([run])[0])
    assert shares(summary.setup) == {}
    assert TITLE not in page([summary], [], runs_in=tmp_path, files_in=tmp_path)
    assert not any("busy" in path.name for path in write_figures([summary], [], tmp_path))
