"""What the timeline of a run shows."""

from __future__ import annotations

from collections.abc import Iterator
from math import nan
from typing import Any

from fedpace.report.drawing import (
    BLACK,
    Axis,
    Bars,
    Drawing,
    Letters,
    Line,
    Mark,
    Shade,
    Uprights,
    colour,
    pale,
)  # fmt: skip
from fedpace.report.timeline import Timeline, client_labels, tier_colours
from fedpace.report.timelines import MOST_CLIENTS

COMPUTING, TRANSFER = "computing", "transfer, both ways"
WHOLE, MISSING = "until the reply", "no reply"
SHADE, ROUND = "#f3efe2", "#e0e0e0"
BARS = "Bars: computing (dark) and transfer both ways (pale), one put after the other"
# As many labels as there is room for beside the figure.
MOST_LABELS = 40
# Of a bar, where the distance of lines is 1.
THICKNESS = 0.8


def timeline_drawing(shown: Timeline) -> Drawing:
    """Show a bar per reply, a cross per missing one, and what the rounds were for."""
    places, labels = client_labels(shown, MOST_LABELS)
    before = [stage for stage in shown.stages if stage.phase != "train"]
    begin, names = zip(*shown.labelled, strict=True) if shown.labelled else ((), ())
    marks = [Shade(each.start, each.end, colour=SHADE) for each in before]
    uprights = [
        Uprights(shown.rounds, dash="solid", width=0.5, colour=ROUND),
        Uprights(begin, names, dash=""),
    ]
    return Drawing(
        name=f"timeline-{shown.scheme}",
        title=shown.title,
        setup=shown.setup,
        note=f"{_legend(shown, shaded=bool(before))} {shown.caption}",
        x=Axis(
            "wall-clock time, s",
            ends=(shown.stages[0].start, shown.stages[-1].end),
            grid=False,
        ),
        y=Axis(
            "client (its usual time, s)",
            ends=shown.height,
            ticks=dict(zip(places, labels, strict=True)),
            grid=False,
        ),
        marks=[*marks, *uprights, *_bars(shown), *_gaps(shown), *_tiers(shown)],
        wide=True,
        height=2.4 + 0.125 * min(len(shown.clients), MOST_CLIENTS),
    )


def _bars(shown: Timeline) -> Iterator[Mark]:
    """Yield the replies; what a bar says when pointed at is kept short, for there are many."""
    replies = shown.replies
    hover = "client {0}, round {1}\n{2} s" + ", of it {3} s computing" * shown.split
    told: list[list[float | str]] = [
        [r.client, r.round, r.seconds, *[r.computing] * shown.split] for r in replies
    ]
    if any(reply.tier >= 0 or reply.why for reply in replies):
        hover += f"\n{{{len(told[0])}}}"
        told = [
            [*row, _reason(reply.tier, reply.why)] for row, reply in zip(told, replies, strict=True)
        ]
    lines = [shown.places[reply.client] for reply in replies]
    starts = [reply.start for reply in replies]
    middles = [reply.start + reply.computing for reply in replies]
    ends = [reply.start + reply.seconds for reply in replies]
    dark, light = colour(shown.scheme), pale(shown.scheme)
    bars: dict[str, Any] = {"scheme": shown.scheme, "hover": hover, "told": told}
    edged = bars | {"edge": dark}
    if shown.split:
        yield Bars(starts, middles, lines, THICKNESS, colour=dark, label=COMPUTING, **edged)
        yield Bars(middles, ends, lines, THICKNESS, colour=light, label=TRANSFER, **bars)
    else:
        yield Bars(starts, ends, lines, THICKNESS, colour=light, label=WHOLE, **edged)


def _gaps(shown: Timeline) -> Iterator[Mark]:
    """Yield a cross per missing reply, and a line to it."""
    lines = [shown.places[each.client] for each in shown.missing]
    waits = [part for each in shown.missing for part in (each.start, each.end, nan)]
    levels = [part for line in lines for part in (line, line, nan)]
    mine: dict[str, Any] = {"scheme": shown.scheme, "colour": BLACK}
    told = [
        (each.client, each.round, "refused" if each.refused else MISSING) for each in shown.missing
    ]
    cross: dict[str, Any] = {
        "dash": "",
        "symbol": "cross",
        "size": 5,
        "label": MISSING,
        "told": told,
    }
    if shown.missing:
        yield Line(waits, levels, dash="dot", width=0.7, **mine)
        ends = [each.end for each in shown.missing]
        yield Line(ends, lines, hover="client {0}, round {1}\n{2}", **cross, **mine)


def _tiers(shown: Timeline) -> Iterator[Mark]:
    """Yield the strip of tiers above the clients."""
    if not shown.tiers:
        return
    bottom, top = shown.strip
    fills, letters = (
        [tier_colours(shown, span.tier)[part] for span in spans]
        for part, spans in enumerate((shown.tiers, shown.numbered))
    )
    yield Bars(
        [span.start for span in shown.tiers],
        [span.end for span in shown.tiers],
        [(bottom + top) / 2] * len(fills),
        top - bottom,
        scheme=shown.scheme,
        colours=fills,
        edge="#ffffff",
        hover="rounds {0} to {1}\n{2}",
        told=[(span.first, span.last, _reason(span.tier, span.why)) for span in shown.tiers],
    )
    middles = [(span.start + span.end) / 2 for span in shown.numbered]
    texts = [f"{span.tier}" for span in shown.numbered]
    heights = [(bottom + top) / 2] * len(texts)
    yield Letters(middles, heights, texts, scheme=shown.scheme, colours=letters)


def _legend(shown: Timeline, *, shaded: bool) -> str:
    """Say what the marks mean."""
    bars = BARS if shown.split else "Bars: until the reply"
    cross = "; cross: no reply by the end of the round" if shown.missing else ""
    strip = "; strip above: the tier drawn from" if shown.tiers else ""
    return f"{bars}{cross}{strip}{'; shaded: before training' * shaded}."


def _reason(tier: int, why: str) -> str:
    return "\n".join([*[f"tier {tier}"] * (tier >= 0), *filter(None, [why])])
