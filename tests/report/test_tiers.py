"""Tiers and reasons: which a round drew from, and why."""

import html
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_hex

from fedpace.report.figures import figure_of
from fedpace.report.page import page
from fedpace.report.plots import plot_of
from fedpace.report.reasons import MOST_CHANGES, changes, html_reasons
from fedpace.report.setups import setups_of
from fedpace.report.summary import summarise
from fedpace.report.timeline import Timeline, client_labels, tier_colours
from fedpace.report.timeline_drawing import timeline_drawing
from fedpace.report.timelines import MOST_ROUNDS, timelines
from fedpace.rounds.rows import History
from fedpace.studies.store import StoredRun
from tests.rounds.fakes import row

from .measured_runs import measured_run, measured_study
from .test_figures import assert_legible

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
    assert "tier" not in timeline_drawing(shown).note
    assert "tier" not in json.dumps(plot_of(timeline_drawing(shown)))


@pytest.mark.parametrize("n", [3, 40, 200])
def test_the_strip_is_above_the_clients_and_can_be_read(n: int) -> None:
    times = np.linspace(0.5, 1.0, n)
    shown = only_timeline(tiered(measured_run(measured_study(), "uniform", times=times)))
    figure = figure_of(timeline_drawing(shown))
    assert_legible(figure)
    (axes,) = figure.axes
    bottom, top = shown.strip
    assert len(shown.clients) - 0.6 < bottom < top < axes.get_ylim()[1]
    numbers = [text for text in axes.texts if text.get_text() in {"0", "1", "4"}]
    assert len(numbers) == len(shown.numbered) > 5
    for text in numbers:
        box = text.get_window_extent().transformed(axes.transData.inverted())
        assert bottom <= box.y0 <= box.y1 <= top
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels.count("tier") == 1


def test_tiers_have_colours_of_their_own_with_letters_that_stand_out(shown: Timeline) -> None:
    colours = {tier: tier_colours(shown, tier) for tier in (0, 1, 4)}
    assert len({fill for fill, _ in colours.values()}) == 3
    assert (colours[0][1], colours[4][1]) == ("white", "black")
    assert all(to_hex(fill) == fill for fill, _ in colours.values())


def test_one_tier_alone_has_a_colour(shown: Timeline) -> None:
    assert tier_colours(shown._replace(tiers=shown.tiers[:1]), 1)[0] == "#440154"


def test_pointing_at_a_bar_tells_its_tier_and_why(shown: Timeline) -> None:
    bars, strip, numbered = plot_of(timeline_drawing(shown))["data"]
    last = [row[-1] for row in bars["customdata"] if row[1] >= 40]
    assert set(last) == {"tier 4<br>5 tiers, c = 1.2 S₀: steps &lt;differ&gt;"}
    assert bars["customdata"][0][-1] == ""  # a pilot has neither
    assert "<br>%{customdata[3]}" in bars["hovertemplate"]
    assert strip["customdata"][0] == [26, 27, f"tier 1<br>{FEW}"]
    np.testing.assert_allclose(strip["base"], [span.start for span in shown.tiers], rtol=1e-5)
    assert strip["y"][0] == pytest.approx(sum(shown.strip) / 2)
    assert numbered["text"] == [str(span.tier) for span in shown.numbered]
    assert "strip above: the tier drawn from" in timeline_drawing(shown).note


def test_a_reason_without_tiers_is_told_as_well(run: StoredRun) -> None:
    rows = [each._replace(tier=-1) for each in run.history.rows]
    shown = only_timeline(replace(run, history=History(rows)))
    assert shown.tiers == []
    (bars,) = plot_of(timeline_drawing(shown))["data"]
    assert {row[-1] for row in bars["customdata"]} == {"", FEW, html.escape(MANY)}


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
