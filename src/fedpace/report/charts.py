"""Charts in one grammar: an Altair specification serves the page and the files."""

from __future__ import annotations

import json
import math
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from fedpace.checks import FloatArray, IntArray
from fedpace.errors import InputError, needs
from fedpace.files import write_whole
from fedpace.profile import Profile
from fedpace.sampling.plan import Prediction

with needs("figures need Altair", "report"):
    import altair as alt

PICTURES = (".png", ".pdf", ".svg")
# One colour per scheme in every chart: Okabe and Ito's palette, and Tol's for the last.
COLOURS = {
    "full": "#000000",
    "uniform": "#999999",
    "weighted": "#56B4E9",
    "statistical": "#009E73",
    "optimal-mean": "#E69F00",
    "optimal-max": "#D55E00",
    "optimal-tiers": "#CC79A7",
    "optimal-independent": "#CC6677",
    "pace": "#0072B2",
    "optimal-mean-no-pilots": "#882255",
    "fedbuff": "#AA4499",
    "fedasync": "#999933",
    "pisces": "#117733",
}
# For other schemes, from Tol's palette.
OTHER_COLOURS = ("#661100", "#44AA99", "#332288", "#DDCC77")
# Lines differ by more than colour, for print and for colour-blind readers.
DASHES = {
    "weighted": [6, 3],
    "statistical": [8, 2, 2, 2],
    "optimal-max": [11, 3],
    "optimal-tiers": [9, 2, 2, 2, 2, 2],
    "optimal-independent": [4, 2],
    "optimal-mean-no-pilots": [2, 2],
}
ASYNCHRONOUS_DASH, SOLID = [3, 2], [1, 0]
GREY = "#777777"
STAR = "M0,-1L0.23,-0.32L0.95,-0.31L0.38,0.12L0.59,0.81L0,0.4L-0.59,0.81L-0.38,0.12L-0.95,-0.31L-0.23,-0.32Z"  # noqa: E501
CROSS = "M-0.7,-0.7L0.7,0.7M0.7,-0.7L-0.7,0.7"
# Share of white that is mixed into a colour for its lighter shade.
PALE = 0.6
# Room beside the values of a logarithmic axis: this part of its length, at least this factor.
MARGIN, LEAST_MARGIN = 0.05, 1.1
# Values that a logarithmic axis can show with room around them.
SMALLEST, LARGEST = 1e-280, 1e280
# Digits of its numbers, the finest for which there is room.
DIGITS: tuple[tuple[float, ...], ...] = ((1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1,))
# More points than this form one blob, and a page that is slow to open.
MOST_CLIENTS = 5_000
# Pixels of a chart in a file, and letters of its title and note in one line.
WIDTH, WIDE, PANEL = 520, 700, 230
LETTERS = 0.13
SCALE = 2
# Schemes that the legend of the page has switched off; charts leave them out.
HIDDEN = {"name": "hidden", "value": []}
SHOWN = "indexof(hidden, datum.scheme) < 0"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Liberation Sans', sans-serif"

# What the page's script uses of the bundle.
GLOBALS = "window.vegaEmbed = vegaEmbed; window.vega = vega;"

Records = list[dict[str, Any]]


@dataclass(frozen=True, eq=False, kw_only=True)
class Figure:
    """A chart with its texts and data.

    `name` is part of the file's name, `setup` the study's title. `scheme` is set where a chart
    belongs to one scheme. `legend` says that the page keeps the chart's own legend. `width` is that
    of a chart with a size of its own, for its title.
    """

    name: str
    title: str
    chart: alt.TopLevelMixin
    data: Mapping[str, Records] = field(default_factory=dict)
    setup: str = ""
    note: str = ""
    scheme: str = ""
    wide: bool = False
    legend: bool = False
    width: int = 0


def spec(figure: Figure) -> dict[str, Any]:
    """Return a figure as Vega-Lite, as wide as its place on the page, without title."""
    # Tests validate every chart against the schema of Vega-Lite; here it would take seconds.
    made: dict[str, Any] = figure.chart.to_dict(validate=False)
    made["datasets"] = made.get("datasets", {}) | dict(figure.data)
    made.pop("config", None)
    if "width" not in made:
        made |= {"width": "container", "autosize": {"type": "fit-x", "contains": "padding"}}
    made["params"] = [*made.get("params", []), HIDDEN]
    return made | {"usermeta": {"legend": figure.legend}}


