"""Figures, with Matplotlib; nothing global is touched."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from zlib import crc32

import numpy as np

from fedpace.checks import FloatArray, IntArray
from fedpace.errors import InputError, needs
from fedpace.files import write_whole
from fedpace.profile import Profile
from fedpace.sampling.plan import Prediction

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.collections import PathCollection
    from matplotlib.figure import Figure

Place: TypeAlias = tuple[float, float]
# More points than this only make one blob, and a vector file of a hundred megabytes.
MOST_POINTS = 20_000
PICTURES = (".png", ".pdf", ".svg")
# One colour per scheme, the same in every figure; from Okabe and Ito, and the last from Tol, told
# apart by all eyes.
COLOURS = {
    "full": "#000000",
    "uniform": "#999999",
    "weighted": "#56B4E9",
    "statistical": "#009E73",
    "optimal-mean": "#E69F00",
    "optimal-max": "#D55E00",
    "optimal-tiers": "#CC79A7",
    "pace": "#0072B2",
    "optimal-mean-no-pilots": "#882255",
    "fedbuff": "#AA4499",
    "fedasync": "#999933",
    "pisces": "#117733",
}
# For schemes of a user's own, from Tol's.
OTHER_COLOURS = ("#661100", "#44AA99", "#332288", "#DDCC77")
# A colour's lighter shade is mixed with so much white.
PALE = 0.6


def colour(scheme: str) -> str:
    """Return a scheme's colour, the same in every figure and mode."""
    scheme = scheme.partition(" (")[0]
    own = OTHER_COLOURS[crc32(scheme.encode()) % len(OTHER_COLOURS)]
    return COLOURS.get(scheme, own)


def pale(scheme: str) -> str:
    """Return the lighter shade of a scheme's colour.

    >>> pale("full")
    '#999999'
    """
    parts = (int(colour(scheme)[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round(part + PALE * (255 - part)):02x}" for part in parts)


def probabilities_figure(profile: Profile, q: FloatArray, *, scheme: str, k: int) -> Figure:
    """Draw each client's probability against its time, coloured by its importance."""
    figure = new_figure(7.0, 4.5)
    axes = figure.add_subplot(xscale="log", yscale="log")
    shown, note = np.arange(profile.n), ""
    if profile.n > MOST_POINTS:
        shown = np.random.default_rng(0).choice(profile.n, MOST_POINTS, replace=False)
        note = f"\n({MOST_POINTS:,} of the clients shown)"
    share = profile.importance / profile.importance.sum() * profile.n
    # The most important last, on top.
    shown = shown[np.argsort(share[shown])]
    size = max(6.0, 36.0 * (100 / max(shown.size, 100)) ** 0.5)
    style = {"s": size, "norm": "log", "rasterized": shown.size > 2_000}
    points = draw_points(axes, profile.times, q, share, shown, **style)
    label(axes, "uniform, 1/N", (1, 1 / profile.n), (-4, 3), ha="right", color="0.4")
    clients = "1 client" if profile.n == 1 else f"{profile.n:,} clients"
    low, high = axes.get_ylim()
    axes.set(
        xlabel="round time of the client, s",
        ylabel="probability per draw, q",
        title=f"{scheme}: {clients}, {k:,} drawn per round{note}",
        # Equal probabilities differ by rounding only: an axis that narrow shows nothing.
        ylim=(min(low, 0.5 / profile.n), max(high, 2 / profile.n)),
    )
    plain_numbers(axes.xaxis)
    figure.colorbar(points, ax=axes, label="importance p·G, relative to the mean")
    return figure


def plan_figure(rows: Sequence[Prediction], *, k: int) -> Figure:
    """Draw each scheme's predicted time against the number of clients per round."""
    figure = new_figure(7.0, 4.5)
    axes = figure.add_subplot()
    for scheme in dict.fromkeys(row.scheme for row in rows):
        mine = [row for row in rows if row.scheme == scheme]
        k_values, times = [row.k for row in mine], [row.relative_time for row in mine]
        axes.plot(k_values, times, color=colour(scheme), label=scheme, marker="o", markersize=4)
    best = min(rows, key=lambda row: row.relative_time)
    axes.plot(best.k, best.relative_time, "*", color=colour(best.scheme), markersize=16, zorder=5)
    with_k = "" if best.scheme == "full" else f" with K = {best.k:,}"
    axes.axhline(1, color="0.7", linewidth=0.8, linestyle="--", zorder=0)
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="clients drawn per round, K",
        ylabel=f"predicted time to the target\n(uniform with K = {k:,} is 1)",
        title=f"Best (star): {best.scheme}{with_k}, {best.relative_time:.3g}",
    )
    plain_numbers(axes.xaxis)
    plain_numbers(axes.yaxis)
    axes.grid(alpha=0.25)
    axes.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False)
    return figure


def check_picture(path: Path) -> None:
    """Say why no picture can be written there, before any work is done."""
    if path.suffix.lower() not in PICTURES:
        raise InputError(
            f"{path}: unknown kind of picture '{path.suffix}'; end the name in .png, .pdf or .svg"
        )
    new_figure(1, 1)


def save(figure: Figure, path: Path) -> None:
    """Write the figure whole or not at all, in the format of the file's ending."""
    check_picture(path)
    write_whole(path, lambda temporary: figure.savefig(temporary, dpi=150))


def plain_numbers(axis: Axis, *, steps: tuple[float, ...] | None = None) -> None:
    """Label a logarithmic axis 0.5, 1, 2, 5, 10: powers of ten overlap on a short one."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    if steps is None:
        low, high = axis.get_view_interval()
        steps = (1.0, 2.0, 5.0) if high / low < 2_000 else (1.0,)
    axis.set_major_locator(LogLocator(subs=steps))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axis.set_minor_formatter(NullFormatter())


def draw_points(
    axes: Axes, times: FloatArray, q: FloatArray, share: FloatArray, shown: IntArray, **style: Any
) -> PathCollection:
    """Draw the probabilities of the clients shown, coloured by their share, and a line at 1/N."""
    style |= {"c": share[shown], "cmap": "viridis", "edgecolors": "none"}
    points = axes.scatter(times[shown], q[shown], **style)
    axes.axhline(1 / q.size, color="0.5", linewidth=0.8, linestyle="--", zorder=0)
    return points


def label(
    axes: Axes, text: str, at: Place, shift: Place, *, along: Literal["x", "y"] = "y", **style: Any
) -> None:
    """Write beside a line: `at` counts along one axis, and as a share of the other."""
    place = axes.get_yaxis_transform() if along == "y" else axes.get_xaxis_transform()
    style |= {"textcoords": "offset points", "fontsize": "small"}
    axes.annotate(text, at, shift, xycoords=place, **style)


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure, or say which extra brings Matplotlib."""
    with needs("figures need Matplotlib", "report"):
        from matplotlib.figure import Figure
    return Figure(figsize=(width, height), layout="constrained")
