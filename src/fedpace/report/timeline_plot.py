"""The timeline of a run for the page, as Plotly understands it."""

from __future__ import annotations

import html
from typing import Any

from fedpace.report import plots
from fedpace.report.figures import colour, pale
from fedpace.report.plots import Plot, numbers, trace_of
from fedpace.report.timeline import Timeline, client_labels, tier_colours
from fedpace.report.timeline_figure import MISSING, SHADE, THICKNESS

# As many labels as there is room for beside the plot.
MOST_LABELS = 40
HOVER = "%{text}<extra></extra>"
BARS = "Bars: computing (dark) and transfer both ways (pale), one put after the other"


def timeline_plot(shown: Timeline) -> Plot:
    """Return a bar per reply, a cross per missing one, and what the rounds were for."""
    layout = plots.blank_layout("wall-clock time, s", "client (its usual time, s)")
    places, labels = client_labels(shown, MOST_LABELS)
    ticks = {"tickmode": "array", "tickvals": places, "ticktext": labels, "tickfont": {"size": 9}}
    span = [shown.stages[0].start, shown.stages[-1].end]
    layout["xaxis"] |= {"range": numbers(span), "showgrid": False}
    layout["yaxis"] |= {"range": list(shown.height), "showgrid": False, **ticks}
    layout["yaxis"]["title"]["standoff"] = 12
    layout |= {"barmode": "overlay", "hovermode": "closest"}
    _draw_stages(layout, shown)
    return {"data": [*_bars(shown), *_gaps(shown), *_tiers(shown)], "layout": layout}


def _bars(shown: Timeline) -> list[Plot]:
    """Return the replies; what a bar shows when pointed at is kept short, for there are many."""
    replies, places = shown.replies, shown.places
    hover = "client %{customdata[0]}, round %{customdata[1]}<br>%{customdata[2]} s"
    hover += ", of it %{customdata[3]} s computing" * shown.split
    told = [
        [r.client, r.round, *numbers([r.seconds, *[r.computing] * shown.split], digits=3)]
        for r in replies
    ]
    bars: Plot = {"y": [places[r.client] for r in replies], "customdata": told}
    if any(reply.tier >= 0 or reply.why for reply in replies):
        hover += "<br>%{text}"
        bars |= {"text": [_reason(r.tier, r.why) for r in replies], "textposition": "none"}
    bars |= {"hovertemplate": f"{hover}<extra></extra>", "width": THICKNESS}
    dark, light = colour(shown.scheme), pale(shown.scheme)
    transfer = _bar(
        shown.scheme,
        base=numbers(reply.start + reply.computing for reply in replies),
        x=numbers(reply.seconds - reply.computing for reply in replies),
        # Alone, it has the edge.
        marker={"color": light, "line": {"color": dark, "width": 0.6 * (not shown.split)}},
        **bars,
    )
    computing = _bar(
        shown.scheme,
        base=numbers(reply.start for reply in replies),
        x=numbers(reply.computing for reply in replies),
        # Its edge has a width: even the shortest reply is seen, and where the next one begins.
        marker={"color": dark, "line": {"color": dark, "width": 0.6}},
        **bars,
    )
    return [transfer, computing] if shown.split else [transfer]


def _gaps(shown: Timeline) -> list[Plot]:
    """Return a cross per missing reply, and a line to it."""
    places = shown.places
    crosses = trace_of(
        shown.scheme,
        x=numbers(each.end for each in shown.missing),
        y=[places[each.client] for each in shown.missing],
        text=[
            f"client {each.client}, round {each.round}<br>{'refused' if each.refused else MISSING}"
            for each in shown.missing
        ],
        mode="markers",
        marker={"symbol": "x-thin", "size": 7, "line": {"width": 1.5, "color": "black"}},
        cliponaxis=False,
        hovertemplate=HOVER,
    )
    waits = trace_of(
        shown.scheme,
        x=[part for each in shown.missing for part in (*numbers([each.start, each.end]), None)],
        y=[part for each in shown.missing for part in (*[places[each.client]] * 2, None)],
        mode="lines",
        line={"color": "black", "width": 1, "dash": "dot"},
        hoverinfo="skip",
    )
    return [waits, crosses] if shown.missing else []


def _tiers(shown: Timeline) -> list[Plot]:
    """Return the strip of tiers above the clients."""
    if not shown.tiers:
        return []
    bottom, top = shown.strip
    colours = [tier_colours(shown, span.tier) for span in shown.tiers]
    strip = _bar(
        shown.scheme,
        base=numbers(span.start for span in shown.tiers),
        x=numbers(span.end - span.start for span in shown.tiers),
        y=[(bottom + top) / 2] * len(shown.tiers),
        width=top - bottom,
        text=[f"{span.tier}" * (span in shown.numbered) for span in shown.tiers],
        textposition="inside",
        insidetextanchor="middle",
        textangle=0,
        insidetextfont={"color": [letters for _, letters in colours], "size": 10},
        marker={"color": [fill for fill, _ in colours], "line": {"color": "white", "width": 0.5}},
        customdata=[[span.first, span.last, _reason(span.tier, span.why)] for span in shown.tiers],
        hovertemplate="rounds %{customdata[0]} to %{customdata[1]}<br>%{customdata[2]}"
        "<extra></extra>",
    )
    return [strip]


def _bar(scheme: str, **more: Any) -> Plot:
    return trace_of(scheme, **more) | {"type": "bar", "orientation": "h"}


def _reason(tier: int, why: str) -> str:
    """Return the tier and the sentence, for letters that Plotly would take for markup as well."""
    return "<br>".join([*[f"tier {tier}"] * (tier >= 0), *filter(None, [html.escape(why)])])


def page_caption(shown: Timeline) -> str:
    """Return what the colours mean, and which rounds are shown."""
    bars = BARS if shown.split else "Bars: until the reply"
    cross = "; cross: no reply by the end of the round" if shown.missing else ""
    strip = "; strip above: the tier drawn from" if shown.tiers else ""
    shaded = any(stage.phase != "train" for stage in shown.stages)
    return f"{bars}{cross}{strip}{'; shaded: before training' * shaded}. {shown.caption}"


def _draw_stages(layout: Plot, shown: Timeline) -> None:
    """Shade what is not training, name the stages, and draw a line where each round begins."""
    for stage in shown.stages:
        start, end = numbers([stage.start, stage.end])
        if stage.phase != "train":
            shape = {"type": "rect", "x0": start, "x1": end, "fillcolor": SHADE}
            layout["shapes"].append({**shape, "line": {"width": 0}, **plots.FULL_HEIGHT})
    # Rounded as the axis is: a label that begins outside of it is not shown.
    for begin, text in shown.labelled:
        plots.write(layout, text, x=numbers([begin])[0], **plots.TOP)
    for start in numbers(shown.rounds):
        plots.draw_upright(layout, start, color="#e0e0e0", width=0.5)