def file_spec(*figures: Figure) -> dict[str, Any]:
    """Return one figure, or several of one setup beside one another, for a file."""
    first = figures[0]
    width = first.width or (WIDE if first.wide else WIDTH)
    beside = 0 if first.legend else 120  # the legend of schemes
    parts = [spec(each) for each in figures]
    data: dict[str, Records] = {}
    for at, (part, each) in enumerate(zip(parts, figures, strict=True)):
        names = {name: f"{name}-{at}" for name in each.data}
        data |= {names.get(name, name): rows for name, rows in part["datasets"].items()}
        for name in ("$schema", "datasets", "usermeta", "autosize"):
            part.pop(name, None)
        parts[at] = _rename_data(part, names)
    if len(parts) == 1:
        made = parts[0]
        if made.get("width") == "container":
            made["width"] = width
    else:
        for part, each in zip(parts, figures, strict=True):
            part |= {
                "width": PANEL,
                "title": {"text": _break_lines(each.title, PANEL), "fontSize": 12},
            }
        columns = min(len(parts), 3)
        width = columns * PANEL
        made = {"concat": parts, "columns": columns}
    heading = [first.setup] if len(parts) > 1 else [first.setup, first.title]
    lines = [line for text in heading if text for line in _break_lines(text, width + beside)]
    title = {
        "text": lines,
        "subtitle": _break_lines(first.note, 1.2 * (width + beside)),
        "anchor": "start",
    }
    return {"$schema": alt.SCHEMA_URL, **made, "title": title, "datasets": data, "config": config()}


def check_picture(path: Path) -> None:
    """Raise an error if no picture can be written there, before any work is done."""
    if path.suffix.lower() not in PICTURES:
        raise InputError(
            f"{path}: unknown kind of picture '{path.suffix}'; end the name in .png, .pdf or .svg"
        )
    with needs("figures need vl-convert", "report"):
        import vl_convert  # noqa: F401


def save(path: Path, *figures: Figure) -> None:
    """Write a figure in the format of the file's ending; several are put beside one another."""
    check_picture(path)
    save_all([path], *figures)


def save_all(paths: Iterable[Path], *figures: Figure) -> None:
    """Write a figure in several formats, laid out once."""
    import vl_convert

    # The fonts of vl-convert have no small zero: with it a text would change its typeface.
    text = json.dumps(file_spec(*figures), ensure_ascii=False).replace("₀", "0")
    svg = vl_convert.vegalite_to_svg(text)
    for path in paths:
        match path.suffix.lower():
            case ".svg":
                # A browser's font may be wider than the one by which the width was chosen.
                contents = svg.replace("<svg ", '<svg style="overflow: visible" ', 1).encode()
            case ".png":
                contents = vl_convert.svg_to_png(svg, scale=SCALE)
            case _:
                contents = vl_convert.svg_to_pdf(svg)
        write_whole(path, partial(_write_bytes, contents))


def _write_bytes(contents: bytes, path: Path) -> None:
    path.write_bytes(contents)


@lru_cache
def bundle() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script for the page."""
    with needs("the page needs vl-convert", "report"):
        import vl_convert
    # Browsers read every end of line as \n before they compute a script's hash.
    return vl_convert.javascript_bundle(GLOBALS).replace("\r\n", "\n").replace("\r", "\n")


def config(*, dark: bool = False) -> dict[str, Any]:
    """Return the style of all charts, on a light or a dark ground."""
    text, soft, line, grid, ground = (
        ("#dddddd", "#a2a7ae", "#5a6068", "#2b2f35", "#16181c")
        if dark
        else ("#222222", "#555555", "#999999", "#eeeeee", "#ffffff")
    )
    axis: dict[str, Any] = {
        "labelColor": text,
        "titleColor": text,
        "domainColor": line,
        "tickColor": line,
    }
    axis |= {
        "gridColor": grid,
        "titleFontWeight": "normal",
        "labelFontSize": 12,
        "titleFontSize": 13,
    }
    return {
        "background": ground,
        "font": FONT,
        "view": {"stroke": None},
        "axis": axis,
        "legend": {"labelColor": text, "titleColor": text, "titleFontWeight": "normal",
                   "labelFontSize": 12, "titleFontSize": 12, "labelLimit": 260,
                   "symbolStrokeWidth": 2},
        "title": {"color": text, "subtitleColor": soft, "fontWeight": "normal", "fontSize": 14,
                  "subtitleFontSize": 11, "subtitlePadding": 4, "offset": 6},
        "text": {"color": soft, "fontSize": 12},
        "rule": {"color": GREY},
    }  # fmt: skip


def colour(scheme: str) -> str:
    """Return a scheme's colour, the same in every chart and mode."""
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


