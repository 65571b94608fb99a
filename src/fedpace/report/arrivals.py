"""When runs reach their target: at first touch, sustained, and without the pilots."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from fedpace.report.intervals import BySeed
from fedpace.rounds.rows import Row
from fedpace.studies.store import StoredRun
from fedpace.studies.study import Study


class Times(NamedTuple):
    """Seconds by seed: to the target, of the pilots, and to the target without the pilots.

    `sustained` are those to the sustained target; it is empty for runs that ended at the first
    touch.
    """

    gross: BySeed
    pilots: BySeed
    net: BySeed
    sustained: BySeed


def times_of(runs: Sequence[StoredRun]) -> Times:
    """Return the seconds of a scheme's runs; ∞ where a run never reached the target."""
    gross = {run.seed: seconds_of(arrival(run)) for run in runs}
    pilots = {run.seed: pilot_seconds(run) for run in runs}
    # A target that is reached within the pilots needs nothing beyond them.
    net = {seed: max(gross[seed] - pilots[seed], 0.0) for seed in gross}
    sustained = {
        run.seed: run.history.time_to(loss=run.study.stop.loss, sustained=True)
        for run in runs
        if sustains(run.study)
    }
    return Times(gross, pilots, net, sustained)


def pilot_seconds(run: StoredRun) -> float:
    """Return the seconds after which the pilots were over; 0 for a run without pilots."""
    pilots = (row.seconds for row in run.history.rows if row.phase.startswith("pilot"))
    return max(pilots, default=0.0)


def sustains(study: Study) -> bool:
    """Tell whether a study's runs go on past the first touch, to a sustained target loss."""
    return study.stop.loss is not None and study.stop.sustained


def arrival(run: StoredRun) -> Row | None:
    """Return the row in which a run was first seen to have reached its study's target, if it was.

    What the drawn clients report may be below the target by luck, and does not count.
    """
    stop = run.study.stop
    if stop.loss is None:
        return None if stop.accuracy is None else accuracy_arrival(run, stop.accuracy)
    rows = (row for row in run.history.rows if row.evaluated)
    return next((row for row in rows if row.loss <= stop.loss), None)


def accuracy_arrival(run: StoredRun, accuracy: float) -> Row | None:
    """Return the row in which a trained model first had the accuracy, if it did.

    The initial model does not count: with all classes tied its accuracy says nothing.
    """
    trained = (row for row in run.history.rows if row.round > 0)
    return next((row for row in trained if row.accuracy >= accuracy), None)


def seconds_of(row: Row | None) -> float:
    """Return the seconds of a row; ∞ for none."""
    return math.inf if row is None else row.seconds
