"""Figures of the page, as Plotly understands them: plain dictionaries of data and layout."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedpace.report import drawing as made
from fedpace.report.drawing import Drawing, Ends, Mark, Numbers

Plot = dict[str, Any]
COLOUR_TICKS = (0.01, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)
# Plotly has no logarithmic colours: logarithms are coloured, and labelled with the numbers.
COLOUR_BAR = {
    "orientation": "h",
    "thickness": 10,
    "y": 1.02,
    "yanchor": "bottom",
    "tickvals": [math.log10(value) for value in COLOUR_TICKS],
    "ticktext": [f"{value:g}" for value in COLOUR_TICKS],
}
SYMBOLS = {"dot": "circle", "star": "star", "cross": "x-thin", "end": "line-ns"}
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"
# Of a point, which files are measured in.
PIXELS = 4 / 3
# Of shapes, and of letters to the right of their x.
FULL_HEIGHT = {"y0": 0, "y1": 1, "yref": "paper", "layer": "below"}
TOP = {"y": 1, "yref": "paper", "xanchor": "left", "yanchor": "top"}


def plot_of(drawing: Drawing) -> Plot:
    """Return a drawing's data and layout; a dark page has other colours for some, see page.js."""
    layout: Plot = {
        "xaxis": _axis(drawing.x),
        "yaxis": _axis(drawing.y),
        "font": {"family": FONT, "size": 13, "color": "#222222"},
        "margin": {"l": 50, "r": 12, "t": 24, "b": 44},
        "showlegend": False,
        "plot_bgcolor": "#ffffff",
        "paper_bgcolor": "#ffffff",
        "barmode": "overlay",
        "hovermode": "x unified" if drawing.along_x else "closest",
        "shapes": [],
        "annotations": [],
    }
    data = [trace for mark in drawing.marks for trace in _drawn(mark, drawing, layout)]
    if len({trace["legendgroup"] for trace in data}) == 1:  # whose it is, the title says
        for trace in data:
            if "hovertemplate" in trace:
                trace["hovertemplate"] += "<extra></extra>"
    return {"data": data, "layout": layout}


def numbers(values: Iterable[float], *, digits: int = 6) -> list[float | None]:
    """Return numbers with six digits, more than a screen shows; None where there is none."""
    return [float(f"{value:.{digits}g}") if math.isfinite(value) else None for value in values]


def _drawn(mark: Mark, drawing: Drawing, layout: Plot) -> list[Plot]:
    """Return a mark's traces; what is not to be hidden goes into the layout."""
    match mark:
        case made.Line():
            return _line(mark, drawing.scale)
        case made.Bars():
            return [_bars(mark)]
        case made.Letters():
            layout["margin"]["r"] += 36 * mark.right
            return [_letters(mark)]
        case made.Level():
            _draw_level(layout, mark)
        case made.Uprights():
            _draw_uprights(layout, mark)
        case made.Shade():
            start, end = numbers([mark.start, mark.end])
            shape = {"type": "rect", "x0": start, "x1": end, "fillcolor": mark.colour}
            layout["shapes"].append({**shape, "line": {"width": 0}, **FULL_HEIGHT})
    return []


def _axis(axis: made.Axis) -> Plot:
    plot: Plot = {
        "title": {"text": axis.title},
        "gridcolor": "#eeeeee",
        "linecolor": "#999999",
        "zeroline": False,
        "automargin": True,
        "showgrid": axis.grid,
        "type": "log" if axis.log else "linear",
    }
    low, high = axis.ends
    if low is not None and high is not None:
        plot["range"] = numbers(math.log10(end) if axis.log else end for end in (low, high))
    elif low == 0:
        plot |= {"rangemode": "tozero", "hoverformat": ",.0f"}
    if axis.ticks:
        texts = list(map(_safe, axis.ticks.values()))
        plot |= {"tickmode": "array", "tickvals": list(axis.ticks), "ticktext": texts}
        if len(texts) > 15:
            plot |= {"tickfont": {"size": 9}}
            plot["title"]["standoff"] = 12
    return plot


def _trace(mark: Mark, **more: Any) -> Plot:
    """Return a trace that the page shows or hides with its scheme."""
    plot: Plot = {"type": "scatter", "name": _safe(mark.label or mark.scheme)}
    plot |= {"legendgroup": mark.scheme, **more}
    if not mark.hover:
        return plot | {"hoverinfo": "skip"}
    told = [[_told(part) for part in row] for row in mark.told]
    template = re.sub(r"\{(\d+)", r"{customdata[\1]", mark.hover).replace("{", "%{")
    return plot | {"hovertemplate": _safe(template)} | ({"customdata": told} if told else {})


def _told(part: float | str) -> float | str | None:
    if isinstance(part, str):
        return _safe(part)
    return part if isinstance(part, int) else numbers([part], digits=3)[0]