def dash(scheme: str) -> list[int]:
    """Return the dashes of a scheme's lines, as Vega has them."""
    return DASHES.get(scheme, ASYNCHRONOUS_DASH if " (" in scheme else SOLID)


def scheme_encodings(schemes: Sequence[str], *, dashed: bool = True) -> dict[str, Any]:
    """Return the colours and dashes of schemes, with one legend."""
    names = list(schemes)
    line, dot = {"symbolType": "stroke", "symbolSize": 500}, {"symbolSize": 100}
    looks: dict[str, Any] = {"title": None, "sort": names}
    looks["legend"] = {"symbolOpacity": 1, **(line if dashed else dot)}
    colours = alt.Scale(domain=names, range=[colour(name) for name in names])
    found: dict[str, Any] = {"color": alt.Color("scheme:N", scale=colours, **looks)}
    if dashed:
        dashes = alt.Scale(domain=names, range=[dash(name) for name in names])
        found["strokeDash"] = alt.StrokeDash("scheme:N", scale=dashes, **looks)
    return found


def numbers(values: Iterable[float], *, log: bool = False) -> list[float | None]:
    """Return numbers with six digits; None for what is no number, or has no logarithm."""
    return [
        float(f"{value:.6g}")
        if math.isfinite(value) and (not log or SMALLEST < value < LARGEST)
        else None
        for value in values
    ]


def records(**columns: Sequence[Any]) -> Records:
    """Return columns as the rows that Vega reads."""
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def log_position(values: Iterable[float], *, most: int = 8) -> dict[str, Any]:
    """Return a logarithmic scale around values, and an axis with up to `most` plain numbers.

    >>> log_position([0.02, 0.06])["axis"].values
    [0.02, 0.03, 0.05]
    """
    every = np.fromiter(values, dtype=np.float64)
    fine = every[(every > SMALLEST) & (every < LARGEST)]
    low, high = (float(fine.min()), float(fine.max())) if fine.size else (0.1, 10.0)
    room = max((high / low) ** MARGIN, LEAST_MARGIN)
    low, high = low / room, high * room
    ticks = [float(f"{tick:.6g}") for tick in log_ticks(low, high, most)]
    return {
        "scale": alt.Scale(type="log", domain=[low, high], nice=False),
        "axis": alt.Axis(values=ticks, format=",~g", labelOverlap=True, grid=True),
    }


def log_ticks(low: float, high: float, most: int) -> list[float]:
    """Return 1, 2, 5, 10, … as finely as there is room for, or even steps of a short axis."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    inside: list[float] = []
    for digits in DIGITS:
        every = (digit * 10.0**power for power in range(first, last + 1) for digit in digits)
        inside = [tick for tick in every if low <= tick <= high]
        if len(inside) <= most:
            break
    if len(inside) > 1:
        return inside[:: -(-len(inside) // most)]
    power = 10.0 ** math.floor(math.log10((high - low) / 4))
    step = next(digit * power for digit in (1, 2, 5, 10) if 4 * digit * power >= high - low)
    return [step * at for at in range(math.ceil(low / step), math.floor(high / step) + 1)]


def chart_of(name: str, *, shown: bool = False) -> alt.Chart:
    """Return a chart of a figure's data; `shown` leaves out schemes that the legend hides."""
    chart = alt.Chart(alt.NamedData(name=name))
    return chart.transform_filter(SHOWN) if shown else chart


def level(y: float, text: str, *, below: bool = False, beside: bool = False) -> list[alt.Chart]:
    """Return a broken line across the chart, and a text above, below or beside its right end."""
    base = alt.Chart(alt.InlineData(values=[{}])).encode(y=alt.datum(y))
    side: dict[str, Any] = {"align": "right", "baseline": "bottom", "dx": -2, "dy": -3}
    if below:
        side |= {"baseline": "top", "dy": 4}
    if beside:
        side = {"align": "left", "baseline": "middle", "dx": 3}
    label = base.mark_text(text=text, **side).encode(x=alt.value("width"))
    return [base.mark_rule(strokeDash=[6, 3]), label]


