"""Charts of a study: curves over seeds, how busy clients are, probabilities, sensitivity to c."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import altair as alt
import numpy as np

from fedpace.report.charts import (
    STAR,
    Figure,
    Records,
    chart_of,
    level,
    log_position,
    numbers,
    probabilities_figure,
    records,
    scheme_encodings,
)
from fedpace.report.notes import how_measured, title_of
from fedpace.report.setups import Setup, Sweep, solved_schemes
from fedpace.report.summary import (
    BASELINE,
    Abscissa,
    Ordinate,
    Sensitivity,
    Summary,
    axis_positions,
    baseline_seconds,
    busy_shares,
    panel,
    sensitivities,
    shows_accuracy,
)
from fedpace.report.time_to_target import sustains
from fedpace.studies.study import Study

# The three curves of a setup: file name, ordinate, abscissa.
CURVES: tuple[tuple[str, Ordinate, Abscissa], ...] = (
    ("loss-seconds", "loss", "seconds"),
    ("accuracy-seconds", "accuracy", "seconds"),
    ("loss-rounds", "loss", "round"),
)
TITLES = {
    "loss-seconds": "Loss against wall-clock time",
    "accuracy-seconds": "Test accuracy against wall-clock time",
    "loss-rounds": "Loss against rounds",
    "busy": "How busy the clients of a round are",
}
LABELS = {
    "loss": "global training loss",
    "accuracy": "test accuracy, %",
    "seconds": "wall-clock time, s",
    "round": "round",
}
BUSY_LABEL = "time at work in a round, %"
BAND_NOTE = "Lines: mean over seeds; bands: central 80 % of the runs."
TARGET_NOTE = " Dots: mean first arrival at the target"
GOING_ON = "; runs go on until it is sustained"
BUSY_NOTE = (
    "Σ seconds of the clients / (clients that answered × seconds of the round), mean over the "
    "rounds of training, pilots left out, and over seeds; asynchronous: Σ seconds of the clients / "
    "(clients to be at work × seconds). Whiskers: 95 % interval over seeds."
)
SENSITIVITY_NOTE = (
    "Points: mean over seeds, bars: its 95 % interval; star's bar: central 80 % of the estimates."
)
HEIGHT = 300


def study_figures(summary: Summary) -> Iterator[Sequence[Figure]]:
    """Yield the figures of a setup except timelines, grouped by file; the main curve first."""
    setup = summary.setup
    accuracy = shows_accuracy(setup)
    stop = setup.study.stop
    by_accuracy = stop.loss is None and stop.accuracy is not None
    for name, y, x in sorted(CURVES, key=lambda each: by_accuracy and each[1] != "accuracy"):
        if accuracy or y != "accuracy":
            yield [curve_figure(summary, name, y, x)]
    if busy_shares(setup):
        yield [busy_figure(setup)]
    if solved_schemes(setup):
        yield probabilities_figures(setup)


def target_note(study: Study) -> str:
    """Return what the dots of a curve mean, and why it goes on behind them."""
    return "" if study.stop.loss is None else f"{TARGET_NOTE}{GOING_ON * sustains(study)}."


def curve_figure(summary: Summary, name: str, y: Ordinate, x: Abscissa) -> Figure:
    """Show every scheme's mean and band, the target, and where pilots end."""
    shown, study = panel(summary, y, x), summary.setup.study
    loss = y == "loss"
    rows: Records = []
    for scheme, line in shown.curves.items():
        columns = (numbers(each, log=loss) for each in (line.mean, line.low, line.high))
        mean, low, high = columns
        names = [scheme] * len(mean)
        rows += records(scheme=names, x=numbers(line.x), mean=mean, low=low, high=high)
    values = [each for line in shown.curves.values() for each in (*line.low, *line.high)]
    place: dict[str, Any] = {"title": LABELS[y]}
    place |= log_position([*values, shown.target]) if loss else _with_headroom(values, shown.target)
    steps = x == "round" and all(run.study.training.asynchronous for run in summary.setup.runs)
    across = alt.X(
        "x:Q",
        title="step" if steps else LABELS[x],
        scale=alt.Scale(domainMin=0, nice=False),
        axis=alt.Axis(tickCount=8, format=",~r"),
    )
    up = alt.Y("mean:Q", **place)
    both = scheme_encodings(list(shown.curves))
    near = alt.selection_point(
        name="near", nearest=True, on="pointermove", clear="pointerout", empty=False
    )
    curves = chart_of("curves", shown=True)
    layers: list[alt.Chart] = [
        curves.mark_area(opacity=0.15, clip=True).encode(
            x=across, y=alt.Y("low:Q", **place), y2=alt.Y2("high"), color=both["color"]
        ),
        curves.mark_line(strokeWidth=2, clip=True).encode(x=across, y=up, **both),
    ]
    if math.isfinite(shown.target):
        layers += level(shown.target, shown.target_text, below=loss)
    if shown.pilots:
        pilots = alt.Chart(alt.InlineData(values=[{"x": at} for at in numbers(shown.pilots)]))
        layers.append(pilots.mark_rule(strokeDash=[2, 2]).encode(x=alt.X("x:Q")))
        label = pilots.mark_text(align="left", baseline="top", dx=3, text="pilots end")
        layers.append(label.encode(x=alt.X("x:Q"), y=alt.value(0 if loss else HEIGHT - 18)))
    if shown.arrivals:
        dots = chart_of("arrivals", shown=True).mark_point(
            filled=True, size=70, opacity=1, stroke="white", strokeWidth=1, strokeDash=[1, 0]
        )
        layers.append(dots.encode(x=alt.X("x:Q"), y=alt.Y("y:Q"), color=both["color"]))
    pointed = curves.mark_point(filled=True, size=50).encode(
        x=across,
        y=up,
        color=both["color"],
        opacity=alt.when(near).then(alt.value(1)).otherwise(alt.value(0)),
        tooltip=[
            alt.Tooltip("scheme:N"),
            alt.Tooltip("x:Q", title=LABELS[x], format=",.4~r" if x == "seconds" else ",d"),
            alt.Tooltip("mean:Q", title=LABELS[y], format=".4~r"),
        ],
    )
    layers.append(pointed.add_params(near))
    at = numbers(shown.arrivals.values())
    arrived = records(scheme=list(shown.arrivals), x=at, y=[shown.target] * len(at))
    note = BAND_NOTE + target_note(study) * loss
    return Figure(
        name=name,
        title="Loss against steps" if steps else TITLES[name],
        chart=alt.layer(*layers, height=HEIGHT),
        data={"curves": rows, "arrivals": arrived},
        setup=title_of(study),
        note=f"{note} {how_measured(study)}".rstrip(),
    )