def _safe(text: str) -> str:
    """Return a text for letters that Plotly would take for markup."""
    return html.escape(text, quote=False).replace("\n", "<br>")


def _line(mark: made.Line, scale: str) -> list[Plot]:
    modes = ["lines"] * bool(mark.dash) + ["markers"] * bool(mark.symbol)
    line = _trace(mark, x=numbers(mark.x), y=numbers(mark.y), mode="+".join(modes))
    if mark.dash:
        width = round(mark.width * PIXELS, 2)
        line["line"] = {"color": mark.colour, "width": width, "dash": mark.dash}
    if mark.symbol:
        line |= {"marker": _marker(mark, scale), "cliponaxis": mark.symbol != "cross"}
    for name, at, ends in (("x", mark.x, mark.x_whiskers), ("y", mark.y, mark.y_whiskers)):
        if ends is not None:
            line[f"error_{name}"] = _whiskers(at, ends)
    if mark.band is None:
        return [line]
    low, high = mark.band
    band = _trace(
        replace(mark, hover=""),
        x=numbers([*mark.x, *mark.x[::-1]], digits=4),
        y=numbers([*low, *high[::-1]], digits=3),
        fill="toself",
        fillcolor=f"{mark.colour}26",  # 15 % opaque
        line={"width": 0},
        mode="lines",
    )
    return [band, line]


def _marker(mark: made.Line, scale: str) -> Plot:
    thin = mark.symbol in ("cross", "end")  # is all edge
    edge = {"color": mark.edge or mark.colour, "width": 1.5 if thin else float(bool(mark.edge))}
    marker = {"symbol": SYMBOLS[mark.symbol], "size": round(mark.size * PIXELS, 1), "line": edge}
    if mark.values is None:
        return marker | {"color": mark.colour}
    title = {"text": scale, "side": "top", "font": {"size": 12}}
    bar = {"colorscale": "Viridis", "showscale": True, "colorbar": COLOUR_BAR | {"title": title}}
    return marker | bar | {"color": numbers(np.log10(mark.values))}


def _whiskers(at: Numbers, ends: Ends) -> Plot:
    above, below = np.subtract(ends[1], at), np.subtract(at, ends[0])
    return {"type": "data", "thickness": 1, "array": numbers(above), "arrayminus": numbers(below)}


def _bars(mark: made.Bars) -> Plot:
    edge = {"color": mark.edge, "width": mark.width} if mark.edge else {"width": 0}
    return _trace(
        mark,
        base=numbers(mark.start),
        x=numbers(np.subtract(mark.end, mark.start)),
        y=numbers(mark.at),
        width=mark.thickness,
        marker={"color": list(mark.colours) or mark.colour, "line": edge},
    ) | {"type": "bar", "orientation": "h"}


def _letters(mark: made.Letters) -> Plot:
    texts = [made.NO_BREAK * mark.right + _safe(text) for text in mark.texts]
    font = {} if mark.right else {"size": 10, "color": list(mark.colours) or mark.colour}
    return _trace(
        mark,
        x=numbers(mark.x),
        y=numbers(mark.y),
        mode="text",
        text=texts,
        textfont=font,
        textposition="middle right" if mark.right else "middle center",
        cliponaxis=not mark.right,
    )


def _draw_level(layout: Plot, mark: made.Level) -> None:
    line = {"color": mark.colour, "width": 1, "dash": "dash"}
    ends = {"y0": mark.y, "y1": mark.y, "x0": 0, "x1": 1, "xref": "paper"}
    layout["shapes"].append({"type": "line", "line": line, "layer": "below", **ends})
    # On a logarithmic axis Plotly places lines by value, but labels by logarithm.
    height = math.log10(mark.y) if layout["yaxis"]["type"] == "log" else mark.y
    anchors = {"xanchor": "right", "yanchor": "top" if mark.below else "bottom"}
    _write(layout, mark.text, x=1, xref="paper", y=height, **anchors)


def _draw_uprights(layout: Plot, mark: made.Uprights) -> None:
    line = {"color": mark.colour, "width": mark.width, "dash": mark.dash}
    places: Sequence[float | None] = numbers(mark.x)
    if mark.dash:
        layout["shapes"] += [
            {"type": "line", "line": line, "x0": x, "x1": x, **FULL_HEIGHT} for x in places
        ]
    # Rounded as the axis is: a label that begins outside of it is not shown.
    for x, text in zip(places, mark.texts, strict=False):
        _write(layout, text, x=x, **TOP)


def _write(layout: Plot, text: str, **place: Any) -> None:
    """Write small grey letters into the plot."""
    if text:
        note = {"text": _safe(text), "showarrow": False, "font": {"size": 12, "color": "#777777"}}
        layout["annotations"].append({**note, **place})
