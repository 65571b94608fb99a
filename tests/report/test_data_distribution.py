"""The distribution of samples: counted right, drawn legibly."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from rich.console import Console

from fedpace.data.shards import Shards, Split
from fedpace.report.charts import Figure
from fedpace.report.clients import (
    class_counts,
    classes_table,
    distribution_figure,
    sizes_table,
)

from .looking import assert_legible, column, looked_at, titles

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
    return distribution_figure(
        counts, names=names, title="Samples by client and class: a study, data of seed 0"
    )


def printed(table: object) -> list[list[str]]:
    console = Console(width=200, record=True, file=None, quiet=False)
    with console.capture() as capture:
        console.print(table)
    return [line.split() for line in capture.get().splitlines() if line.strip()]


@given(clients=st.lists(st.lists(st.integers(0, 4), max_size=9), min_size=1, max_size=6))
def test_counts_are_those_of_each_client(clients: list[list[int]]) -> None:
    counts = class_counts(shards(*clients), 5)
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
    picture = assert_legible(distribution_figure(counts, names=LETTERS[:10], title=title))
    assert any(len(box.text) > 200 and box.right < picture.width for box in picture.texts)


def test_cells_are_the_counts_and_bars_their_sums() -> None:
    counts = random_counts(40, 26)
    figure = picture(counts)
    drawn = np.zeros_like(counts)
    for cell in figure.data["cells"]:
        drawn[cell["client"], LETTERS.index(cell["class"])] = cell["samples"]
    np.testing.assert_array_equal(drawn, counts)
    assert len(figure.data["cells"]) == np.count_nonzero(counts)
    assert column(figure, "clients", "samples") == counts.sum(axis=1).tolist()
    assert column(figure, "classes", "class") == LETTERS
    assert column(figure, "classes", "samples") == counts.sum(axis=0).tolist()
    labels = [box.text for box in looked_at(figure).texts if box.role == "axis-label"]
    assert set(LETTERS) <= set(labels)


def test_axes_say_what_they_show() -> None:
    shown = looked_at(picture(random_counts(10, 10)))
    assert titles(shown) == ["samples, log scale", "client", "class", "samples"]
    assert "samples of the class at the client; white: none" in {box.text for box in shown.texts}


def test_tables_show_totals_and_spreads() -> None:
    split = Split(shards([0] * 3, [1] * 1000, [1, 2]), shards([0], [1] * 9, [1]))
    counts = class_counts(split.train, 4)
    rows = printed(sizes_table(split, counts, title="a study"))
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