def _with_headroom(values: Sequence[float], target: float) -> dict[str, Any]:
    """Return a linear scale with room for a text above the target."""
    fine = [each for each in (*values, target) if math.isfinite(each)]
    low, high = min(fine, default=0.0), max(fine, default=1.0)
    room = 0.1 * (high - low) or 1.0
    return {"scale": alt.Scale(domain=[max(low - room, min(low, 0.0)), high + room], nice=False)}


def busy_figure(setup: Setup) -> Figure:
    """Show a bar per scheme, with a whisker and its number."""
    shown = busy_shares(setup)
    rows = [
        {
            "scheme": scheme,
            "share": share.value,
            "seeds": share.seeds,
            "text": f"{share.value:.0f} %",
            "low": numbers([share.low])[0],
            "high": numbers([share.high])[0],
        }
        for scheme, share in shown.items()
    ]
    schemes = list(shown)
    base = chart_of("busy", shown=True)
    at = alt.Y("scheme:N", title=None, sort=schemes, axis=alt.Axis(labelLimit=150))
    across = alt.X("share:Q", title=BUSY_LABEL, scale=alt.Scale(domain=[0, 100]))
    colours = scheme_encodings(schemes, dashed=False)["color"].legend(None)
    tooltip = [
        alt.Tooltip("scheme:N"),
        alt.Tooltip("share:Q", title="at work, %", format=".1f"),
        alt.Tooltip("low:Q", title="95 % interval from", format=".1f"),
        alt.Tooltip("high:Q", title="to", format=".1f"),
        alt.Tooltip("seeds:Q"),
    ]
    bars = base.mark_bar(fillOpacity=0.45, strokeWidth=1).encode(
        x=across, y=at, color=colours, stroke=alt.Stroke("scheme:N", legend=None).scale(
            colours.to_dict()["scale"]
        ), tooltip=tooltip,
    )  # fmt: skip
    whiskers = base.transform_filter("isValid(datum.low)")
    tick = whiskers.mark_tick(thickness=1.5, size=9, color="#444444")
    ends = [tick.encode(x=alt.X(f"{end}:Q"), y=at) for end in ("low", "high")]
    line = whiskers.mark_rule(color="#444444", strokeWidth=1.5).encode(
        x=alt.X("low:Q"), x2=alt.X2("high"), y=at
    )
    text = base.mark_text(align="left", dx=4).encode(
        x=alt.value("width"), y=at, text=alt.Text("text:N")
    )
    return Figure(
        name="busy",
        title=TITLES["busy"],
        chart=alt.layer(bars, line, *ends, text, height=30 + 24 * len(schemes)),
        data={"busy": rows},
        setup=title_of(setup.study),
        note=f"{BUSY_NOTE} {how_measured(setup.study)}".rstrip(),
    )


