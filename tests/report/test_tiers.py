"""Tiers and reasons: which a round drew from, and why."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedpace.report.charts import spec
from fedpace.report.notes import changes
from fedpace.report.page import MOST_CHANGES, html_reasons, page
from fedpace.report.setups import setups_of
from fedpace.report.summary import summarise
from fedpace.report.timeline import (
    MOST_ROUNDS,
    Timeline,
    client_labels,
    tier_colours,
    timeline_figure,
    timelines,
)
from fedpace.studies.store import StoredRun
from fedpace.training.history import History
from tests.training.fakes import row

from .looking import assert_legible, column
from .measured_runs import measured_run, measured_study

FEW, MANY = "2 tiers, c = 0.32 S₀: steps agree", "5 tiers, c = 1.2 S₀: steps <differ>"


def tiered(run: StoredRun, *, after: int = 0) -> StoredRun:
    """Return the run with tiers 0 and 1 in turn, two rounds each, and from round 40 on tier 4."""
    rows = [
        each
        if each.phase != "train" or each.round <= after
        else each._replace(
            tier=4 if each.round >= 40 else each.round // 2 % 2,
            why=MANY if each.round >= 40 else FEW,
        )
        for each in run.history.rows
    ]
    return replace(run, history=History(rows))


@pytest.fixture(scope="module")
def run() -> StoredRun:
    return tiered(measured_run(measured_study(), "optimal-mean", chance=1.0, computing=0.0))


@pytest.fixture(scope="module")
def shown(run: StoredRun) -> Timeline:
    return only_timeline(run)


def only_timeline(run: StoredRun) -> Timeline:
    (shown,) = timelines(setups_of([run])[0])
    return shown


def test_rounds_in_a_row_of_one_tier_are_one_part_of_the_strip(
    shown: Timeline, run: StoredRun
) -> None:
    trained = {each.round: each for each in run.history.rows if each.phase == "train"}
    spans = [(span.tier, span.first, span.last) for span in shown.tiers]
    assert spans[:3] == [(1, 26, 27), (0, 28, 29), (1, 30, 31)]
    assert (spans[-1][0], spans[-1][1]) == (4, 40)
    second = shown.tiers[1]
    assert second.start == trained[28].seconds - trained[28].round_seconds
    assert second.end == trained[29].seconds


def test_most_of_the_rounds_shown_have_tiers(shown: Timeline) -> None:
    assert [(each.phase, each.first, each.last) for each in shown.stages] == [
        ("pilot-weighted", 21, 25), ("train", 26, 60),
    ]  # fmt: skip
    assert len(shown.rounds) == MOST_ROUNDS


def test_tiers_that_come_late_are_shown() -> None:
    late = tiered(measured_run(measured_study(), "uniform", rounds=200), after=120)
    shown = only_timeline(late)
    assert "training 116–155; the run has 200" in shown.caption
    assert shown.tiers[0].first == 121


def test_without_tiers_there_is_no_strip() -> None:
    shown = only_timeline(measured_run(measured_study(), "uniform"))
    assert shown.tiers == []
    assert "tier" not in client_labels(shown, 100)[1]
    assert "tier" not in timeline_figure(shown).note
    assert "tier" not in json.dumps(spec(timeline_figure(shown))["layer"])


@pytest.mark.parametrize("n", [3, 40, 200])
def test_the_strip_is_above_the_clients_and_can_be_read(n: int) -> None:
    times = np.linspace(0.5, 1.0, n)
    shown = only_timeline(tiered(measured_run(measured_study(), "uniform", times=times)))
    figure = timeline_figure(shown)
    picture = assert_legible(figure)
    bottom, top = shown.strip
    assert len(shown.clients) - 0.6 < bottom < top < shown.height[1]
    texts = [box.text for box in picture.texts]
    numbers = [text for text in texts if text in {"0", "1", "4"}]
    assert len(numbers) >= len(shown.numbered) > 5
    assert set(column(figure, "tiers", "line")) == {(bottom + top) / 2}
    assert texts.count("tier") == 1


def test_tiers_have_colours_of_their_own_with_letters_that_stand_out(shown: Timeline) -> None:
    colours = {tier: tier_colours(shown, tier) for tier in (0, 1, 4)}
    assert len({fill for fill, _ in colours.values()}) == 3
    assert (colours[0][1], colours[4][1]) == ("white", "black")
    assert all(re.fullmatch("#[0-9a-f]{6}", fill) for fill, _ in colours.values())


def test_one_tier_alone_has_a_colour(shown: Timeline) -> None:
    assert tier_colours(shown._replace(tiers=shown.tiers[:1]), 1)[0] == "#440154"


def test_pointing_at_a_bar_tells_its_tier_and_why(shown: Timeline) -> None:
    figure = timeline_figure(shown)
    bars = figure.data["replies"]
    assert {(bar["tier"], bar["why"]) for bar in bars if bar["round"] >= 40} == {(4, MANY)}
    assert "tier" not in bars[0]  # a pilot has neither
    assert "why" not in bars[0]
    (bars_drawn,) = (
        each for each in spec(figure)["layer"] if each["data"].get("name") == "replies"
    )
    tooltip = bars_drawn["encoding"]["tooltip"]
    assert [each["field"] for each in tooltip] == ["client", "round", "seconds", "tier", "why"]
    first = figure.data["tiers"][0]
    assert (first["first round"], first["last round"], first["tier"]) == (26, 27, 1)
    assert first["why"] == FEW
    starts = [span.start for span in shown.tiers]
    np.testing.assert_allclose(column(figure, "tiers", "start"), starts, rtol=1e-5)
    assert sum(column(figure, "tiers", "numbered")) == len(shown.numbered)
    assert "strip above: the tier drawn from" in figure.note


def test_a_reason_without_tiers_is_told_as_well(run: StoredRun) -> None:
    rows = [each._replace(tier=-1) for each in run.history.rows]
    shown = only_timeline(replace(run, history=History(rows)))
    assert shown.tiers == []
    bars = timeline_figure(shown).data["replies"]
    assert {bar.get("why", "") for bar in bars} == {"", FEW, MANY}


def test_changes_are_the_rounds_from_which_on_a_reason_holds(run: StoredRun) -> None:
    first, second = changes(run.history.rows)
    assert (first.round, first.why, second.round, second.why) == (26, FEW, 40, MANY)
    before = next(each for each in run.history.rows if each.round == 39)
    assert second.seconds == pytest.approx(before.seconds)
    assert changes([each._replace(why="") for each in run.history.rows]) == []


def test_a_reason_that_comes_back_is_a_change() -> None:
    rows = [row(round=number, why=why) for number, why in enumerate(("a", "b", "", "b", "a", "a"))]
    assert [(each.round, each.why) for each in changes(rows)] == [
        (0, "a"), (1, "b"), (3, "b"), (4, "a"),
    ]  # fmt: skip


def test_the_page_lists_the_reasons_of_the_first_seed(run: StoredRun, tmp_path: Path) -> None:
    other = tiered(measured_run(measured_study(), "optimal-mean", 1))
    plain = measured_run(measured_study(), "uniform")
    summary = summarise(setups_of([run, other, plain])[0])
    made = page([summary], [], runs_in=tmp_path, files_in=tmp_path)
    assert made.count("drew as it did") == 1
    assert "Why optimal-mean drew as it did, seed 0" in made
    assert f"<td>{FEW}</td>" in made
    assert "steps &lt;differ&gt;</td>" in made


def test_a_long_list_of_reasons_is_cut(run: StoredRun) -> None:
    rows = [each._replace(why=f"reason {at}") for at, each in enumerate(run.history.rows)]
    text = html_reasons(replace(run, history=History(rows)))
    assert text.count("<tr><td>") == MOST_CHANGES
    assert f"And {len(rows) - MOST_CHANGES:,} more." in text
    assert html_reasons(measured_run(measured_study(), "uniform")) == ""
