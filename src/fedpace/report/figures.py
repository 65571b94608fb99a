"""Figures, with Matplotlib; nothing global is touched."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedpace.checks import FloatArray
from fedpace.errors import InputError, MissingExtraError
from fedpace.files import write_whole
from fedpace.profile import Profile
from fedpace.sampling.plan import Prediction

if TYPE_CHECKING:
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

# More points than this only make one blob, and a vector file of a hundred megabytes.
MOST_POINTS = 20_000
PICTURES = (".png", ".pdf", ".svg")
# One colour per scheme, the same in every figure; from Okabe and Ito, told apart by all eyes.
COLOURS = {
    "full": "#000000",
    "uniform": "#999999",
    "weighted": "#56B4E9",
    "statistical": "#009E73",
    "optimal-mean": "#E69F00",
    "optimal-max": "#D55E00",
}
# For schemes that are not among the compared ones; the last of Okabe and Ito's colours.
OTHER_COLOUR = "#CC79A7"
# A colour's lighter shade is mixed with so much white.
PALE = 0.6


def colour(scheme: str) -> str:
    """Return a scheme's colour, the same in every figure."""
    return COLOURS.get(scheme, OTHER_COLOUR)


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
    shown = np.arange(profile.n)
    note = ""
    if profile.n > MOST_POINTS:
        shown = np.random.default_rng(0).choice(profile.n, MOST_POINTS, replace=False)
        note = f"\n({MOST_POINTS:,} of the clients shown)"
    importance = profile.importance
    share = importance / importance.sum() * profile.n
    # The most important last, on top.
    shown = shown[np.argsort(share[shown])]
    points = axes.scatter(
        profile.times[shown],
        q[shown],
        c=share[shown],
        norm="log",
        cmap="viridis",
        s=max(6.0, 36.0 * (100 / max(shown.size, 100)) ** 0.5),
        edgecolors="none",
        rasterized=shown.size > 2_000,
    )
    axes.axhline(1 / profile.n, color="0.5", linewidth=0.8, linestyle="--", zorder=0)
    axes.annotate(
        "uniform, 1/N",
        xy=(1, 1 / profile.n),
        xycoords=axes.get_yaxis_transform(),
        xytext=(-4, 3),
        textcoords="offset points",
        ha="right",
        color="0.4",
        fontsize="small",
    )
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
        axes.plot(
            [row.k for row in mine],
            [row.relative_time for row in mine],
            color=COLOURS[scheme],
            label=scheme,
            marker="o",
            markersize=4,
        )
    best = min(rows, key=lambda row: row.relative_time)
    axes.plot(best.k, best.relative_time, "*", color=COLOURS[best.scheme], markersize=16, zorder=5)
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


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure, or say which extra brings Matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError(
            "figures need Matplotlib; install it with: pip install 'fedpace[report]'"
        ) from None
    return Figure(figsize=(width, height), layout="constrained")
