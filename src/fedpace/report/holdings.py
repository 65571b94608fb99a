"""Who holds what: clients by classes, and how much of it."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from rich.table import Table

from fedpace.checks import IntArray
from fedpace.data.shards import Shards, Split
from fedpace.report.figures import new_figure, plain_numbers
from fedpace.report.tables import new_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

BARS = "#56B4E9"
# Inches: a wider page does not fit a screen, and a narrower one has no room for its labels.
NARROWEST, WIDEST = 7.5, 14.0
PER_CLIENT, PER_CLASS = 0.1, 0.2
LETTERS_PER_INCH = 10
# Highest over lowest size up to which there is room for 1, 2, 5, 10, beyond only for 1, 10.
SHORT_AXIS = 200
# Less than this factor between numbers needs no logarithms, and leaves them no labels.
DECADE = 10
# More names than this overlap, and more lines leave nothing between them.
MOST_NAMES, MOST_LINES = 40, 200


def held(shards: Shards, classes: int) -> IntArray:
    """Count samples, client by class.

    >>> shards = Shards(np.zeros((3, 1)), np.array([0, 2, 2]), np.array([0, 1, 3]))
    >>> held(shards, 3)
    array([[1, 0, 0],
           [0, 0, 2]])
    """
    clients = np.repeat(np.arange(shards.n), shards.sizes)
    cells = np.bincount(clients * classes + shards.y, minlength=shards.n * classes)
    return cells.reshape(shards.n, classes)


def holdings_table(split: Split, counts: IntArray, *, title: str) -> Table:
    """Show how sizes and numbers of classes spread over the clients."""
    titles = ("smallest", "median", "largest", "all together")
    table = new_table(title, f"{split.train.n:,} clients", *titles)
    for row, values, total in (
        ("samples to train on", split.train.sizes, split.train.sizes.sum()),
        ("samples held back for testing", split.test.sizes, split.test.sizes.sum()),
        ("classes", (counts > 0).sum(axis=1), counts.any(axis=0).sum()),
    ):
        numbers = (values.min(), np.median(values), values.max(), total)
        table.add_row(row, *(f"{number:,.10g}" for number in numbers))
    return table


def classes_table(counts: IntArray, names: Sequence[str]) -> Table:
    """Show how much there is of every class, and how it spreads over its clients."""
    titles = ("samples", "clients", "largest client's\nshare, %")
    table = new_table("Samples to train on, by class", "class", *titles)
    for name, column in zip(names, counts.T, strict=True):
        total = int(column.sum())
        share = f"{100 * column.max() / total:.0f}" if total else "–"
        table.add_row(name, f"{total:,}", f"{int((column > 0).sum()):,}", share)
    return table


def holdings_figure(counts: IntArray, *, names: Sequence[str], title: str) -> Figure:
    """Draw who holds how much of which class, and the total of every client and every class.

    `counts` are those of `held`, `names` those of the classes.
    """
    n, classes = counts.shape
    width = float(np.clip(2.5 + PER_CLIENT * n, NARROWEST, WIDEST))
    height = float(np.clip(PER_CLASS * classes, 2.0, 8.0))
    figure = new_figure(width, height + 2.8)
    grid = figure.add_gridspec(2, 2, height_ratios=(1.2, height), width_ratios=(width - 2.0, 1.2))
    cells = figure.add_subplot(grid[1, 0])
    sizes = figure.add_subplot(grid[0, 0], sharex=cells)
    totals = figure.add_subplot(grid[1, 1], sharey=cells)
    picture = _draw_cells(cells, counts, names)
    _draw_sizes(sizes, counts.sum(axis=1))
    _draw_totals(totals, counts.sum(axis=0))
    bar = figure.colorbar(picture, ax=[cells, totals], location="bottom", aspect=70, pad=0.02)
    bar.set_label("samples of the class at the client; white: none")
    plain_numbers(bar.ax.xaxis)
    figure.suptitle(textwrap.fill(title, int(LETTERS_PER_INCH * width)), fontsize="medium")
    return figure


def _draw_cells(axes: Axes, counts: IntArray, names: Sequence[str]) -> AxesImage:
    from matplotlib.colors import LogNorm
    from matplotlib.ticker import MaxNLocator

    n, classes = counts.shape
    least = counts[counts > 0].min()
    norm = LogNorm(least, max(DECADE * least, counts.max()))
    some = np.ma.masked_equal(counts.T, 0)
    picture = axes.imshow(some, norm=norm, cmap="viridis_r", aspect="auto", interpolation="nearest")
    axes.set(xlabel="client", ylabel="class")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if classes <= MOST_NAMES:
        axes.set_yticks(range(classes), names)
    if n <= MOST_LINES:
        axes.vlines(np.arange(1, n) - 0.5, -0.5, classes - 0.5, color="0.88", linewidth=0.5)
    if classes <= MOST_LINES:
        axes.hlines(np.arange(1, classes) - 0.5, -0.5, n - 0.5, color="0.88", linewidth=0.5)
    return picture


def _draw_sizes(axes: Axes, sizes: IntArray) -> None:
    edges = np.arange(sizes.size + 1) - 0.5
    wide = sizes.max() > DECADE * sizes.min()
    low, high = (0.5 * max(sizes.min(), 1) if wide else 0), 1.5 * sizes.max()
    axes.stairs(sizes, edges, baseline=low, fill=True, color=BARS)
    if sizes.size <= MOST_LINES:
        axes.vlines(edges[1:-1], low, high, color="white", linewidth=0.8)
    axes.set(ylim=(low, high), ylabel="samples,\nlog scale" if wide else "samples")
    if wide:
        axes.set_yscale("log")
        plain_numbers(axes.yaxis, steps=None if high / low < SHORT_AXIS else (1.0,))
    axes.tick_params(labelbottom=False)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(False)
    axes.grid(axis="y", alpha=0.3)


def _draw_totals(axes: Axes, totals: IntArray) -> None:
    axes.barh(np.arange(totals.size), totals, height=0.8, color=BARS)
    axes.set(xlabel="samples")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.tick_params(left=False, labelleft=False)
    axes.spines[["top", "right"]].set_visible(False)
