"""Figures of a study, with Matplotlib: curves over seeds, probabilities, sensitivity to c."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpace.checks import FloatArray, IntArray
from fedpace.report.arrivals import sustains
from fedpace.report.curves import Abscissa, Ordinate, Panel, panel, shows_accuracy
from fedpace.report.figures import colour, draw_points, label, new_figure, plain_numbers
from fedpace.report.measured import how_measured
from fedpace.report.sensitivity import (
    Sensitivity,
    baseline_seconds,
    estimate_note,
    places,
    sensitivities,
)
from fedpace.report.setups import NO_BARRIER, Setup, Sweep, optimising
from fedpace.report.summary import BASELINE, Summary
from fedpace.report.titles import title_of
from fedpace.studies.store import StoredRun
from fedpace.studies.study import Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Told apart by more than colour, in print too.
DASHES = {
    "weighted": "--",
    "statistical": "-.",
    "optimal-max": (0, (6, 1.5)),
    "optimal-tiers": (0, (3, 1, 1, 1, 1, 1)),
    "optimal-mean-no-pilots": (0, (1, 1)),
}
# The three figures of a setup: file name, ordinate, abscissa.
CURVES: tuple[tuple[str, Ordinate, Abscissa], ...] = (
    ("loss-seconds", "loss", "seconds"),
    ("accuracy-seconds", "accuracy", "seconds"),
    ("loss-rounds", "loss", "round"),
)
LABELS = {
    "loss": "global training loss",
    "accuracy": "test accuracy, %",
    "seconds": "wall-clock time, s",
    "round": "round",
}
BAND_NOTE = "Lines: mean over seeds. Bands: central 80 % of the runs."
TARGET_NOTE = " Dots: mean first arrival at the target"
GOING_ON = "; runs go on until it is sustained"
SENSITIVITY_NOTE = (
    "Points: mean over seeds, bars: its 95 % interval. "
    "The star's bar: central 80 % of the estimates."
)
# More points than this only make one blob, and a page that is slow to open.
MOST_CLIENTS = 5_000


def shown_curves(setup: Setup) -> list[tuple[str, Ordinate, Abscissa]]:
    """Return which of the three figures there is something to draw for."""
    accuracy = shows_accuracy(setup)
    return [each for each in CURVES if accuracy or each[1] != "accuracy"]


def target_note(study: Study) -> str:
    """Return what the dots of a curve mean, and why it goes on behind them."""
    return "" if study.stop.loss is None else f"{TARGET_NOTE}{GOING_ON * sustains(study)}."


def curve_figure(summary: Summary, y: Ordinate, x: Abscissa) -> Figure:
    """Draw every scheme's mean and band, the target, and where pilots end."""
    figure = new_figure(7.2, 4.4)
    axes = figure.add_subplot()
    shown = panel(summary, y, x)
    for scheme, line in shown.curves.items():
        mine, dash = colour(scheme), _dash(scheme)
        axes.plot(line.x, line.mean, color=mine, linestyle=dash, linewidth=1.6, label=scheme)
        axes.fill_between(line.x, line.low, line.high, color=mine, alpha=0.15, linewidth=0)
    axes.set(xlabel=LABELS[x], ylabel=LABELS[y], title=title_of(summary.setup.study))
    if y == "loss":
        axes.set_yscale("log")
        plain_numbers(axes.yaxis, steps=(1.0, 1.5, 2.0, 3.0, 5.0, 7.0))
    if math.isfinite(shown.target):
        _draw_target(axes, shown, above=y == "accuracy")
    for end in shown.pilots:
        axes.axvline(end, color="0.55", linewidth=0.9, linestyle=":", zorder=1)
        label(axes, "pilots end", (end, 0.99), (3, 0), along="x", va="top", color="0.35")
    axes.set_xlim(left=0)  # last, for it ends the search for a right end that shows everything
    note = BAND_NOTE + target_note(summary.setup.study) * (y == "loss")
    finish(figure, axes, note=f"{note}\n{how_measured(summary.setup.study)}".rstrip())
    return figure


