"""What the figures of a study show: curves over seeds, probabilities, sensitivity to c."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedpace.report.arrivals import sustains
from fedpace.report.busy import busy_drawing
from fedpace.report.curves import Abscissa, Ordinate, panel, shows_accuracy
from fedpace.report.drawing import (
    BLACK,
    Axis,
    Drawing,
    Level,
    Line,
    Mark,
    Uprights,
    colour,
    log_axis,
    looks,
)  # fmt: skip
from fedpace.report.fleet_drawings import chances_drawing
from fedpace.report.measured import how_measured
from fedpace.report.sensitivity import (
    Sensitivity,
    baseline_seconds,
    estimate_note,
    places,
    sensitivities,
)
from fedpace.report.setups import Setup, Sweep, optimising
from fedpace.report.summary import BASELINE, Summary
from fedpace.report.titles import title_of
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
}
LABELS = {
    "loss": "global training loss",
    "accuracy": "test accuracy, %",
    "seconds": "wall-clock time, s",
    "round": "round",
}
BAND_NOTE = "Lines: mean over seeds; bands: central 80 % of the runs."
TARGET_NOTE = " Dots: mean first arrival at the target"
GOING_ON = "; runs go on until it is sustained"
SENSITIVITY_NOTE = (
    "Points: mean over seeds, bars: its 95 % interval; star's bar: central 80 % of the estimates."
)


def drawings(summary: Summary) -> Iterator[Sequence[Drawing]]:
    """Yield what there is to draw of a setup but for timelines, by file."""
    setup = summary.setup
    accuracy = shows_accuracy(setup)
    for name, y, x in CURVES:
        if accuracy or y != "accuracy":
            yield [curve_drawing(summary, name, y, x)]
    if (busy := busy_drawing(setup)).marks:
        yield [busy]
    if optimising(setup):
        yield chances_drawings(setup)


def target_note(study: Study) -> str:
    """Return what the dots of a curve mean, and why it goes on behind them."""
    return "" if study.stop.loss is None else f"{TARGET_NOTE}{GOING_ON * sustains(study)}."


def loss_axis(losses: Iterable[float]) -> Axis:
    """Return the axis of losses."""
    return log_axis(LABELS["loss"], losses)


def curve_drawing(summary: Summary, name: str, y: Ordinate, x: Abscissa) -> Drawing:
    """Show every scheme's mean and band, the target, and where pilots end."""
    shown, study = panel(summary, y, x), summary.setup.study
    loss = y == "loss"
    form = "{y:.3f}" if loss else "{y:.1f}"
    marks: list[Mark] = [
        Line(line.x, line.mean, (line.low, line.high), hover=form, **looks(scheme))
        for scheme, line in shown.curves.items()
    ]
    if math.isfinite(shown.target):
        marks.append(Level(shown.target, shown.target_text, below=loss))
    dot: dict[str, Any] = {"dash": "", "symbol": "dot", "size": 6, "edge": "#ffffff"}
    marks += [
        Line([mean], [shown.target], scheme=scheme, colour=colour(scheme), **dot)
        for scheme, mean in shown.arrivals.items()
    ]
    marks.append(Uprights(shown.pilots, ["pilots end"] * len(shown.pilots)))
    values = [each for line in shown.curves.values() for each in (*line.low, *line.high)]
    note = BAND_NOTE + target_note(study) * loss
    return Drawing(
        name=name,
        title=TITLES[name],
        setup=title_of(study),
        note=f"{note} {how_measured(study)}".rstrip(),
        x=Axis(LABELS[x], ends=(0, None)),
        y=loss_axis([*values, shown.target]) if loss else Axis(LABELS[y]),
        marks=marks,
        along_x=True,
    )


def chances_drawings(setup: Setup) -> list[Drawing]:
    """Show the probabilities of each optimising scheme, all on the same axes."""
    shown = optimising(setup)
    found = [
        chances_drawing(
            run.profile,
            q,
            scheme=scheme,
            title=f"Probabilities of {scheme}, seed {run.seed}",
            setup=title_of(setup.study),
        )
        for scheme, run, q in shown
    ]
    times = np.concatenate([run.profile.times for _, run, _ in shown])
    x = log_axis(found[0].x.title, times, most=6)
    y = log_axis(found[0].y.title, np.concatenate([q for *_, q in shown]))
    return [replace(each, x=x, y=y) for each in found]


def sensitivity_drawing(sweep: Sweep) -> Drawing:
    """Show time to the target against c/S_0, with what was estimated marked by a star."""
    lines = sensitivities(sweep)
    seconds = baseline_seconds(sweep).value
    known = math.isfinite(seconds)
    marks: list[Mark] = [Level(seconds, f"{BASELINE} {seconds:,.0f} s")] if known else []
    for index, line in enumerate(lines):
        # Beside one another, so that no bar hides another.
        marks += _sensitivity(sweep, line, 1.05 ** (index - (len(lines) - 1) / 2))
    ticks = {at: f"{value:g}" for at, value in zip(places(sweep.values), sweep.values, strict=True)}
    return Drawing(
        name="sensitivity",
        title="Time to the target against c",
        setup=title_of(sweep.members[0].study),
        note=f"{estimate_note(sweep)}. {SENSITIVITY_NOTE}".removeprefix(". "),
        x=Axis("c / S₀, given", log=True, ticks=ticks),
        y=Axis("time to the target, s", ends=(0, None)),
        marks=marks,
    )


def _sensitivity(sweep: Sweep, line: Sensitivity, aside: float) -> Iterator[Mark]:
    x = [aside * place for place in places(sweep.values)]
    y, low, high = zip(*(point[:3] for point in line.seconds), strict=True)
    told = [[value] for value in sweep.values]
    given: dict[str, Any] = {"hover": "c = {0} S₀: {y:,.0f} s", "told": told, "symbol": "dot"}
    yield Line(x, y, y_whiskers=(low, high), **given, **looks(line.scheme))
    if line.star:
        first, middle, last = line.star
        star: dict[str, Any] = {"dash": "", "symbol": "star", "size": 14, "edge": BLACK}
        star |= {"hover": "c estimated, median {x:.3g} S₀: {y:,.0f} s"}
        star |= {"scheme": line.scheme, "colour": colour(line.scheme)}
        yield Line([middle], [line.estimated.value], x_whiskers=([first], [last]), **star)
