"""Figures as files, drawn with Matplotlib; nothing global is touched."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpace.checks import FloatArray
from fedpace.errors import InputError, needs
from fedpace.files import write_whole
from fedpace.report import drawing as made
from fedpace.report.drawing import Drawing, Ends, Numbers

if TYPE_CHECKING:
    from matplotlib import axis
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PICTURES = (".png", ".pdf", ".svg")
DASHES: dict[str, Any] = {
    "": "none",
    "solid": "-",
    "dash": "--",
    "dashdot": "-.",
    "longdash": (0, (6, 1.5)),
    "longdashdot": (0, (3, 1, 1, 1, 1, 1)),
    "dot": (0, (1, 1.3)),
}
SYMBOLS = {"": "none", "dot": "o", "star": "*", "cross": "x", "end": "|"}
# Inches, and letters of a note and of a title in one.
WIDTH, WIDE, PANEL, PANELS_HEIGHT = 7.2, 9.0, 3.3, 3.9
NOTE_LETTERS, TITLE_LETTERS = 19, 11
# More points than this are drawn as one picture, or a vector file is slow to open.
MOST_VECTORS = 2_000


def figure_of(*drawings: Drawing) -> Figure:
    """Draw one drawing, or several of one setup and with the same axes beside one another."""
    first, several = drawings[0], len(drawings) > 1
    width = PANEL * len(drawings) + 1.2 if several else WIDE if first.wide else WIDTH
    figure = new_figure(width, PANELS_HEIGHT if several else first.height)
    panels = figure.subplots(1, len(drawings), sharex=True, sharey=True, squeeze=False)[0]
    scale = _scale(drawings)
    for axes, drawing in zip(panels, drawings, strict=True):
        for mark in drawing.marks:
            _draw(axes, mark, **scale)
        _set_axes(axes, drawing)
        if several:
            panel = _filled(drawing.title, TITLE_LETTERS * PANEL)
            axes.set_title(panel, fontsize="medium", loc="left")
            axes.label_outer()
    if scale:
        from matplotlib.cm import ScalarMappable

        shades = ScalarMappable(**scale)
        bar = figure.colorbar(shades, ax=panels.tolist(), label=first.scale)
        plain_numbers(bar.ax.yaxis)
    shown = [first.title] * (first.wide or not first.setup)
    heading = "\n".join([*filter(None, [first.setup]), *shown])
    (figure.suptitle if several or first.wide else panels[0].set_title)(heading, fontsize="medium")
    _add_legend(panels[0], above=first.wide)
    if first.note:
        note = _filled(first.note, NOTE_LETTERS * width)
        figure.supxlabel(note, fontsize="x-small", color="0.35")
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


def plain_numbers(on: axis.Axis, *, steps: tuple[float, ...] | None = None) -> None:
    """Label a logarithmic axis 0.5, 1, 2, 5, 10: powers of ten overlap on a short one."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    if steps is None:
        low, high = on.get_view_interval()
        steps = (1.0, 2.0, 5.0) if high / low < 2_000 else (1.0,)
    on.set_major_locator(LogLocator(subs=steps))
    on.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    on.set_minor_formatter(NullFormatter())


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure, or say which extra brings Matplotlib."""
    with needs("figures need Matplotlib", "report"):
        from matplotlib.figure import Figure
    return Figure(figsize=(width, height), layout="constrained")


def _draw(axes: Axes, mark: made.Mark, **scale: Any) -> None:
    """Draw a mark: what is shaded at the back, then lines across, bars, lines, symbols."""
    match mark:
        case made.Line():
            _draw_line(axes, mark, **scale)
        case made.Bars():
            _draw_bars(axes, mark)
        case made.Letters():
            _draw_letters(axes, mark)
        case made.Level():
            axes.axhline(mark.y, color=mark.colour, linestyle=(0, (6, 3)), linewidth=0.9, zorder=1)
            at = {"xycoords": axes.get_yaxis_transform(), "ha": "right"}
            side = {"va": "top" if mark.below else "bottom", "xytext": (0, -3 if mark.below else 3)}
            _write(axes, mark.text, (0.99, mark.y), **at, **side)
            axes.margins(y=0.1)
        case made.Uprights():
            top = axes.get_xaxis_transform()
            if mark.dash:
                axes.vlines(mark.x, 0, 1, transform=top, color=mark.colour, zorder=0,
                            linestyle=DASHES[mark.dash], linewidth=mark.width)  # fmt: skip
            for x, text in zip(mark.x, mark.texts, strict=False):
                _write(axes, text, (x, 0.99), xycoords=top, xytext=(3, 0), va="top")
        case made.Shade():
            axes.axvspan(mark.start, mark.end, color=mark.colour, linewidth=0, zorder=-1)


def _draw_line(axes: Axes, mark: made.Line, **scale: Any) -> None:
    if mark.values is not None:
        axes.scatter(mark.x, mark.y, s=mark.size**2, c=mark.values, edgecolors="none", zorder=4,
                     rasterized=len(mark.x) > MOST_VECTORS, **scale)  # fmt: skip
        return
    axes.plot(mark.x, mark.y, color=mark.colour, label=mark.label, linestyle=DASHES[mark.dash],
              linewidth=mark.width, marker=SYMBOLS[mark.symbol], markersize=mark.size,
              markeredgecolor=mark.edge or mark.colour, zorder=2 if mark.dash else 4,
              clip_on=mark.symbol != "cross")  # fmt: skip
    if mark.band:
        axes.fill_between(mark.x, *mark.band, color=mark.colour, alpha=0.15, linewidth=0)
    if mark.x_whiskers or mark.y_whiskers:
        axes.errorbar(mark.x, mark.y, _distances(mark.y, mark.y_whiskers),
                      _distances(mark.x, mark.x_whiskers), fmt="none", ecolor=mark.colour,
                      elinewidth=1.2, capsize=3)  # fmt: skip


def _distances(at: Numbers, ends: Ends | None) -> FloatArray | None:
    """Return how far whiskers go to both sides; one that is not known has none."""
    if ends is None:
        return None
    low, high = ends
    return np.nan_to_num([np.subtract(at, low), np.subtract(high, at)])


def _draw_bars(axes: Axes, mark: made.Bars) -> None:
    """Draw all bars at once: one by one, thousands of them take half a minute."""
    from matplotlib.collections import PolyCollection

    left, right, at = map(np.asarray, (mark.start, mark.end, mark.at))
    low, high = at - mark.thickness / 2, at + mark.thickness / 2
    corners = np.array([(left, low), (right, low), (right, high), (left, high)])
    # An edge has a width: even the shortest bar is seen, and where the next one begins.
    style = {"edgecolor": mark.edge or "none", "linewidth": mark.width if mark.edge else 0}
    bars = PolyCollection(list(corners.transpose(2, 0, 1)))
    bars.set(facecolor=mark.colours or mark.colour, label=mark.label, zorder=1, **style)
    axes.add_collection(bars)


def _draw_letters(axes: Axes, mark: made.Letters) -> None:
    colours = mark.colours or [mark.colour] * len(mark.texts)
    for x, y, text, colour in zip(mark.x, mark.y, mark.texts, colours, strict=True):
        side = "left" if mark.right else "center"
        axes.annotate(text, (x, y), (5 * mark.right, 0), textcoords="offset points", ha=side,
                      va="center_baseline", color=colour, annotation_clip=not mark.right,
                      fontsize="small" if mark.right else "x-small")  # fmt: skip


def _filled(text: str, letters: float) -> str:
    """Break a text into lines; a number stays with its unit, and with what it counts."""
    return textwrap.fill(re.sub(r"(?<=seed) (?=\d)| (?=%)", made.NO_BREAK, text), int(letters))


def _write(axes: Axes, text: str, at: tuple[float, float], **style: Any) -> None:
    if text:
        style |= {"textcoords": "offset points", "fontsize": "small", "color": "0.3"}
        axes.annotate(text, at, **style)


def _scale(drawings: tuple[Drawing, ...]) -> dict[str, Any]:
    """Return the scale of colours that all drawings share; nothing where none has one."""
    from matplotlib.colors import LogNorm

    points = [mark for drawing in drawings for mark in drawing.marks if isinstance(mark, made.Line)]
    values = [mark.values for mark in points if mark.values is not None]
    if not values:
        return {}
    every = np.concatenate(values)
    low, high = every.min(), every.max()
    apart = 1.0 if high > made.LEAST_MARGIN * low else made.LEAST_MARGIN
    return {"norm": LogNorm(low / apart, high * apart), "cmap": "viridis"}


def _set_axes(axes: Axes, drawing: Drawing) -> None:
    scales = {True: "log", False: "linear"}
    axes.set(xlabel=drawing.x.title, xscale=scales[drawing.x.log])
    axes.set(ylabel=drawing.y.title, yscale=scales[drawing.y.log])
    for on, each in ((axes.xaxis, drawing.x), (axes.yaxis, drawing.y)):
        if each.grid:
            on.grid(alpha=0.2)
        _set_ticks(on, each)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    # Last, for this ends the search for an end that shows everything.
    axes.autoscale_view()
    axes.set_xlim(*drawing.x.ends)
    axes.set_ylim(*drawing.y.ends)


def _set_ticks(on: axis.Axis, each: made.Axis) -> None:
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullFormatter, NullLocator

    if each.ticks:
        on.set_major_locator(FixedLocator(list(each.ticks)))
        on.set_major_formatter(FixedFormatter(list(each.ticks.values())))
        on.set_minor_formatter(NullFormatter())
        on.set_tick_params(labelsize="x-small" if len(each.ticks) > 15 else "medium")
        if not each.log:
            on.set_minor_locator(NullLocator())


def _add_legend(axes: Axes, *, above: bool) -> None:
    handles = axes.get_legend_handles_labels()[0]
    if handles and above:
        axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=3, frameon=False,
                    fontsize="small", borderaxespad=0.1)  # fmt: skip
    elif handles:
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
