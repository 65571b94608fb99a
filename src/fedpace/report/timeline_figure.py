"""The timeline of a run, with Matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedpace.checks import FloatArray
from fedpace.report.figures import colour, label, new_figure, pale
from fedpace.report.timeline import Timeline, client_labels, tier_colours
from fedpace.report.timelines import MOST_CLIENTS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import PolyCollection
    from matplotlib.figure import Figure

COMPUTING, TRANSFER = "computing", "transfer, both ways"
WHOLE, MISSING = "until the reply", "no reply"
SHADE = "#f3efe2"
# Of a bar, where the distance of lines is 1.
THICKNESS = 0.8


def timeline_figure(shown: Timeline) -> Figure:
    """Draw a bar per reply, a cross per missing one, and what the rounds were for."""
    figure = new_figure(9.0, 2.2 + 0.125 * min(len(shown.clients), MOST_CLIENTS))
    axes = figure.add_subplot()
    _draw_bars(axes, shown)
    _draw_missing(axes, shown)
    _draw_stages(axes, shown)
    _draw_tiers(axes, shown)
    ticks, labels = client_labels(shown, MOST_CLIENTS)
    axes.set_yticks(ticks, labels, fontsize="x-small")
    axes.set(xlabel="wall-clock time, s", ylabel="client (its usual time, s)")
    axes.set(xlim=(shown.stages[0].start, shown.stages[-1].end), ylim=shown.height)
    figure.suptitle(f"{shown.setup}\n{shown.title}", fontsize="medium")
    axes.spines[["top", "right"]].set_visible(False)
    handles = axes.get_legend_handles_labels()[0]
    handles.sort(key=lambda handle: handle.get_label() == MISSING)  # the bars first
    axes.legend(handles=handles, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=3,
                frameon=False, fontsize="small", borderaxespad=0.1)  # fmt: skip
    figure.supxlabel(shown.caption, fontsize="x-small", color="0.35")
    return figure


def _draw_bars(axes: Axes, shown: Timeline) -> None:
    starts = np.array([reply.start for reply in shown.replies])
    middles = starts + [reply.computing for reply in shown.replies]
    ends = starts + [reply.seconds for reply in shown.replies]
    places = shown.places
    lines = np.array([places[reply.client] for reply in shown.replies])
    dark = _bars(starts, middles, lines)
    # Its edge has a width: even the shortest reply is seen, and where the next one begins.
    dark.set(color=colour(shown.scheme), linewidth=0.6, zorder=2)
    light = _bars(middles, ends, lines)
    light.set(color=pale(shown.scheme), linewidth=0, zorder=1)
    light.set_label(TRANSFER if shown.split else WHOLE)
    if shown.split:
        dark.set_label(COMPUTING)
    axes.add_collection(dark)
    axes.add_collection(light)


def _bars(left: FloatArray, right: FloatArray, lines: FloatArray) -> PolyCollection:
    """Return all bars at once: one by one, thousands of them take half a minute."""
    from matplotlib.collections import PolyCollection

    low, high = lines - THICKNESS / 2, lines + THICKNESS / 2
    corners = np.array([(left, low), (right, low), (right, high), (left, high)])
    return PolyCollection(list(corners.transpose(2, 0, 1)))


def _draw_missing(axes: Axes, shown: Timeline) -> None:
    if not shown.missing:
        return
    lines = [shown.places[each.client] for each in shown.missing]
    ends = [each.end for each in shown.missing]
    axes.hlines(lines, [each.start for each in shown.missing], ends, color="black",
                linewidth=0.7, linestyle=":")  # fmt: skip
    axes.plot(ends, lines, "x", color="black", markersize=5, markeredgewidth=1.2,
              label=MISSING, clip_on=False)  # fmt: skip


def _draw_stages(axes: Axes, shown: Timeline) -> None:
    axes.vlines(shown.rounds, 0, 1, transform=axes.get_xaxis_transform(), color="0.88",
                linewidth=0.5, zorder=0)  # fmt: skip
    for stage in shown.stages:
        if stage.phase != "train":
            axes.axvspan(stage.start, stage.end, color=SHADE, linewidth=0, zorder=-1)
    for start, text in shown.labelled:
        label(axes, text, (start, 1), (4, -3), along="x", va="top", color="0.3")


def _draw_tiers(axes: Axes, shown: Timeline) -> None:
    bottom, top = shown.strip
    for span in shown.tiers:
        axes.fill_between([span.start, span.end], bottom, top, zorder=1, edgecolor="white",
                          linewidth=0.4, facecolor=tier_colours(shown, span.tier)[0])  # fmt: skip
    for span in shown.numbered:
        axes.text((span.start + span.end) / 2, (bottom + top) / 2, str(span.tier), ha="center",
                  va="center_baseline", fontsize="x-small", clip_on=True,
                  color=tier_colours(shown, span.tier)[1])  # fmt: skip
