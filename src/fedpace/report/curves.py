"""Curves over seeds: the mean and the band of many runs on a common grid."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import numpy as np

from fedpace.checks import FloatArray
from fedpace.report.setups import Setup
from fedpace.report.summary import Summary
from fedpace.studies.store import StoredRun
from fedpace.training.history import Row

# Finer than a screen shows, and small enough for a page with dozens of curves.
GRID_POINTS = 130
# The band holds the middle 80 % of the runs: their spread, which more seeds do not shrink.
BAND = (10, 90)
# Two ends of pilots are one where the later is later by no more than this part.
NEAR = 0.1

Ordinate = Literal["loss", "accuracy"]
Abscissa = Literal["seconds", "round"]


class Curve(NamedTuple):
    """Mean and band over runs."""

    x: FloatArray
    mean: FloatArray
    low: FloatArray
    high: FloatArray


class Panel(NamedTuple):
    """What a figure shows, accuracy in percent: the curve of each scheme, and marks.

    `target` is NaN if there is none. `arrivals` are the mean first arrivals at the target
    loss, by scheme; `pilots` the places where pilots end.
    """

    curves: dict[str, Curve]
    target: float
    target_text: str
    arrivals: dict[str, float]
    pilots: list[float]


def panel(summary: Summary, y: Ordinate, x: Abscissa) -> Panel:
    """Collect what the figure of a quantity against time or rounds shows."""
    setup = summary.setup
    runs = {scheme: setup.of(scheme) for scheme in setup.schemes}
    curves = {scheme: curve(each, y, x) for scheme, each in runs.items() if has(each, y)}
    pilots = _places(pilots_end(each, x) for each in runs.values())
    if y == "accuracy":
        target = 100 * summary.accuracy.value
        percent = {
            name: Curve(at, *(100 * each for each in ys)) for name, (at, *ys) in curves.items()
        }
        return Panel(percent, target, f"target accuracy {target:.1f} %", {}, pilots)
    loss = setup.study.stop.loss
    if loss is None:
        return Panel(curves, math.nan, "", {}, pilots)
    means = {row.scheme: row.seconds if x == "seconds" else row.rounds for row in summary.rows}
    arrivals = {name: mean.value for name, mean in means.items() if math.isfinite(mean.value)}
    return Panel(curves, loss, f"target loss {loss:g}", arrivals, pilots)


def curve(runs: Sequence[StoredRun], y: Ordinate, x: Abscissa) -> Curve:
    """Return the mean and the band of runs, at least one of which has the quantity.

    Each run is a step function: at a time, the last evaluation before it counts. A run that has
    ended keeps its last value, or else only the slow ones would be averaged; the curve ends where
    fewer than half of the runs are still going.
    """
    paths = [path for run in runs if (path := _path(run, y, x))[0].size]
    start = max(xs[0] for xs, _ in paths)
    end = sorted(xs[-1] for xs, _ in paths)[len(paths) // 2]
    grid = np.linspace(start, max(start, end), GRID_POINTS)
    if x == "round":
        grid = np.unique(np.rint(grid))
    values = np.array([ys[np.searchsorted(xs, grid, side="right") - 1] for xs, ys in paths])
    with np.errstate(invalid="ignore"):  # a run that diverged has no finite mean
        low, high = np.percentile(values, BAND, axis=0)
        return Curve(grid, values.mean(axis=0), low, high)


def has(runs: Sequence[StoredRun], y: Ordinate) -> bool:
    """Tell whether there is anything to draw: accuracy is known where it was evaluated alone."""
    return any(_path(run, y, "seconds")[0].size for run in runs)


def shows_accuracy(setup: Setup) -> bool:
    """Tell whether the accuracy was evaluated along the way, and not at most at the end."""
    network = setup.study.network
    if network is not None and network.evaluate_every == 0:
        return False
    if not setup.study.measures_accuracy:
        return False
    return any(has(setup.of(scheme), "accuracy") for scheme in setup.schemes)


def own_rounds(run: StoredRun) -> list[Row]:
    """Return the rows on the way of the final model: of the pilots, the one trained on from."""
    rows = run.history.rows
    phases = ("pilot-uniform", "pilot-weighted")
    pilots = [[row for row in rows[1:] if row.phase == name] for name in phases]
    # The better pilot goes on, the first of two equal ones: see estimation.pilots.
    best = min(pilots, key=_last_loss)
    return [rows[0], *best, *(row for row in rows[1:] if not row.phase.startswith("pilot"))]


def pilots_end(runs: Sequence[StoredRun], x: Abscissa) -> float:
    """Return where the pilots were over, averaged over runs; NaN for runs without any."""
    ways = [own_rounds(run) if x == "round" else run.history.rows for run in runs]
    pilots = [[row for row in way if row.phase.startswith("pilot") and row.round] for way in ways]
    ends = [getattr(rows[-1], x) for rows in pilots if rows]
    return float(np.mean(ends)) if ends else math.nan


def _places(ends: Iterable[float]) -> list[float]:
    """Return distinct ends of pilots: measured clocks differ a little where schemes drew alike."""
    places: list[float] = []
    for end in sorted(filter(math.isfinite, ends)):
        if not places or end > (1 + NEAR) * places[-1]:
            places.append(round(end, 9))
    return places


def _path(run: StoredRun, y: Ordinate, x: Abscissa) -> tuple[FloatArray, FloatArray]:
    rows = own_rounds(run) if x == "round" else list(run.history.rows)
    if y == "accuracy":
        if len(rows) > 1:
            rows = rows[1:]  # the initial model has all classes tied: no accuracy to speak of
        rows = [row for row in rows if not math.isnan(row.accuracy)]
    elif run.study.network is None or run.study.network.evaluate_every > 0:
        rows = [row for row in rows if row.evaluated]  # without what clients report in between
    xs, ys = (np.array([getattr(row, name) for row in rows], dtype=np.float64) for name in (x, y))
    return xs, ys


def _last_loss(pilot: Sequence[Row]) -> float:
    return pilot[-1].loss if pilot and math.isfinite(pilot[-1].loss) else math.inf
