"""Curves over seeds: the mean and the band of many runs on a common grid."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from fedpace.checks import FloatArray
from fedpace.report.setups import Setup
from fedpace.rounds.rows import Row
from fedpace.studies.store import StoredRun

# Finer than a screen shows, and small enough for a page with dozens of curves.
GRID_POINTS = 300
# The band holds the middle 80 % of the runs: their spread, which more seeds do not shrink.
BAND = (10, 90)

Ordinate = Literal["loss", "accuracy"]
Abscissa = Literal["seconds", "round"]


class Curve(NamedTuple):
    """Mean and band over runs."""

    x: FloatArray
    mean: FloatArray
    low: FloatArray
    high: FloatArray


def curve(runs: Sequence[StoredRun], y: Ordinate, x: Abscissa) -> Curve:
    """Return the mean and the band of runs, at least one of which has the quantity.

    What is known at a time is the last evaluation before it, so each run is a step function. A
    run that has ended keeps its last value, for otherwise only the slow ones would be averaged;
    the curve ends where fewer than half of the runs are still going.
    """
    paths = [_path(run, y, x) for run in runs]
    paths = [(xs, ys) for xs, ys in paths if xs.size]
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
    return any(has(setup.of(scheme), "accuracy") for scheme in setup.schemes)


def own_rounds(run: StoredRun) -> list[Row]:
    """Return the rows on the way of the final model: of the pilots, the one trained on from."""
    rows = run.history.rows
    pilots = {
        name: [row for row in rows[1:] if row.phase == name]
        for name in ("pilot-uniform", "pilot-weighted")
    }
    # The better pilot goes on, the first of two equal ones: see estimation.pilots.
    best = min(pilots.values(), key=_last_loss)
    return [rows[0], *best, *(row for row in rows[1:] if not row.phase.startswith("pilot"))]


def pilots_end(runs: Sequence[StoredRun], x: Abscissa) -> float:
    """Return where the pilots were over, averaged over runs; NaN for runs without any."""
    ends = []
    for run in runs:
        rows = own_rounds(run) if x == "round" else run.history.rows
        pilots = [row for row in rows if row.phase.startswith("pilot") and row.round > 0]
        if pilots:
            ends.append(getattr(pilots[-1], x))
    return float(np.mean(ends)) if ends else math.nan


def _path(run: StoredRun, y: Ordinate, x: Abscissa) -> tuple[FloatArray, FloatArray]:
    rows = own_rounds(run) if x == "round" else list(run.history.rows)
    if y == "accuracy":
        if len(rows) > 1:
            rows = rows[1:]  # the initial model has all classes tied: no accuracy to speak of
        rows = [row for row in rows if not math.isnan(row.accuracy)]
    elif _evaluates(run):
        rows = [row for row in rows if row.evaluated]
    return (
        np.array([getattr(row, x) for row in rows], dtype=np.float64),
        np.array([getattr(row, y) for row in rows], dtype=np.float64),
    )


def _evaluates(run: StoredRun) -> bool:
    """Tell whether rounds were evaluated: then what clients reported in between is left out."""
    return run.study.network is None or run.study.network.evaluate_every > 0


def _last_loss(pilot: Sequence[Row]) -> float:
    return pilot[-1].loss if pilot and math.isfinite(pilot[-1].loss) else math.inf