def probabilities_figure(
    profile: Profile,
    q: FloatArray,
    *,
    scheme: str,
    title: str,
    setup: str = "",
    **axes: dict[str, Any],
) -> Figure:
    """Show each client's probability against its time, coloured by its importance."""
    share = np.asarray(profile.importance / profile.importance.mean())
    order = drawn_clients(share)
    few = f", {order.size:,} of {profile.n:,} clients shown" * (order.size < profile.n)
    rows = records(
        client=order.tolist(),
        seconds=numbers(profile.times[order], log=True),
        q=numbers(q[order], log=True),
        importance=numbers(share[order], log=True),
    )
    x = axes.get("x", log_position(profile.times, most=6))
    y = axes.get("y", log_position([*q, 0.5 / q.size, 2 / q.size]))
    ends = _apart(share[order])
    legend = alt.Legend(orient="top", gradientLength=180, gradientThickness=10, format="~g",
                        titleLimit=300, values=log_ticks(*ends, 5))  # fmt: skip
    points = chart_of("clients").mark_circle(
        size=max(8, 30 * min(1.0, 100 / order.size) ** 0.5), opacity=1, clip=True
    ).encode(
        x=alt.X("seconds:Q", title="round time of the client, s", **x),
        y=alt.Y("q:Q", title="probability per draw, q", **y),
        color=alt.Color("importance:Q", title="importance p·G, mean = 1", legend=legend).scale(
            type="log", scheme="viridis", domain=list(ends)
        ),
        tooltip=[
            alt.Tooltip("client:N"),
            alt.Tooltip("seconds:Q", title="round time, s", format=".3g"),
            alt.Tooltip("q:Q", title="probability", format=".3g"),
            alt.Tooltip("importance:Q", format=".3g"),
        ],
    )  # fmt: skip
    return Figure(
        name="probabilities",
        title=title + few,
        chart=alt.layer(*level(1 / q.size, "1/N", beside=True), points, height=280),
        data={"clients": rows},
        setup=setup,
        note="One point per client, coloured by its importance p·G; line: uniform, 1/N."
        * bool(setup),
        scheme=scheme,
        legend=True,
    )


def drawn_clients(share: FloatArray) -> IntArray:
    """Return the clients to draw, the most important last, on top; a sample of very many."""
    order = np.argsort(share)
    if order.size <= MOST_CLIENTS:
        return order
    some = np.random.default_rng(0).choice(order.size, MOST_CLIENTS, replace=False)
    return order[np.sort(some)]


def plan_figure(rows: Sequence[Prediction], *, k: int, of: str = "K") -> Figure:
    """Show each scheme's predicted time against K, or against C in asynchronous training."""
    schemes = list(dict.fromkeys(row.scheme for row in rows))
    best = min(rows, key=lambda row: row.relative_time)
    data = records(
        scheme=[row.scheme for row in rows],
        k=[row.k for row in rows],
        time=numbers((row.relative_time for row in rows), log=True),
        best=[row is best for row in rows],
    )
    colours = scheme_encodings(schemes, dashed=False)
    title = ["predicted time to the target", f"(uniform with K = {k:,} is 1)"]
    drawn = "clients drawn per round, K" if of == "K" else "clients always at work, C"
    place = {
        "x": alt.X("k:Q", title=drawn, **log_position(row.k for row in rows)),
        "y": alt.Y("time:Q", title=title, **log_position(row.relative_time for row in rows)),
    }
    plans = chart_of("plans")
    lines = plans.mark_line(point=True).encode(**place, **colours)
    star = plans.transform_filter("datum.best").mark_point(
        shape=STAR, size=500, filled=True, opacity=1
    )
    star = star.encode(**place, color=colours["color"])
    with_k = "" if best.scheme == "full" else f" with {of} = {best.k:,}"
    return Figure(
        name="plan",
        title=f"Best (star): {best.scheme}{with_k}, {best.relative_time:.3g}",
        chart=alt.layer(*level(1, ""), lines, star, height=280),
        data={"plans": data},
    )


def _apart(values: FloatArray) -> tuple[float, float]:
    """Return the ends of a logarithmic scale of colours; equal values are widened."""
    low, high = float(values.min()), float(values.max())
    low = max(low, high * 1e-9, SMALLEST)
    room = 1.0 if high > LEAST_MARGIN * low else LEAST_MARGIN
    return low / room, high * room


def _break_lines(text: str, pixels: float) -> list[str]:
    """Break a text into lines; a number stays with its unit, and with what it counts."""
    kept = re.sub(r"(?<=seed) (?=\d)| (?=[%=])|(?<==) ", "\u00a0", text)
    return textwrap.wrap(kept, int(LETTERS * pixels)) or [""]


def _rename_data(part: Any, names: Mapping[str, str]) -> Any:
    """Return a specification in which named data have other names."""
    if isinstance(part, list):
        return [_rename_data(each, names) for each in part]
    if not isinstance(part, dict):
        return part
    if set(part) == {"name"} and part["name"] in names:
        return {"name": names[part["name"]]}
    return {key: _rename_data(value, names) for key, value in part.items()}
