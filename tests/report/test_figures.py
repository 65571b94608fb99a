"""Figures have labels with units that can be read, whatever the fleet."""

import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox
from PIL import Image

import fedpace
from fedpace import SCHEMES, InputError
from fedpace.estimation.no_barrier import PUBLISHED
from fedpace.estimation.policy import OURS
from fedpace.report.drawing import COLOURS, DASHES, OTHER_COLOURS, Dash, colour, dash
from fedpace.report.figures import DASHES as DRAWN_DASHES
from fedpace.report.figures import figure_of, save
from fedpace.report.fleet_drawings import MOST_CLIENTS, chances_drawing, plan_drawing
from fedpace.sampling.plan import Prediction


def fleet(n: int, spread: float = 0.7, seed: int = 0) -> fedpace.Profile:
    """`spread` is the standard deviation of the logarithm of the times."""
    rng = np.random.default_rng(seed)
    times = 3 * np.exp(spread * rng.normal(size=n))
    return fedpace.Profile.from_samples(1 + 30 * rng.pareto(1.6, n), times, rng.lognormal(size=n))


def equal_fleet(n: int) -> fedpace.Profile:
    return fedpace.Profile(np.full(n, 1 / n), np.full(n, 2.0), np.ones(n))


def picture_of(profile: fedpace.Profile, scheme: str = "optimal-mean", k: int = 10) -> Figure:
    design = fedpace.SCHEMES[scheme](profile, k)
    assert isinstance(design, fedpace.WithReplacement)
    title = f"{scheme}: {profile.n:,} clients, {k:,} drawn per round"
    return figure_of(chances_drawing(profile, design.q, scheme=scheme, title=title))


def plan_figure(rows: Sequence[Prediction], *, k: int) -> Figure:
    return figure_of(plan_drawing(rows, k=k))


def points(figure: Figure) -> PathCollection:
    (found,) = (each for each in figure.axes[0].collections if isinstance(each, PathCollection))
    return found


def drawn(figure: Figure) -> Figure:
    """Lay the figure out: only then do texts have their places."""
    FigureCanvasAgg(figure)
    figure.draw_without_rendering()
    return figure


def tick_texts(axis: Axis) -> list[Text]:
    """The labels of ticks within the axis: the others are not drawn."""
    low, high = sorted(axis.get_view_interval())
    ticks = [*axis.get_major_ticks(), *axis.get_minor_ticks()]
    shown = [tick for tick in ticks if low <= tick.get_loc() <= high]
    labels = [label for tick in shown for label in (tick.label1, tick.label2)]
    return [label for label in labels if label.get_visible() and label.get_text()]


def assert_legible(figure: Figure) -> None:
    """Nothing sticks out, no tick labels overlap or repeat, and every axis has some."""
    drawn(figure)
    page = Bbox.from_extents(-1, -1, figure.bbox.x1 + 1, figure.bbox.y1 + 1)
    texts: list[Text] = []
    for axes in figure.axes:
        texts += [axes.title, axes.xaxis.label, axes.yaxis.label, *axes.texts]
        for axis in (axes.xaxis, axes.yaxis):
            labels = tick_texts(axis)
            texts += labels
            boxes = [label.get_window_extent() for label in labels]
            for one, other in itertools.combinations(boxes, 2):
                assert not one.overlaps(other), [label.get_text() for label in labels]
            assert len({label.get_text() for label in labels}) == len(labels)
    main = figure.axes[0]
    assert tick_texts(main.xaxis)
    assert tick_texts(main.yaxis)
    for text in texts:
        if text.get_text():
            box = text.get_window_extent()
            assert page.x0 <= box.x0 <= box.x1 <= page.x1, text.get_text()
            assert page.y0 <= box.y0 <= box.y1 <= page.y1, text.get_text()


