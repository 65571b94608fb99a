"""How busy the clients of a round are: what is drawn is what the rows say."""

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpace.report.page import page
from fedpace.report.report import Report
from fedpace.report.setups import Setup, setups_of
from fedpace.report.study_charts import BUSY_LABEL, TITLES, busy_figure
from fedpace.report.summary import Summary, busy_share, busy_shares, summarise
from fedpace.studies.store import StoredRun
from fedpace.training.history import History, Row
from tests.training.fakes import row

from .looking import assert_legible, column, looked_at, titles
from .made import START, made_run, small_study

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
    found = busy_shares(setup)
    assert list(found) == ["full", "uniform"]
    assert found["uniform"].value == pytest.approx(50)
    # Student's factor for two seeds, times the standard error 10, is more than a share can be.
    assert (found["uniform"].low, found["uniform"].high) == (0, 100)
    assert found["full"].value == 25
    assert math.isnan(found["full"].low)


def test_a_share_of_real_runs_is_a_share(summary: Summary) -> None:
    found = busy_shares(summary.setup)
    # The others reached their target within the pilots.
    assert list(found) == ["full", "uniform", "weighted"]
    assert all(0 < share.value <= 100 for share in found.values())
    # Everyone waits for the slowest of all, not for that of three.
    assert found["full"].value == min(share.value for share in found.values())


def test_the_figure_has_a_bar_and_a_number_for_each_scheme(summary: Summary) -> None:
    figure = busy_figure(summary.setup)
    picture = assert_legible(figure)
    found = busy_shares(summary.setup)
    assert column(figure, "busy", "scheme") == list(found)  # the first scheme is on top
    assert column(figure, "busy", "share") == pytest.approx([s.value for s in found.values()])
    assert {f"{share.value:.0f} %" for share in found.values()} <= {b.text for b in picture.texts}
    assert titles(picture) == [BUSY_LABEL]
    for bar, share in zip(figure.data["busy"], found.values(), strict=True):
        np.testing.assert_allclose([bar["low"], bar["high"]], [share.low, share.high], rtol=1e-5)
        assert 0 <= bar["low"] <= bar["high"] <= 100


def test_one_seed_has_a_bar_without_a_whisker(setup: Setup) -> None:
    full, uniform = busy_figure(setup).data["busy"]
    assert (full["low"], full["high"]) == (None, None)
    assert (uniform["low"], uniform["high"]) == (0, 100)
    picture = looked_at(busy_figure(setup))
    whiskers = [item for item in picture.items["rule"] if item.get("stroke") == "#444444"]
    assert len(whiskers) == 1


def test_it_is_on_the_page_and_among_the_files(setup: Setup, tmp_path: Path) -> None:
    summary = summarise(setup)
    text = page([summary], [], runs_in=tmp_path, files_in=tmp_path)
    assert len(re.findall(f"<h3>{TITLES['busy']}</h3>", text)) == 1
    names = {path.name for path in Report([summary], []).write_figures(tmp_path)}
    assert {"small-busy.png", "small-busy.pdf"} <= names


def test_runs_that_do_not_tell_have_no_such_figure(run: StoredRun, tmp_path: Path) -> None:
    summary = summarise(setups_of([run])[0])
    assert busy_shares(summary.setup) == {}
    assert TITLES["busy"] not in page([summary], [], runs_in=tmp_path, files_in=tmp_path)
    assert not any("busy" in path.name for path in Report([summary], []).write_figures(tmp_path))
