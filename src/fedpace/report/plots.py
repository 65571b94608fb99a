"""Figures of the page, as Plotly understands them: plain dictionaries of data and layout."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from fedpace.checks import FloatArray
from fedpace.report.curves import Abscissa, Curve, Ordinate, panel
from fedpace.report.figures import colour
from fedpace.report.sensitivity import Sensitivity, baseline_seconds, places, sensitivities
from fedpace.report.setups import NO_BARRIER, Setup, Sweep, optimising
from fedpace.report.study_figures import LABELS, chances_title, drawn_clients, relative_importance
from fedpace.report.summary import BASELINE, Summary
from fedpace.studies.store import StoredRun

Plot = dict[str, Any]
COLOUR_TICKS = (0.01, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)
# Plotly has no logarithmic colours: logarithms are coloured, and labelled with the numbers.
COLOUR_BAR = {
    "title": {"text": "importance p·G, mean = 1", "side": "top", "font": {"size": 12}},
    "orientation": "h",
    "thickness": 10,
    "y": 1.02,
    "yanchor": "bottom",
    "tickvals": [math.log10(value) for value in COLOUR_TICKS],
    "ticktext": [f"{value:g}" for value in COLOUR_TICKS],
}
COLOURED = {"size": 8, "colorscale": "Viridis", "showscale": True, "colorbar": COLOUR_BAR}
DASHES = {
    "weighted": "dash",
    "statistical": "dashdot",
    "optimal-max": "longdash",
    "optimal-tiers": "longdashdot",
    "optimal-mean-no-pilots": "dot",
}
GREY = "#777"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"
# Of shapes, and of letters to the right of their x.
FULL_HEIGHT = {"y0": 0, "y1": 1, "yref": "paper", "layer": "below"}
TOP = {"y": 1, "yref": "paper", "xanchor": "left", "yanchor": "top"}
# Up to so many decades a logarithmic axis has room for 1, 2 and 5.
FEW_DECADES = 3
# Where a logarithmic axis of losses has numbers.
TICKS = [digit * 10.0**power for power in range(-4, 5) for digit in (1, 1.5, 2, 3, 5, 7)]


def curve_plot(summary: Summary, y: Ordinate, x: Abscissa) -> Plot:
    """Return every scheme's mean and band, the target, and where pilots end."""
    shown = panel(summary, y, x)
    form = ".1f" if y == "accuracy" else ".3f"
    data = [trace for name, line in shown.curves.items() for trace in _curve(name, line, form)]
    data += [_arrival(name, mean, shown.target) for name, mean in shown.arrivals.items()]
    layout = blank_layout(LABELS[x], LABELS[y])
    layout["xaxis"] |= {"rangemode": "tozero", "hoverformat": ",.0f"}
    layout["hovermode"] = "x unified"
    if y == "loss":
        layout["yaxis"] |= {"type": "log", "tickmode": "array", "tickvals": TICKS}
    for end in shown.pilots:
        draw_upright(layout, end, color=GREY, width=1, dash="dot")
        write(layout, "pilots end", x=end, **TOP)
    if math.isfinite(shown.target):
        draw_level(layout, shown.target_text, shown.target, below=y == "loss")
    return {"data": data, "layout": layout}


def chances_plots(setup: Setup) -> list[tuple[str, Plot]]:
    """Return, for each optimising scheme, its probabilities against time and importance."""
    return [
        (f"Probabilities of {chances_title(scheme, run)}", _chances(scheme, run, q))
        for scheme, run, q in optimising(setup)
    ]


def sensitivity_plot(sweep: Sweep) -> Plot:
    """Return time to the target against c/S_0, with what was estimated marked by a star."""
    data = [trace for line in sensitivities(sweep) for trace in _sensitivity(sweep, line)]
    layout = blank_layout("c / S₀, given", "time to the target, s")
    ticks = {"tickvals": places(sweep.values), "ticktext": [f"{value:g}" for value in sweep.values]}
    layout["xaxis"] |= {"type": "log", "tickmode": "array", **ticks}
    layout["yaxis"] |= {"rangemode": "tozero"}
    seconds = baseline_seconds(sweep).value
    if math.isfinite(seconds):
        draw_level(layout, f"{BASELINE} {seconds:,.0f} s", seconds)
    return {"data": data, "layout": layout}


def _curve(scheme: str, line: Curve, form: str) -> list[Plot]:
    band = trace_of(
        scheme,
        x=numbers([*line.x, *line.x[::-1]]),
        y=numbers([*line.low, *line.high[::-1]]),
        fill="toself",
        fillcolor=f"{colour(scheme)}26",  # 15 % opaque
        line={"width": 0},
        mode="lines",
        hoverinfo="skip",
    )
    mean = trace_of(
        scheme,
        x=numbers(line.x),
        y=numbers(line.mean),
        mode="lines",
        line={"color": colour(scheme), "width": 2, "dash": dash(scheme)},
        hovertemplate=f"%{{y:{form}}}",
    )
    return [band, mean]


def _arrival(scheme: str, mean: float, loss: float) -> Plot:
    return trace_of(
        scheme,
        x=numbers([mean]),
        y=[loss],
        mode="markers",
        marker={"color": colour(scheme), "size": 9, "line": {"color": "white", "width": 1}},
        hoverinfo="skip",
    )


