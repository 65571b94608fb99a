"""What a figure shows, said once: Matplotlib draws files from it, and Plotly the page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias
from zlib import crc32

import numpy as np

from fedpace.checks import FloatArray

Dash: TypeAlias = Literal["", "solid", "dash", "dashdot", "longdash", "longdashdot", "dot"]
Symbol: TypeAlias = Literal["", "dot", "star", "cross", "end"]
Numbers: TypeAlias = Sequence[float] | FloatArray
Ends: TypeAlias = tuple[Numbers, Numbers]
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
# Told apart by more than colour, in print too.
DASHES: dict[str, Dash] = {
    "weighted": "dash",
    "statistical": "dashdot",
    "optimal-max": "longdash",
    "optimal-tiers": "longdashdot",
    "optimal-mean-no-pilots": "dot",
}
BLACK, GREY = "#000000", "#777777"
# A space at which no line ends.
NO_BREAK = "\u00a0"
# A colour's lighter shade is mixed with so much white.
PALE = 0.6
# Beside what is shown, a logarithmic axis has this part of it left, or at least this factor:
# values that differ by rounding only are not pulled apart.
MARGIN, LEAST_MARGIN = 0.05, 1.1
# What a logarithmic axis shows; with room around them, numbers beyond would be none.
SMALLEST, LARGEST = 1e-280, 1e280
# Digits at which it has numbers, the finest for which there is room.
DIGITS: tuple[tuple[float, ...], ...] = ((1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1,))


@dataclass(frozen=True)
class Axis:
    """An axis: its title with the unit, its ends where they are given, and where its numbers are.

    Without `ticks` the numbers are where the drawer puts them.
    """

    title: str
    log: bool = False
    ends: tuple[float | None, float | None] = (None, None)
    ticks: Mapping[float, str] = field(default_factory=dict)
    grid: bool = True


@dataclass(frozen=True, eq=False, kw_only=True)
class Mark:
    """What all marks have.

    A click on the `scheme` hides it on the page; a `label` is in the legend. Pointed at, it says
    `hover`, where {x} and {y} are the place, and {0}, {1} … its row in `told`.
    """

    scheme: str = ""
    label: str = ""
    colour: str = GREY
    hover: str = ""
    told: Sequence[Sequence[float | str]] = ()


@dataclass(frozen=True, eq=False)
class Line(Mark):
    """Places, joined unless `dash` is empty, and not where one is NaN; a `symbol` at each.

    `band` is below and above them, whiskers go from end to end. Symbols are coloured by `values`,
    if given, on a logarithmic scale.
    """

    x: Numbers
    y: Numbers
    band: Ends | None = None
    dash: Dash = "solid"
    width: float = 1.6
    symbol: Symbol = ""
    size: float = 4
    edge: str = ""
    values: FloatArray | None = None
    x_whiskers: Ends | None = None
    y_whiskers: Ends | None = None


@dataclass(frozen=True, eq=False)
class Bars(Mark):
    """Horizontal bars; `colours` are one for each, where they differ."""

    start: Numbers
    end: Numbers
    at: Numbers
    thickness: float
    edge: str = ""
    width: float = 0.6
    colours: Sequence[str] = ()


@dataclass(frozen=True, eq=False)
class Letters(Mark):
    """Texts in the middle of places, or to their right; `colours` are one for each."""

    x: Numbers
    y: Numbers
    texts: Sequence[str]
    right: bool = False
    colours: Sequence[str] = ()


@dataclass(frozen=True, eq=False)
class Level(Mark):
    """A broken line across the figure, with a text at its right end, above it or below."""

    y: float
    text: str = ""
    below: bool = False


@dataclass(frozen=True, eq=False)
class Uprights(Mark):
    """Lines from the bottom to the top, unless `dash` is empty, with texts beside their tops."""

    x: Numbers
    texts: Sequence[str] = ()
    dash: Dash = "dot"
    width: float = 0.9


@dataclass(frozen=True, eq=False)
class Shade(Mark):
    """A part of the figure, from the bottom to the top, on another ground."""

    start: float
    end: float


@dataclass(frozen=True, eq=False, kw_only=True)
class Drawing:
    """A figure: what it shows, of which setup, what to know of it, its axes and its marks.

    `name` is a part of its file's name. `height` is in inches, of the file. `scale` is the title of
    the scale of colours. With `along_x`, pointing at an x tells of all lines there.
    """

    name: str
    title: str
    x: Axis
    y: Axis
    marks: Sequence[Mark]
    setup: str = ""
    note: str = ""
    scale: str = ""
    wide: bool = False
    height: float = 4.4
    along_x: bool = False


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


def dash(scheme: str) -> Dash:
    """Return how a scheme's lines are broken."""
    return DASHES.get(scheme, "dot" if " (" in scheme else "solid")


def looks(scheme: str, label: str = "") -> dict[str, Any]:
    """Return what a scheme's line looks like, everywhere."""
    shown = {"scheme": scheme, "label": label or scheme}
    return {**shown, "colour": colour(scheme), "dash": dash(scheme)}


def log_axis(title: str, values: Iterable[float], *, most: int = 8) -> Axis:
    """Return a logarithmic axis around values, with up to `most` numbers.

    >>> list(log_axis("", [0.02, 0.06]).ticks.values())
    ['0.02', '0.03', '0.05']
    """
    every = np.fromiter(values, dtype=np.float64)
    fine = every[(every > SMALLEST) & (every < LARGEST)]
    if not fine.size:
        return Axis(title, log=True)
    low, high = float(fine.min()), float(fine.max())
    room = max((high / low) ** MARGIN, LEAST_MARGIN)
    low, high = low / room, high * room
    ticks = {tick: f"{tick:,.10g}" for tick in _ticks(low, high, most)}
    return Axis(title, log=True, ends=(low, high), ticks=ticks)


def _ticks(low: float, high: float, most: int) -> list[float]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    inside: list[float] = []
    for digits in DIGITS:
        every = (digit * 10.0**power for power in range(first, last + 1) for digit in digits)
        inside = [tick for tick in every if low <= tick <= high]
        if len(inside) <= most:
            break
    if len(inside) > 1:
        return inside[:: -(-len(inside) // most)]
    return _even_ticks(low, high)


def _even_ticks(low: float, high: float) -> list[float]:
    """Return numbers for a part of a decade that has too few of those of a decade."""
    power = 10.0 ** math.floor(math.log10((high - low) / 4))
    step = next(digit * power for digit in (1, 2, 5, 10) if 4 * digit * power >= high - low)
    return [step * at for at in range(math.ceil(low / step), math.floor(high / step) + 1)]
