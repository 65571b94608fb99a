"""Figures of a study: what is drawn is what was measured."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from fedpace.errors import MissingExtraError
from fedpace.estimation.ratio import RatioEstimate
from fedpace.report.curves import Abscissa, Ordinate, curve
from fedpace.report.drawing import colour
from fedpace.report.figures import figure_of
from fedpace.report.fleet_drawings import drawn_clients
from fedpace.report.pictures import write_figures
from fedpace.report.setups import Sweep, optimising, setups_of, without_sweeps
from fedpace.report.study_drawings import (
    CURVES,
    chances_drawings,
    curve_drawing,
    sensitivity_drawing,
)
from fedpace.report.summary import Summary, summarise

from .made import START, arriving, made_run, small_study
from .measured_runs import measured_run, measured_study


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    """Two seeds whose estimates of c are 0.5 and 1 times S_0, and two given values of c."""
    base = small_study(tmp_path)
    given_c = {c: small_study(tmp_path, f"sampling.c_over_s0={c}") for c in (0.1, 1.0)}
    runs = [arriving(study, "optimal-mean", 0, 10 * c) for c, study in given_c.items()]
    runs.append(arriving(base, "uniform", 0, 20.0))
    for seed, value in enumerate((2.0, 4.0)):
        ratio = RatioEstimate(value, 0, 9, True, "", 1.0)
        lines = [START, ("train", 1, 6.0, 1.7, 0.5)]
        runs.append(made_run(base, "optimal-mean", seed, lines, ratio=ratio))
    _, (sweep,) = without_sweeps(setups_of(runs))
    return sweep


def curve_figure(summary: Summary, y: Ordinate, x: Abscissa) -> Figure:
    (name,) = (name for name, *axes in CURVES if axes == [y, x])
    return figure_of(curve_drawing(summary, name, y, x))


def only_axes(figure: Figure) -> Axes:
    (axes,) = figure.axes
    return axes


@pytest.mark.parametrize(("y", "x"), [axes for _, *axes in CURVES])
def test_each_scheme_is_a_labelled_line_through_its_mean(
    y: Ordinate, x: Abscissa, summary: Summary
) -> None:
    axes = only_axes(curve_figure(summary, y, x))
    lines = {str(line.get_label()): line for line in axes.lines}
    for scheme in summary.setup.schemes:
        expected = curve(summary.setup.of(scheme), y, x)
        np.testing.assert_array_equal(lines[scheme].get_xdata(), expected.x)
        drawn = np.asarray(lines[scheme].get_ydata()) / (100 if y == "accuracy" else 1)
        np.testing.assert_allclose(drawn, expected.mean)
        assert lines[scheme].get_color() == colour(scheme)
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == summary.setup.schemes


def test_target_and_pilots_are_marked_and_everything_is_in_view(summary: Summary) -> None:
    axes = only_axes(curve_figure(summary, "loss", "seconds"))
    texts = {text.get_text() for text in axes.texts}
    assert {"target loss 1.75", "pilots end"} <= texts
    dots = {
        float(np.asarray(line.get_xdata())[0]) for line in axes.lines if line.get_marker() == "o"
    }
    arrivals = {row.seconds.value for row in summary.rows if row.reached}
    assert dots >= arrivals
    assert axes.get_xlim()[0] == 0
    assert axes.get_xlim()[1] > max(arrivals)


def test_no_two_schemes_look_alike(summary: Summary) -> None:
    axes = only_axes(curve_figure(summary, "loss", "seconds"))
    looks = [line.get_color() for line in axes.lines if line.get_label() in summary.setup.schemes]
    assert len(set(looks)) == len(looks) == 7


def test_units_are_named(summary: Summary) -> None:
    axes = only_axes(curve_figure(summary, "accuracy", "seconds"))
    assert axes.get_xlabel() == "wall-clock time, s"
    assert axes.get_ylabel() == "test accuracy, %"


def test_a_target_that_nobody_reached_is_drawn_all_the_same(tmp_path: Path) -> None:
    study = small_study(tmp_path, "stop.loss=0.1")
    summary = summarise(setups_of([arriving(study, "uniform", 0, 4.0)])[0])
    axes = only_axes(curve_figure(summary, "loss", "seconds"))
    assert axes.get_ylim()[0] < 0.1


def test_probabilities_are_drawn_for_each_optimising_scheme(summary: Summary) -> None:
    figure = figure_of(*chances_drawings(summary.setup))
    panels = figure.axes[:4]
    for axes, (scheme, run, q) in zip(panels, optimising(summary.setup), strict=True):
        title = " ".join(axes.get_title(loc="left").split())
        assert title == f"Probabilities of {scheme}, seed 0"
        (points,) = axes.collections
        drawn = np.asarray(points.get_offsets())
        order = np.argsort(run.profile.importance)
        np.testing.assert_allclose(drawn, np.column_stack([run.profile.times, q])[order])


def test_sensitivity_shows_the_estimate_where_it_lies(sweep: Sweep) -> None:
    axes = only_axes(figure_of(sensitivity_drawing(sweep)))
    (given,) = (line for line in axes.lines if line.get_marker() == "o")
    (star,) = (line for line in axes.lines if line.get_marker() == "*")
    assert given.get_linestyle() == "-"
    assert len(axes.containers) == 2  # each with its whiskers
    np.testing.assert_allclose(np.asarray(given.get_xdata(), dtype=float), [0.1, 1.0])
    np.testing.assert_allclose(np.asarray(given.get_ydata(), dtype=float), [1.0, 10.0])
    np.testing.assert_allclose(np.asarray(star.get_xdata(), dtype=float), [0.75])
    np.testing.assert_allclose(np.asarray(star.get_ydata(), dtype=float), [6.0])
    assert [20.0, 20.0] in [np.asarray(line.get_ydata()).tolist() for line in axes.lines]
    assert "uniform 20 s" in {text.get_text() for text in axes.texts}


def test_every_figure_is_written_as_png_and_pdf(
    summary: Summary, sweep: Sweep, tmp_path: Path
) -> None:
    paths = list(write_figures([summary], [sweep], tmp_path))
    names = {path.stem for path in paths}
    assert names == {"small-loss-seconds", "small-accuracy-seconds", "small-loss-rounds",
                     "small-probabilities", "small-sensitivity", "small-busy",
                     *(f"small-timeline-{scheme}" for scheme in summary.setup.schemes)}  # fmt: skip
    for path in paths:
        if path.suffix == ".pdf":
            assert path.read_bytes().startswith(b"%PDF")
        else:
            with Image.open(path) as picture:
                assert picture.width > 900
    assert len(paths) == 26


def test_a_scheme_of_your_own_has_a_file_in_the_same_folder(tmp_path: Path) -> None:
    run = replace(measured_run(measured_study(), "uniform", rounds=3), scheme="../a b/own.py:mine")
    summary = summarise(setups_of([run])[0])
    paths = set(write_figures([summary], [], tmp_path))
    assert tmp_path / "prototype-timeline-..-a-b-own.py-mine.png" in paths
    assert {path.parent for path in paths} == {tmp_path}


def test_without_matplotlib_the_extra_is_named(
    summary: Summary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match=r"fedpace\[report\]"):
        curve_figure(summary, "loss", "seconds")


def test_of_very_many_clients_some_are_drawn() -> None:
    share = np.random.default_rng(0).random(6_000)
    drawn = drawn_clients(share)
    assert len(set(drawn.tolist())) == 5_000
    assert (np.diff(share[drawn]) >= 0).all()
    few = drawn_clients(share[:10])
    np.testing.assert_array_equal(np.sort(few), np.arange(10))