def _chances(scheme: str, run: StoredRun, q: FloatArray) -> Plot:
    share = relative_importance(run)
    order = drawn_clients(share)
    points = trace_of(
        scheme,
        x=numbers(run.profile.times[order]),
        y=numbers(q[order]),
        mode="markers",
        marker={**COLOURED, "color": numbers(np.log10(share[order]))},
        text=[f"client {i}, importance {share[i]:.3g}" for i in order.tolist()],
        hovertemplate="%{text}<br>%{x:.3g} s, q = %{y:.3g}<extra></extra>",
    )
    layout = blank_layout("round time of the client, s", "probability per draw, q")
    for axis, values in (("xaxis", run.profile.times[order]), ("yaxis", q[order])):
        layout[axis] |= {"type": "log", **log_ticks(values)}
    draw_level(layout, "uniform, 1/N", 1 / q.size)
    return {"data": [points], "layout": layout}


def log_ticks(values: FloatArray) -> Plot:
    """Return where a logarithmic axis has numbers: within few decades, not at powers of ten only.

    >>> log_ticks(np.array([0.02, 0.06]))["tickvals"]
    [0.01, 0.02, 0.05, 0.1]
    """
    fine = values[np.isfinite(values) & (values > 0)]
    if not fine.size:
        return {}
    low, high = math.floor(math.log10(fine.min())), math.ceil(math.log10(fine.max()))
    digits = (1, 2, 5) if high - low <= FEW_DECADES else (1,)
    ticks = [digit * 10.0**power for power in range(low, high) for digit in digits]
    return {"tickmode": "array", "tickvals": [*ticks, 10.0**high], "tickformat": "~g"}


def _sensitivity(sweep: Sweep, line: Sensitivity) -> list[Plot]:
    mine = colour(line.scheme)
    above = numbers(point.high - point.value for point in line.seconds)
    given = trace_of(
        line.scheme,
        x=numbers(places(sweep.values)),
        y=numbers(point.value for point in line.seconds),
        mode="lines+markers",
        line={"color": mine, "dash": dash(line.scheme)},
        error_y={"type": "data", "array": above, "thickness": 1},
        hovertemplate="c = %{x:.3g} S₀: %{y:,.0f} s",
    )
    if not line.star:
        return [given]
    low, middle, high = line.star
    edge = {"color": "black", "width": 1}
    star = trace_of(
        line.scheme,
        x=[middle],
        y=numbers([line.estimated.value]),
        mode="markers",
        marker={"symbol": "star", "size": 16, "color": mine, "line": edge},
        error_x={"type": "data", "array": [high - middle], "arrayminus": [middle - low]},
        hovertemplate="c estimated, median %{x:.3g} S₀: %{y:,.0f} s",
    )
    return [given, star]


def dash(scheme: str) -> str:
    """Return how a scheme's lines are broken, in Plotly's words."""
    return DASHES.get(scheme, "dot" if NO_BARRIER in scheme else "solid")


def trace_of(scheme: str, **more: Any) -> Plot:
    """Return a trace that the page shows or hides with its scheme."""
    return {"type": "scatter", "name": scheme, "legendgroup": scheme, **more}


def blank_layout(x: str, y: str) -> Plot:
    """Return the layout that all plots share, with these titles of the axes."""
    axis = {"gridcolor": "#eee", "linecolor": "#999", "zeroline": False, "automargin": True}
    return {
        "xaxis": {**axis, "title": {"text": x}},
        "yaxis": {**axis, "title": {"text": y}},
        "font": {"family": FONT, "size": 13, "color": "#222"},
        "margin": {"l": 50, "r": 12, "t": 24, "b": 44},
        "showlegend": False,
        "plot_bgcolor": "white",
        "paper_bgcolor": "white",
        "shapes": [],
        "annotations": [],
    }


def draw_level(layout: Plot, text: str, y: float, *, below: bool = False) -> None:
    """Draw a line across the plot at y, with a label at its right end."""
    line = {"color": GREY, "width": 1, "dash": "dash"}
    ends = {"y0": y, "y1": y, "x0": 0, "x1": 1, "xref": "paper"}
    layout["shapes"].append({"type": "line", "line": line, "layer": "below", **ends})
    # On a logarithmic axis Plotly places lines by value, but labels by logarithm.
    height = math.log10(y) if layout["yaxis"].get("type") == "log" else y
    anchors = {"xanchor": "right", "yanchor": "top" if below else "bottom"}
    write(layout, text, x=1, xref="paper", y=height, **anchors)


def draw_upright(layout: Plot, x: float | None, **line: Any) -> None:
    """Draw a line from the bottom of the plot to its top."""
    layout["shapes"].append({"type": "line", "line": line, "x0": x, "x1": x, **FULL_HEIGHT})


def write(layout: Plot, text: str, **place: Any) -> None:
    """Write small grey letters into the plot."""
    font = {"size": 12, "color": GREY}
    layout["annotations"].append({"text": text, "showarrow": False, "font": font, **place})


def numbers(values: Iterable[float], *, digits: int = 6) -> list[float | None]:
    """Return numbers with six digits, more than a screen shows; None where there is none."""
    return [float(f"{value:.{digits}g}") if math.isfinite(value) else None for value in values]
