"""Figures have labels with units that can be read, whatever the fleet."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import fedpace
from fedpace import InputError
from fedpace.registry import SAMPLER, SCHEME, method_names
from fedpace.report.charts import (
    COLOURS,
    DASHES,
    MOST_CLIENTS,
    OTHER_COLOURS,
    Figure,
    colour,
    dash,
    plan_figure,
    probabilities_figure,
    save,
    spec,
)
from fedpace.sampling.plan import Prediction

from .looking import assert_legible, column, looked_at, titles


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
    return probabilities_figure(profile, design.q, scheme=scheme, title=title)


def scales(figure: Figure) -> dict[str, Any]:
    """Return the ends of the axes of the last layer."""
    encoding = spec(figure)["layer"][-1]["encoding"]
    return {name: encoding[name]["scale"]["domain"] for name in ("x", "y")}


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
    ends = scales(figure)
    for name, axis in (("seconds", "x"), ("q", "y")):
        values = column(figure, "clients", name)
        assert len(values) == profile.n
        assert ends[axis][0] < min(values) <= max(values) < ends[axis][1]
    # More than rounding: an axis of one float64's width shows nothing.
    assert ends["y"][1] > 1.01 * ends["y"][0]


def test_axes_have_quantities_and_units() -> None:
    picture = looked_at(picture_of(fleet(30)))
    assert titles(picture) == ["round time of the client, s", "probability per draw, q"]
    assert any(box.text.startswith("importance p·G") for box in picture.texts)
    across, up = titles(looked_at(plan_figure(list(fedpace.plan(fleet(30), 7, ks=[1, 7])), k=7)))
    assert across.endswith("K")
    assert up == "predicted time to the target (uniform with K = 7 is 1)"


def test_the_title_names_scheme_clients_and_draws() -> None:
    title = picture_of(fleet(1234), "statistical", 10).title
    for words in ("statistical", "1,234 clients", "10 drawn"):
        assert words in title


def test_points_are_the_clients_coloured_by_importance() -> None:
    profile = fleet(50)
    figure = picture_of(profile, "statistical")
    importance = profile.weights * profile.grad_norms
    order = np.argsort(importance)  # the most important on top
    assert column(figure, "clients", "client") == order.tolist()
    for name, values in (
        ("seconds", profile.times),
        ("q", importance / importance.sum()),
        ("importance", importance / importance.mean()),
    ):
        assert column(figure, "clients", name) == pytest.approx(values[order], rel=1e-5)
    assert len(looked_at(figure).items["symbol"]) == 50


def test_more_clients_than_can_be_told_apart_are_thinned_and_it_says_so() -> None:
    exactly, more = (picture_of(fleet(MOST_CLIENTS + extra), "uniform") for extra in (0, 1))
    assert len(exactly.data["clients"]) == len(more.data["clients"]) == MOST_CLIENTS
    assert "shown" not in exactly.title
    assert f"{MOST_CLIENTS:,}" in more.title
    assert f"{MOST_CLIENTS + 1:,} clients" in more.title


def test_a_plan_has_a_line_for_each_scheme_and_a_star_at_the_least() -> None:
    rows = list(fedpace.plan(fleet(60), 10, ks=[1, 10, 60]))
    figure = plan_figure(rows, k=10)
    assert column(figure, "plans", "k") == [row.k for row in rows]
    expected = [row.relative_time for row in rows]
    assert column(figure, "plans", "time") == pytest.approx(expected, rel=1e-5)
    best = min(rows, key=lambda row: row.relative_time)
    assert [row["scheme"] for row in figure.data["plans"] if row["best"]] == [best.scheme]
    assert best.scheme in figure.title
    assert f"{best.relative_time:.3g}" in figure.title
    picture = looked_at(figure)
    shown = [box.text for box in picture.texts if box.role == "legend-label"]
    assert shown == list(fedpace.SCHEMES)
    strokes = {item["stroke"].lower() for item in picture.items["line"]}
    assert strokes == {COLOURS[scheme].lower() for scheme in fedpace.SCHEMES}


def test_full_as_the_best_is_not_given_a_k() -> None:
    rows: Sequence[Prediction] = list(fedpace.plan(equal_fleet(20), 10, ks=[1, 10]))
    title = plan_figure(rows, k=10).title
    assert "full" in title
    assert "full with K" not in title  # every client takes part, whatever K


def test_every_scheme_has_a_colour_of_its_own() -> None:
    assert list(COLOURS) == [*method_names(SCHEME, SAMPLER), "fedbuff", "fedasync", "pisces"]
    assert len(set(COLOURS.values())) == len(COLOURS)


def test_lines_of_ours_differ_in_more_than_a_shade() -> None:
    lines = {(COLOURS[name], *dash(name)) for name in COLOURS}
    assert len(lines) == len(COLOURS)
    assert len({tuple(each) for each in DASHES.values()}) == len(DASHES)
    assert dash("pace (asynchronous)") != dash("pace")
    assert not set(COLOURS.values()) & set(OTHER_COLOURS)


def test_a_scheme_of_your_own_has_a_colour_of_none_of_ours() -> None:
    assert colour("own.py:mine") == colour("own.py:mine")
    assert colour("own.py:mine") not in COLOURS.values()


@pytest.mark.parametrize("name", ["q.png", "q.PNG", "q.pdf", "q.svg"])
def test_a_figure_is_saved_in_the_format_of_its_ending(tmp_path: Path, name: str) -> None:
    save(tmp_path / name, picture_of(fleet(5)))
    assert os.listdir(tmp_path) == [name]
    start = (tmp_path / name).read_bytes()[:200]
    magic = {".png": b"\x89PNG", ".pdf": b"%PDF", ".svg": b"<svg"}
    assert start.startswith(magic[Path(name).suffix.lower()])


def test_a_saved_picture_is_of_a_size_for_print(tmp_path: Path) -> None:
    save(tmp_path / "q.png", picture_of(fleet(5)))
    with Image.open(tmp_path / "q.png") as picture:
        picture.load()
        assert 1000 < picture.width < 1600
        assert 600 < picture.height < 1000


def test_a_vector_figure_of_many_clients_stays_small(tmp_path: Path) -> None:
    save(tmp_path / "q.svg", picture_of(fleet(30_000), "uniform"))
    assert (tmp_path / "q.svg").stat().st_size < 2_500_000


@pytest.mark.parametrize("name", ["q", "q.xyz", "q.csv", "q.pgf", ".png"])
def test_an_unknown_ending_is_refused_and_nothing_is_written(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"end the name in \.png, \.pdf or \.svg"):
        save(tmp_path / name, picture_of(fleet(5)))
    assert os.listdir(tmp_path) == []
