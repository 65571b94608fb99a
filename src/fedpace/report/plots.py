"""Figures of the page, as Plotly understands them: plain dictionaries of data and layout."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from fedpace.checks import FloatArray
from fedpace.report.curves import Abscissa, Curve, Ordinate, panel
from fedpace.report.figures import colour
from fedpace.report.sensitivity import (
    Sensitivity,
    baseline_seconds,
    places,
    sensitivities,
    star_places,
)
from fedpace.report.setups import Setup, Sweep, optimising
from fedpace.report.study_figures import (
    LABELS,
    chances_title,
    drawn_clients,
    relative_importance,
)
from fedpace.report.summary import BASELINE, Summary
from fedpace.studies.store import StoredRun

Plot = dict[str, Any]
COLOUR_TICKS = (0.01, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)
COLOUR_BAR = {
    "title": {"text": "importance p·G, mean = 1", "side": "top", "font": {"size": 12}},
    "orientation": "h",
    "thickness": 10,
    "y": 1.02,
    "yanchor": "bottom",
    "tickvals": [math.log10(value) for value in COLOUR_TICKS],
    "ticktext": [f"{value:g}" for value in COLOUR_TICKS],
}
DASHES = {"weighted": "dash", "statistical": "dashdot", "optimal-max": "longdash"}
GREY = "#555"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"
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
        _mark(layout, "pilots end", x=end)
    if math.isfinite(shown.target):
        _mark(layout, shown.target_text, y=shown.target, log=y == "loss", below=y == "loss")
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
        _mark(layout, f"{BASELINE} {seconds:,.0f} s", y=seconds)
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
        line={"color": colour(scheme), "width": 2, "dash": DASHES.get(scheme, "solid")},
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
    # Plotly has no logarithmic colours: logarithms are coloured, and labelled with the numbers.
    marker = {
        "size": 8,
        "color": numbers(np.log10(share[order])),
        "colorscale": "Viridis",
        "showscale": True,
        "colorbar": COLOUR_BAR,
    }
    points = trace_of(
        scheme,
        x=numbers(run.profile.times[order]),
        y=numbers(q[order]),
        mode="markers",
        marker=marker,
        text=[f"client {i}, importance {share[i]:.3g}" for i in order.tolist()],
        hovertemplate="%{text}<br>%{x:.3g} s, q = %{y:.3g}<extra></extra>",
    )
    layout = blank_layout("round time of the client, s", "probability per draw, q")
    for axis in ("xaxis", "yaxis"):
        layout[axis] |= {"type": "log", "dtick": 1, "tickformat": "~g"}
    _mark(layout, "uniform, 1/N", y=1 / q.size, log=True)
    return {"data": [points], "layout": layout}


def _sensitivity(sweep: Sweep, line: Sensitivity) -> list[Plot]:
    seconds = line.seconds
    above = numbers(point.high - point.value for point in seconds)
    given = trace_of(
        line.scheme,
        x=numbers(places(sweep.values)),
        y=numbers(point.value for point in seconds),
        mode="lines+markers",
        line={"color": colour(line.scheme), "dash": DASHES.get(line.scheme, "solid")},
        error_y={"type": "data", "array": above, "thickness": 1},
        hovertemplate="c = %{x:.3g} S₀: %{y:,.0f} s",
    )
    if not line.chosen:
        return [given]
    low, middle, high = star_places(sweep, line)
    star = trace_of(
        line.scheme,
        x=[middle],
        y=numbers([line.estimated.value]),
        mode="markers",
        marker={
            "symbol": "star",
            "size": 16,
            "color": colour(line.scheme),
            "line": {"color": "black", "width": 1},
        },
        error_x={"type": "data", "array": [high - middle], "arrayminus": [middle - low]},
        hovertemplate="c estimated, median %{x:.3g} S₀: %{y:,.0f} s",
    )
    return [given, star]


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


def _mark(
    layout: Plot,
    text: str,
    *,
    x: float | None = None,
    y: float | None = None,
    log: bool = False,
    below: bool = False,
) -> None:
    """Draw a line across the plot at x or y, with a label."""
    line = {"color": GREY, "width": 1, "dash": "dot" if y is None else "dash"}
    label: Plot = {"text": text, "showarrow": False, "font": {"size": 12, "color": GREY}}
    if y is None:
        place: Plot = {"x0": x, "x1": x, "y0": 0, "y1": 1, "yref": "paper"}
        label |= {"x": x, "y": 1, "yref": "paper", "xanchor": "left", "yanchor": "top"}
    else:
        place = {"y0": y, "y1": y, "x0": 0, "x1": 1, "xref": "paper"}
        # On a logarithmic axis Plotly places lines by value, but labels by logarithm.
        height = math.log10(y) if log else y
        label |= {"y": height, "yanchor": "top" if below else "bottom"}
        label |= {"x": 1, "xref": "paper", "xanchor": "right"}
    layout["shapes"].append({"type": "line", "line": line, "layer": "below", **place})
    layout["annotations"].append(label)


def numbers(values: Iterable[float]) -> list[float | None]:
    """Return numbers with six digits, more than a screen shows; None where there is none."""
    return [float(f"{value:.6g}") if math.isfinite(value) else None for value in values]