def chances_figure(setup: Setup) -> Figure:
    """Draw the probabilities of each optimising scheme against time, coloured by importance."""
    shown = optimising(setup)
    figure = new_figure(3.3 * len(shown) + 1.2, 3.9)
    from matplotlib.colors import LogNorm  # now that it is known to be there

    panels = figure.subplots(1, len(shown), sharex=True, sharey=True, squeeze=False)[0]
    shares = [relative_importance(run) for _, run, _ in shown]
    norm = LogNorm(min(map(np.min, shares)), max(map(np.max, shares)))  # one for all panels
    for axes, share, (scheme, run, q) in zip(panels, shares, shown, strict=True):
        clients = drawn_clients(share)
        points = draw_points(axes, run.profile.times, q, share, clients, s=26, norm=norm)
        axes.set(xscale="log", yscale="log", xlabel="round time of the client, s")
        axes.set_title(chances_title(scheme, run), fontsize="medium", loc="left")
        axes.grid(alpha=0.2)
    panels[0].set_ylabel("probability per draw, q")
    label(panels[0], "uniform, 1/N", (0.02, 1 / q.size), (0, 3), color="0.35")
    bar = figure.colorbar(points, ax=panels.tolist(), label="importance p·G, mean = 1")
    plain_numbers(panels[0].xaxis, steps=(1.0,))
    plain_numbers(panels[0].yaxis, steps=(1.0,))
    plain_numbers(bar.ax.yaxis, steps=(1.0, 2.0, 5.0))
    figure.suptitle(title_of(setup.study), fontsize="medium")
    return figure


def chances_title(scheme: str, run: StoredRun) -> str:
    """Return whose probabilities are drawn, and of how many clients."""
    few = f", {MOST_CLIENTS:,} of {run.profile.n:,} clients" * (run.profile.n > MOST_CLIENTS)
    return f"{scheme}, seed {run.seed}{few}"


def drawn_clients(share: FloatArray) -> IntArray:
    """Return the clients to draw, the most important last, on top; of very many, some."""
    order = np.argsort(share)
    if order.size <= MOST_CLIENTS:
        return order
    some = np.random.default_rng(0).choice(order.size, MOST_CLIENTS, replace=False)
    return order[np.sort(some)]


def relative_importance(run: StoredRun) -> FloatArray:
    """Return p_i G_i relative to its mean over the clients."""
    return np.asarray(run.profile.importance / run.profile.importance.mean())


def sensitivity_figure(sweep: Sweep) -> Figure:
    """Draw time to the target against c/S_0, with what was estimated marked by a star."""
    figure = new_figure(7.2, 4.4)
    axes = figure.add_subplot()
    lines = sensitivities(sweep)
    for index, line in enumerate(lines):
        # Beside one another, so that no bar hides another.
        _draw_sensitivity(axes, sweep, line, 1.05 ** (index - (len(lines) - 1) / 2))
    seconds = baseline_seconds(sweep).value
    if math.isfinite(seconds):
        axes.axhline(seconds, color=colour(BASELINE), linestyle=":", label=BASELINE)
    axes.set(xscale="log", xlabel="c / S₀, given", ylabel="time to the target, s")
    axes.set_ylim(bottom=0)
    axes.set_xticks(places(sweep.values), [f"{value:g}" for value in sweep.values])
    axes.minorticks_off()
    axes.set_title(f"{title_of(sweep.members[0].study)}\n{estimate_note(sweep)}".strip())
    finish(figure, axes, note=SENSITIVITY_NOTE)
    return figure


def _draw_target(axes: Axes, shown: Panel, *, above: bool) -> None:
    place, shift = (0.99, shown.target), (0, 3 if above else -3)
    axes.axhline(shown.target, color="0.3", linewidth=0.9, linestyle=(0, (6, 3)), zorder=1)
    va = "bottom" if above else "top"
    label(axes, shown.target_text, place, shift, ha="right", va=va, color="0.2")
    axes.margins(y=0.1)
    for scheme, mean in shown.arrivals.items():
        axes.plot(mean, shown.target, "o", color=colour(scheme), markersize=6,
                  markeredgecolor="white", zorder=4)  # fmt: skip


def _draw_sensitivity(axes: Axes, sweep: Sweep, line: Sensitivity, aside: float) -> None:
    mine = colour(line.scheme)
    x = [aside * place for place in places(sweep.values)]
    y = [point.value for point in line.seconds]
    ends = np.array([(point.value - point.low, point.high - point.value) for point in line.seconds])
    # A point without an interval has no bar.
    axes.errorbar(x, y, yerr=np.nan_to_num(ends.T), color=mine, marker="o", markersize=4,
                  linewidth=1.4, capsize=3, label=line.scheme,
                  linestyle=_dash(line.scheme))  # fmt: skip
    if line.star:
        low, middle, high = line.star
        axes.errorbar(middle, line.estimated.value, xerr=[[middle - low], [high - middle]],
                      color=mine, marker="*", markersize=15, markeredgecolor="black",
                      capsize=4, zorder=5)  # fmt: skip


def finish(figure: Figure, axes: Axes, *, note: str) -> None:
    """Give a figure what all have: a small title, a grid, a legend beside it, a note below."""
    axes.set_title(axes.get_title(), fontsize="medium")
    axes.grid(alpha=0.2)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    figure.supxlabel(note, fontsize="x-small", color="0.35")


def _dash(scheme: str) -> Any:
    return DASHES.get(scheme, ":" if NO_BARRIER in scheme else "-")