def probabilities_figures(setup: Setup) -> list[Figure]:
    """Show the probabilities of each optimising scheme, all on the same axes."""
    shown = solved_schemes(setup)
    every = np.concatenate([q for *_, q in shown])
    x = log_position(np.concatenate([run.profile.times for _, run, _ in shown]), most=6)
    y = log_position([*every, *(2 / q.size for *_, q in shown)])
    return [
        probabilities_figure(
            run.profile,
            q,
            scheme=scheme,
            title=f"Probabilities of {scheme}, seed {run.seed}",
            setup=title_of(setup.study),
            x=x,
            y=y,
        )
        for scheme, run, q in shown
    ]


def sensitivity_figure(sweep: Sweep) -> Figure:
    """Show time to the target against c/S_0; a star marks the estimated c."""
    lines = sensitivities(sweep)
    seconds = baseline_seconds(sweep).value
    schemes = [line.scheme for line in lines]
    rows: Records = []
    stars: Records = []
    for index, line in enumerate(lines):
        # Side by side, so that no bar hides another.
        aside = 1.05 ** (index - (len(lines) - 1) / 2)
        rows += _given_points(sweep, line, aside)
        if line.star:
            first, middle, last = line.star
            stars.append({"scheme": line.scheme, "x": middle, "first": first, "last": last,
                          "seconds": numbers([line.estimated.value])[0]})  # fmt: skip
    at = axis_positions(sweep.values)
    labels = f"{[f'{value:g}' for value in sweep.values]}[indexof({at}, datum.value)]"
    edge = [*at, *(star[end] for star in stars for end in ("first", "last"))]
    across = alt.X(
        "x:Q",
        title="c / S₀, given",
        scale=log_position(edge)["scale"],
        axis=alt.Axis(values=at, labelExpr=labels, grid=True),
    )
    up = alt.Y("seconds:Q", title="time to the target, s", scale=alt.Scale(zero=True))
    both = scheme_encodings(schemes)
    given, starred = chart_of("given", shown=True), chart_of("stars", shown=True)
    tooltip = [
        alt.Tooltip("scheme:N"),
        alt.Tooltip("c:N", title="c / S₀"),
        alt.Tooltip("seconds:Q", title="seconds", format=",.4~r"),
    ]
    layers: list[alt.Chart] = []
    if math.isfinite(seconds):
        layers += level(seconds, f"{BASELINE} {seconds:,.0f} s")
    if any(row["low"] is not None for row in rows):
        interval = given.mark_rule().encode(
            x=across, y=alt.Y("low:Q"), y2=alt.Y2("high"), color=both["color"]
        )
        layers.append(interval)
    layers += [
        given.mark_line().encode(x=across, y=up, **both),
        given.mark_point(filled=True, size=50, opacity=1).encode(
            x=across, y=up, color=both["color"], tooltip=tooltip
        ),
    ]
    if stars:
        layers += [
            starred.mark_rule().encode(
                x=alt.X("first:Q"), x2=alt.X2("last"), y=up, color=both["color"]
            ),
            starred.mark_point(
                shape=STAR, size=350, filled=True, opacity=1, stroke="black", strokeWidth=1
            ).encode(x=across, y=up, color=both["color"], tooltip=[tooltip[0], tooltip[2]]),
        ]
    estimated = estimate_note(lines)
    return Figure(
        name="sensitivity",
        title="Time to the target against c",
        chart=alt.layer(*layers, height=HEIGHT),
        data={"given": rows, "stars": stars},
        setup=title_of(sweep.members[0].study),
        note=f"{estimated}. {SENSITIVITY_NOTE}".removeprefix(". "),
    )


def estimate_note(lines: Sequence[Sensitivity]) -> str:
    """Return in how many runs c could not be estimated; empty if none tried."""
    total = sum(len(line.chosen) for line in lines)
    default = sum(line.defaults for line in lines)
    note = f"Star: c estimated; not identified, so near S₀, in {default} of {total} runs"
    return note if total else ""


def _given_points(sweep: Sweep, line: Sensitivity, aside: float) -> Records:
    points = line.seconds
    return records(
        scheme=[line.scheme] * len(points),
        x=[aside * place for place in axis_positions(sweep.values)],
        c=[f"{value:g}" for value in sweep.values],
        seconds=numbers(point.value for point in points),
        low=numbers(point.low for point in points),
        high=numbers(point.high for point in points),
    )
