"""The timeline of a measured run for the page, as Plotly understands it."""

from __future__ import annotations

from fedpace.report import plots
from fedpace.report.figures import colour, pale
from fedpace.report.plots import Plot, numbers, trace_of
from fedpace.report.timeline import Timeline, client_labels
from fedpace.report.timeline_figure import MISSING, SHADE

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
    layout |= {"barmode": "overlay", "hovermode": "closest", "bargap": 0.2}
    _draw_stages(layout, shown)
    return {"data": _traces(shown), "layout": layout}


def _traces(shown: Timeline) -> list[Plot]:
    places = shown.places
    texts = [
        f"client {reply.client}, round {reply.round}<br>{reply.seconds:.3g} s"
        + f", of it {reply.computing:.3g} s computing" * shown.split
        for reply in shown.replies
    ]
    lines = [places[reply.client] for reply in shown.replies]
    bars: Plot = {"type": "bar", "orientation": "h", "y": lines, "text": texts,
                  "textposition": "none", "hovertemplate": HOVER}  # fmt: skip
    dark, light = colour(shown.scheme), pale(shown.scheme)
    computing = trace_of(
        shown.scheme,
        base=numbers(reply.start for reply in shown.replies),
        x=numbers(reply.computing for reply in shown.replies),
        # Its edge has a width: even the shortest reply is seen, and where the next one begins.
        marker={"color": dark, "line": {"color": dark, "width": 0.6}},
        **bars,
    )
    transfer = trace_of(
        shown.scheme,
        base=numbers(reply.start + reply.computing for reply in shown.replies),
        x=numbers(reply.seconds - reply.computing for reply in shown.replies),
        marker={"color": light, "line": {"color": light, "width": 0.0}},
        **bars,
    )
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
    return [transfer, computing, waits, crosses]


def page_caption(shown: Timeline) -> str:
    """Return what the colours mean, and which rounds are shown."""
    bars = BARS if shown.split else "Bars: until the reply"
    cross = "; cross: no reply by the end of the round" if shown.missing else ""
    shaded = any(stage.phase != "train" for stage in shown.stages)
    return f"{bars}{cross}{'; shaded: before training' * shaded}. {shown.caption}"


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
