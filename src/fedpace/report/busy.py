"""How busy the clients of a round are: while they work, and while they wait for the slowest."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from fedpace.report.figures import colour, new_figure, pale
from fedpace.report.intervals import Interval, mean_interval
from fedpace.report.measured import how_measured
from fedpace.report.plots import Plot, blank_layout, numbers, trace_of
from fedpace.report.setups import Setup
from fedpace.report.study_figures import finish
from fedpace.report.titles import title_of
from fedpace.studies.store import StoredRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "How busy the clients of a round are"
LABEL = "time at work in a round, %"
NOTE = (
    "Σ seconds of the clients / (clients that answered × seconds of the round), mean over the "
    "rounds of training, pilots left out, and over seeds; without a barrier, Σ seconds of the "
    "clients / (clients to be at work × seconds). Whiskers: 95 % interval over seeds."
)
# Of a bar, where the distance of bars is 1.
THICKNESS = 0.7


def busy_share(run: StoredRun) -> float:
    """Return the mean part of a round during which a drawn client works; NaN without rounds.

    Σ_i t_i / (K t_round) of each round of training, over the K clients that answered, each for t_i.
    Without a barrier, Σ_i t_i / (C t) over the whole run, with C clients to be at work: what was
    under way at the end is not in it.
    """
    if run.study.training.asynchronous:
        return _busy_slots(run)
    rows = [
        row
        for row in run.history.rows
        if not row.phase.startswith("pilot") and row.clients.size and row.round_seconds > 0
    ]
    each = [row.client_seconds.sum() / (row.clients.size * row.round_seconds) for row in rows]
    return float(np.mean(each)) if each else math.nan


def _busy_slots(run: StoredRun) -> float:
    rows = run.history.rows
    busy = sum(float(row.client_seconds.sum() + row.missing_seconds.sum()) for row in rows)
    seconds = rows[-1].seconds - sum(row.waiting_seconds for row in rows)
    return min(busy / (run.study.training.slots * seconds), 1.0) if seconds > 0 else math.nan


def shares(setup: Setup) -> dict[str, Interval]:
    """Return each scheme's share in percent, with its interval over seeds, where there is one."""
    found = {
        scheme: [100 * share for run in setup.of(scheme) if math.isfinite(share := busy_share(run))]
        for scheme in setup.schemes
    }
    return {scheme: mean_interval(each) for scheme, each in found.items() if each}


def busy_figure(setup: Setup) -> Figure:
    """Draw a bar per scheme, with a whisker and its number."""
    shown = shares(setup)
    figure = new_figure(7.2, 1.7 + 0.35 * len(shown))
    axes = figure.add_subplot()
    for at, (scheme, share) in enumerate(shown.items()):
        # Pale, so that a whisker is seen on it.
        axes.barh(at, share.value, height=THICKNESS, color=pale(scheme), edgecolor=colour(scheme))
        if math.isfinite(share.low):
            axes.plot([share.low, share.high], [at, at], color="0.25", linewidth=1.2, marker="|",
                      markersize=7)  # fmt: skip
        axes.annotate(f"{share.value:.0f} %", (1.01, at), xycoords=axes.get_yaxis_transform(),
                      va="center", fontsize="small", annotation_clip=False)  # fmt: skip
    axes.set_yticks(range(len(shown)), list(shown))
    axes.tick_params(axis="y", length=0)
    # The first scheme on top; a whisker beyond what a share can be is cut.
    axes.set(
        xlabel=LABEL, title=title_of(setup.study), xlim=(0, 100), ylim=(len(shown) - 0.4, -0.6)
    )
    axes.set_axisbelow(True)
    wrapped = NOTE.replace(", mean over", ",\nmean over")
    finish(figure, axes, note=f"{wrapped}\n{how_measured(setup.study)}".rstrip())
    axes.grid(visible=False, axis="y")
    return figure


def busy_plot(setup: Setup) -> Plot:
    """Return a bar per scheme, with a whisker and its number, for the page."""
    shown = shares(setup)
    layout = blank_layout(LABEL, "")
    layout["xaxis"] |= {"range": [0, 100]}
    layout["yaxis"] |= {
        "tickmode": "array",
        "tickvals": list(range(len(shown))),
        "ticktext": list(shown),
        "range": [len(shown) - 0.4, -0.6],
        "showgrid": False,
    }
    layout["margin"]["r"] = 48
    layout["hovermode"] = "closest"
    data = [part for at, each in enumerate(shown.items()) for part in _traces(at, *each)]
    return {"data": data, "layout": layout}


def _traces(at: int, scheme: str, share: Interval) -> list[Plot]:
    known = math.isfinite(share.low)
    interval = f"<br>95 % interval {share.low:.1f} to {share.high:.1f} %" * known
    bar = trace_of(
        scheme,
        x=numbers([share.value]),
        y=[at],
        width=THICKNESS,
        marker={"color": pale(scheme), "line": {"color": colour(scheme), "width": 1}},
        error_x={"type": "data", "array": numbers([share.high - share.value]), "thickness": 1.2,
                 "color": "#444", "visible": known},
        hovertemplate=f"{share.value:.1f} %, {share.seeds} seeds{interval}",
    )  # fmt: skip
    number = trace_of(
        scheme,
        x=[100],
        y=[at],
        mode="text",
        text=[f"\N{NO-BREAK SPACE}{share.value:.0f} %"],
        textposition="middle right",
        cliponaxis=False,
        hoverinfo="skip",
    )
    return [bar | {"type": "bar", "orientation": "h"}, number]
