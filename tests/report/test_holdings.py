"""Who holds what: counted right, drawn legibly."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.console import Console

from fedpace.data.shards import Shards, Split
from fedpace.report.holdings import classes_table, held, holdings_figure, holdings_table

from .test_figures import assert_legible

LETTERS = [chr(ord("a") + i) for i in range(26)]


def shards(*clients: list[int]) -> Shards:
    ys = [np.array(client, dtype=np.int64) for client in clients]
    return Shards.from_clients([np.zeros((y.size, 1)) for y in ys], ys)


def random_counts(n: int, classes: int, seed: int = 0) -> NDArray[np.int64]:
    rng = np.random.default_rng(seed)
    counts = (1 + 20 * rng.pareto(1.2, (n, classes))).astype(np.int64)
    few: NDArray[np.int64] = counts * (rng.random((n, classes)) < 0.3)
    few[np.arange(n), rng.integers(0, classes, n)] += 1
    return few


def picture(counts: NDArray[np.int64]) -> Figure:
    names = LETTERS if counts.shape[1] == 26 else [str(i) for i in range(counts.shape[1])]
    return holdings_figure(counts, names=names, title="Who holds what: a study, data of seed 0")


def printed(table: object) -> list[list[str]]:
    console = Console(width=200, record=True, file=None, quiet=False)
    with console.capture() as capture:
        console.print(table)
    return [line.split() for line in capture.get().splitlines() if line.strip()]


@given(clients=st.lists(st.lists(st.integers(0, 4), max_size=9), min_size=1, max_size=6))
def test_counts_are_those_of_each_client(clients: list[list[int]]) -> None:
    counts = held(shards(*clients), 5)
    assert counts.tolist() == [[client.count(y) for y in range(5)] for client in clients]


SHAPES = {
    "the synthetic study": (100, 10),
    "the letters": (40, 26),
    "one client": (1, 10),
    "two classes": (7, 2),
    "a hundred classes": (30, 100),
    "a thousand clients": (1000, 10),
}


@pytest.mark.parametrize(("n", "classes"), SHAPES.values(), ids=SHAPES.keys())
def test_the_figure_is_legible(n: int, classes: int) -> None:
    assert_legible(picture(random_counts(n, classes)))


def test_equal_clients_and_single_samples_are_legible() -> None:
    assert_legible(picture(np.eye(12, dtype=np.int64)))
    assert_legible(picture(np.full((20, 3), 70)))


def test_a_long_title_is_wrapped() -> None:
    counts = random_counts(10, 10)
    title = "a study of many words " * 10
    figure = holdings_figure(counts, names=LETTERS[:10], title=title)
    assert_legible(figure)
    assert "\n" in figure.get_suptitle()


def test_cells_are_the_counts_and_bars_their_sums() -> None:
    counts = random_counts(40, 26)
    cells, sizes, totals, _ = picture(counts).axes
    (image,) = cells.images
    drawn = image.get_array()
    assert drawn is not None
    np.testing.assert_array_equal(np.ma.filled(drawn, 0), counts.T)
    np.testing.assert_array_equal(np.ma.getmaskarray(drawn), counts.T == 0)
    assert [label.get_text() for label in cells.get_yticklabels()] == LETTERS
    np.testing.assert_array_equal(sizes.patches[0].get_data().values, counts.sum(axis=1))  # type: ignore[attr-defined]
    widths = [bar.get_width() for bar in totals.patches]  # type: ignore[attr-defined]
    assert widths == counts.sum(axis=0).tolist()


def test_axes_say_what_they_show() -> None:
    cells, sizes, totals, bar = picture(random_counts(10, 10)).axes
    assert (cells.get_xlabel(), cells.get_ylabel()) == ("client", "class")
    assert sizes.get_ylabel().startswith("samples")
    assert "log scale" in sizes.get_ylabel()
    assert totals.get_xlabel() == "samples"
    assert bar.get_xlabel() == "samples of the class at the client; white: none"


def test_tables_show_totals_and_spreads() -> None:
    split = Split(shards([0] * 3, [1] * 1000, [1, 2]), shards([0], [1] * 9, [1]))
    counts = held(split.train, 4)
    rows = printed(holdings_table(split, counts, title="a study"))
    assert rows[0] == ["a", "study"]
    assert rows[1] == ["3", "clients", "smallest", "median", "largest", "all", "together"]
    assert [row[-4:] for row in rows[-3:]] == [
        ["2", "3", "1,000", "1,005"],
        ["1", "1", "9", "11"],
        ["1", "1", "2", "3"],
    ]
    assert printed(classes_table(counts, list("abcd")))[-4:] == [
        ["a", "3", "1", "100"],
        ["b", "1,001", "2", "100"],
        ["c", "1", "1", "100"],
        ["d", "0", "0", "–"],
    ]