FLEETS = {
    "1 client": fleet(1),
    "2 clients": fleet(2),
    "2 clients, equal times": fleet(2, 0),
    "100 clients": fleet(100),
    "widely spread times": fleet(100, 3),
    "very widely spread times": fleet(100, 5),
    "narrowly spread times": fleet(100, 0.02),
    "hardly spread times": fleet(100, 1e-6),
    "equal times": fleet(100, 0),
    "equal clients": equal_fleet(10),
    "100,000 clients": fleet(100_000),
}


@pytest.mark.parametrize("profile", FLEETS.values(), ids=FLEETS.keys())
def test_probabilities_are_legible(profile: fedpace.Profile) -> None:
    assert_legible(picture_of(profile))


@pytest.mark.parametrize("name", [name for name, fleet in FLEETS.items() if fleet.n <= 100])
@pytest.mark.parametrize("ks", [[10], [1, 2, 5, 10], [1, 10, 100, 1000, 100_000]], ids=str)
def test_a_plan_is_legible(name: str, ks: list[int]) -> None:
    assert_legible(plan_figure(list(fedpace.plan(FLEETS[name], 10, ks=ks)), k=10))


def test_a_million_clients_and_ten_thousand_draws_fit_into_the_title() -> None:
    assert_legible(picture_of(fleet(1_000_000), scheme="uniform", k=10_000))


@pytest.mark.parametrize("profile", [equal_fleet(10), equal_fleet(3), fleet(1), fleet(100)])
def test_every_client_is_within_the_axes(profile: fedpace.Profile) -> None:
    figure = picture_of(profile, "optimal-max")
    drawn(figure)
    axes = figure.axes[0]
    inside = axes.viewLim.get_points()
    places = np.asarray(points(figure).get_offsets())
    assert places.shape == (profile.n, 2)
    assert (places >= inside[0]).all()
    assert (places <= inside[1]).all()
    # More than rounding: an axis of one float64's width shows nothing.
    assert inside[1, 1] > 1.01 * inside[0, 1]


def test_axes_have_quantities_and_units() -> None:
    figure = picture_of(fleet(30))
    axes, bar = figure.axes
    assert "time" in axes.get_xlabel()
    assert axes.get_xlabel().endswith(", s")
    assert "probability" in axes.get_ylabel()
    assert "importance" in bar.get_ylabel()
    figure = plan_figure(list(fedpace.plan(fleet(30), 7, ks=[1, 7])), k=7)
    assert figure.axes[0].get_xlabel().endswith("K")
    assert "time to the target" in figure.axes[0].get_ylabel()
    assert "uniform with K = 7 is 1" in figure.axes[0].get_ylabel()


def test_the_title_names_scheme_clients_and_draws() -> None:
    title = picture_of(fleet(1234), "statistical", 10).axes[0].get_title()
    for words in ("statistical", "1,234 clients", "10 drawn"):
        assert words in title


def test_points_are_the_clients_coloured_by_importance() -> None:
    profile = fleet(50)
    figure = picture_of(profile, "statistical")
    places = np.asarray(points(figure).get_offsets())
    importance = profile.weights * profile.grad_norms
    order = np.argsort(importance)  # the most important on top
    assert places[:, 0] == pytest.approx(profile.times[order])
    assert places[:, 1] == pytest.approx((importance / importance.sum())[order])
    colours = np.asarray(points(figure).get_array())
    assert colours == pytest.approx((importance / importance.mean())[order])


def test_more_clients_than_can_be_told_apart_are_thinned_and_it_says_so() -> None:
    exactly, more = (picture_of(fleet(MOST_CLIENTS + extra), "uniform") for extra in (0, 1))
    assert np.shape(points(exactly).get_offsets()) == (MOST_CLIENTS, 2)
    assert "shown" not in exactly.axes[0].get_title()
    assert np.shape(points(more).get_offsets()) == (MOST_CLIENTS, 2)
    assert f"{MOST_CLIENTS:,}" in more.axes[0].get_title()
    assert f"{MOST_CLIENTS + 1:,} clients" in more.axes[0].get_title()


