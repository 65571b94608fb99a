"""Charts of a study: what is drawn is what was measured."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedpace.errors import MissingExtraError
from fedpace.report import charts
from fedpace.report.charts import COLOURS, Figure, drawn_clients, spec
from fedpace.report.report import Report
from fedpace.report.setups import Sweep, setups_of, solved_schemes, without_sweeps
from fedpace.report.study_charts import (
    CURVES,
    curve_figure,
    probabilities_figures,
    sensitivity_figure,
)
from fedpace.report.summary import Abscissa, Ordinate, Summary, curve, summarise
from fedpace.samplers.pilots import RatioEstimate

from .looking import assert_legible, column, looked_at, titles
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


def curve_of(summary: Summary, y: Ordinate, x: Abscissa) -> Figure:
    (name,) = (name for name, *axes in CURVES if axes == [y, x])
    return curve_figure(summary, name, y, x)


@pytest.mark.parametrize(("y", "x"), [axes for _, *axes in CURVES])
def test_each_scheme_is_a_labelled_line_through_its_mean(
    y: Ordinate, x: Abscissa, summary: Summary
) -> None:
    figure = curve_of(summary, y, x)
    for scheme in summary.setup.schemes:
        expected = curve(summary.setup.of(scheme), y, x)
        mine = [row for row in figure.data["curves"] if row["scheme"] == scheme]
        np.testing.assert_allclose([row["x"] for row in mine], expected.x, rtol=1e-5)
        drawn = np.array([row["mean"] for row in mine]) / (100 if y == "accuracy" else 1)
        np.testing.assert_allclose(drawn, expected.mean, rtol=1e-5)
    picture = assert_legible(figure)
    legend = [box.text for box in picture.texts if box.role == "legend-label"]
    assert legend == summary.setup.schemes
    strokes = {item["stroke"].lower() for item in picture.items["line"]}
    assert strokes == {COLOURS[scheme].lower() for scheme in summary.setup.schemes}


def test_target_and_pilots_are_marked_and_everything_is_in_view(summary: Summary) -> None:
    figure = curve_of(summary, "loss", "seconds")
    assert {"target loss 1.75", "pilots end"} <= {box.text for box in looked_at(figure).texts}
    arrivals = {row.scheme: row.seconds.value for row in summary.rows if row.reached}
    drawn = {row["scheme"]: row["x"] for row in figure.data["arrivals"]}
    assert drawn == pytest.approx(arrivals, rel=1e-5)
    assert set(column(figure, "arrivals", "y")) == {1.75}
    across = spec(figure)["layer"][0]["encoding"]["x"]["scale"]
    assert across["domainMin"] == 0


def test_no_two_schemes_look_alike(summary: Summary) -> None:
    lines = looked_at(curve_of(summary, "loss", "seconds")).items["line"]
    looks = {item["stroke"] for item in lines}
    assert len(looks) == 7


def test_units_are_named(summary: Summary) -> None:
    assert titles(looked_at(curve_of(summary, "accuracy", "seconds"))) == [
        "wall-clock time, s", "test accuracy, %",
    ]  # fmt: skip


def test_a_target_that_no_scheme_reached_is_drawn_all_the_same(tmp_path: Path) -> None:
    study = small_study(tmp_path, "stop.loss=0.1")
    summary = summarise(setups_of([arriving(study, "uniform", 0, 4.0)])[0])
    up = spec(curve_of(summary, "loss", "seconds"))["layer"][0]["encoding"]["y"]["scale"]
    assert up["domain"][0] < 0.1


def test_asynchronous_runs_have_steps(tmp_path: Path) -> None:
    study = small_study(tmp_path, "training.mode=asynchronous")
    summary = summarise(setups_of([arriving(study, "weighted", 0, 4.0)])[0])
    figure = curve_of(summary, "loss", "round")
    assert figure.title == "Loss against steps"
    assert titles(looked_at(figure))[0] == "step"


def test_probabilities_are_drawn_for_each_optimising_scheme(summary: Summary) -> None:
    figures = probabilities_figures(summary.setup)
    for figure, (scheme, run, q) in zip(figures, solved_schemes(summary.setup), strict=True):
        assert figure.title == f"Probabilities of {scheme}, seed 0"
        drawn = [(row["seconds"], row["q"]) for row in figure.data["clients"]]
        order = np.argsort(run.profile.importance)
        expected = np.column_stack([run.profile.times, q])[order]
        np.testing.assert_allclose(drawn, expected, rtol=1e-5)
    ends = [spec(each)["layer"][-1]["encoding"][at]["scale"] for each in figures for at in "xy"]
    assert len({str(each) for each in ends}) == 2  # all on the same axes
    assert_legible(*figures)


def test_sensitivity_shows_the_estimate_where_it_lies(sweep: Sweep) -> None:
    figure = sensitivity_figure(sweep)
    assert column(figure, "given", "x") == pytest.approx([0.1, 1.0])
    assert column(figure, "given", "seconds") == [1.0, 10.0]
    (star,) = figure.data["stars"]
    assert (star["x"], star["seconds"]) == (pytest.approx(0.75), 6.0)
    picture = assert_legible(figure)
    assert "uniform 20 s" in {box.text for box in picture.texts}


def test_every_figure_is_written_as_png_and_pdf(
    summary: Summary, sweep: Sweep, tmp_path: Path
) -> None:
    paths = list(Report([summary], [sweep]).write_figures(tmp_path))
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
    paths = set(Report([summary], []).write_figures(tmp_path))
    folder = tmp_path / "figures"
    assert folder / "prototype-timeline-..-a-b-own.py-mine.png" in paths
    assert {path.parent for path in paths} == {folder}


def test_without_vl_convert_the_extra_is_named(
    summary: Summary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    charts.bundle.cache_clear()
    with pytest.raises(MissingExtraError, match=r"fedpace\[report\]"):
        list(Report([summary], []).write_figures(tmp_path))
    with pytest.raises(MissingExtraError, match=r"fedpace\[report\]"):
        Report([summary], []).write_page(tmp_path, runs_in=tmp_path)


def test_of_very_many_clients_some_are_drawn() -> None:
    share = np.random.default_rng(0).random(6_000)
    drawn = drawn_clients(share)
    assert len(set(drawn.tolist())) == 5_000
    assert (np.diff(share[drawn]) >= 0).all()
    few = drawn_clients(share[:10])
    np.testing.assert_array_equal(np.sort(few), np.arange(10))