def test_a_plan_has_a_line_for_each_scheme_and_a_star_at_the_least() -> None:
    rows = list(fedpace.plan(fleet(60), 10, ks=[1, 10, 60]))
    figure = plan_figure(rows, k=10)
    axes = figure.axes[0]
    lines = {str(line.get_label()): line for line in axes.lines if line.get_label() in COLOURS}
    assert list(lines) == list(fedpace.SCHEMES)
    for scheme, line in lines.items():
        mine = [row for row in rows if row.scheme == scheme]
        assert line.get_xdata() == pytest.approx([row.k for row in mine])
        assert line.get_ydata() == pytest.approx([row.relative_time for row in mine])
        assert line.get_color() == COLOURS[scheme]
    best = min(rows, key=lambda row: row.relative_time)
    (star,) = (line for line in axes.lines if line.get_marker() == "*")
    assert np.ravel([star.get_xdata(), star.get_ydata()]).tolist() == [best.k, best.relative_time]
    assert best.scheme in axes.get_title()
    assert f"{best.relative_time:.3g}" in axes.get_title()
    assert legend_texts(figure) == list(fedpace.SCHEMES)


def test_full_as_the_best_is_not_given_a_k() -> None:
    rows = list(fedpace.plan(equal_fleet(20), 10, ks=[1, 10]))
    title = plan_figure(rows, k=10).axes[0].get_title()
    assert "full" in title
    assert "full with K" not in title  # everyone takes part, whatever K


def legend_texts(figure: Figure) -> Sequence[str]:
    legend = figure.axes[0].get_legend()
    assert legend is not None
    return [text.get_text() for text in legend.get_texts()]


def test_every_scheme_has_a_colour_of_its_own() -> None:
    assert list(COLOURS) == [*SCHEMES, *OURS, *PUBLISHED]
    assert len(set(COLOURS.values())) == len(COLOURS)


def test_lines_of_ours_differ_in_more_than_a_shade() -> None:
    lines = {(COLOURS[name], dash(name)) for name in COLOURS}
    assert len(lines) == len(COLOURS)
    assert len(set(DASHES.values())) == len(DASHES)
    assert set(DRAWN_DASHES) == set(get_args(Dash))
    assert not set(COLOURS.values()) & set(OTHER_COLOURS)


def test_a_scheme_of_your_own_has_a_colour_of_none_of_ours() -> None:
    assert colour("own.py:mine") == colour("own.py:mine")
    assert colour("own.py:mine") not in COLOURS.values()


@pytest.mark.parametrize("name", ["q.png", "q.PNG", "q.pdf", "q.svg"])
def test_a_figure_is_saved_in_the_format_of_its_ending(tmp_path: Path, name: str) -> None:
    save(picture_of(fleet(5)), tmp_path / name)
    assert os.listdir(tmp_path) == [name]
    start = (tmp_path / name).read_bytes()[:200]
    magic = {".png": b"\x89PNG", ".pdf": b"%PDF", ".svg": b"<?xml"}
    assert start.startswith(magic[Path(name).suffix.lower()])


def test_a_saved_picture_is_of_a_size_for_print(tmp_path: Path) -> None:
    save(picture_of(fleet(5)), tmp_path / "q.png")
    with Image.open(tmp_path / "q.png") as picture:
        picture.load()
        assert picture.size == (1080, 660)


def test_a_vector_figure_of_many_clients_stays_small(tmp_path: Path) -> None:
    save(picture_of(fleet(30_000), "uniform"), tmp_path / "q.svg")
    assert (tmp_path / "q.svg").stat().st_size < 1_000_000


@pytest.mark.parametrize("name", ["q", "q.xyz", "q.csv", "q.pgf", ".png"])
def test_an_unknown_ending_is_refused_and_nothing_is_written(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"end the name in \.png, \.pdf or \.svg"):
        save(picture_of(fleet(5)), tmp_path / name)
    assert os.listdir(tmp_path) == []
