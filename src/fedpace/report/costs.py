"""What it cost to reach the target: work of devices, traffic, and whom it fell on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedpace.report.arrivals import arrival
from fedpace.report.intervals import Interval, mean_interval
from fedpace.rounds.rows import Row
from fedpace.studies.store import StoredRun

MEGABYTE = 1e6


class Costs(NamedTuple):
    """What runs cost on average until they reached the target, or ended.

    `device_seconds` are all seconds that clients worked, `wasted` the share of them that brought
    nothing: candidates, late replies, clients that left, and the pilot that was not gone on with.
    `down` and `up` are megabytes; `busiest` is the share of the busiest client in all work that
    counted. `updates` are those that came, `staleness` is how many steps old they were on average,
    without a barrier. `accuracy` and `slow_accuracy`, on the slowest fifth of clients, are those at
    the end of the run.
    """

    device_seconds: Interval
    updates: Interval
    wasted: Interval
    down: Interval
    up: Interval
    busiest: Interval
    staleness: Interval
    accuracy: Interval
    slow_accuracy: Interval


def costs_of(runs: Sequence[StoredRun]) -> Costs:
    """Return what a scheme's runs cost."""
    each = [_costs(run) for run in runs]
    found = Costs(*(mean_interval(_known(values)) for values in zip(*each, strict=True)))
    measured = all(run.study.measures_accuracy for run in runs)  # else a metric, of any size
    shares = ("wasted", "busiest", *("accuracy", "slow_accuracy") * measured)
    return found._replace(**{name: _share(getattr(found, name)) for name in shares})


def _share(interval: Interval) -> Interval:
    """Return the interval of a share, which does not leave 0 to 1."""
    return interval._replace(low=max(interval.low, 0.0), high=min(interval.high, 1.0))


def _costs(run: StoredRun) -> tuple[float, ...]:
    rows = _until(run.history.rows, arrival(run))
    worked = sum(row.device_seconds for row in rows)
    wasted = sum(row.wasted_seconds for row in rows) + _dropped_pilot(run.history.rows)
    last = run.history.rows[-1]
    return (
        worked or math.nan,
        float(sum(row.clients.size for row in rows)),
        min(wasted / worked, 1.0) if worked else math.nan,
        sum(row.traffic_down for row in rows) / MEGABYTE or math.nan,
        sum(row.traffic_up for row in rows) / MEGABYTE or math.nan,
        _busiest(rows),
        _staleness(rows),
        last.accuracy,
        last.slow_accuracy,
    )


def _known(values: Sequence[float]) -> list[float]:
    return [value for value in values if math.isfinite(value)]


def _until(rows: Sequence[Row], end: Row | None) -> list[Row]:
    """Return the rows up to the one in which the target was reached."""
    return [row for row in rows if end is None or row.seconds <= end.seconds]


def _busiest(rows: Sequence[Row]) -> float:
    clients = np.concatenate([row.clients for row in rows]) if rows else np.empty(0, int)
    if not clients.size:
        return math.nan
    seconds = np.concatenate([row.client_seconds for row in rows])
    worked = np.bincount(clients, seconds)
    return float(worked.max() / worked.sum())


def _staleness(rows: Sequence[Row]) -> float:
    steps = np.concatenate([row.staleness for row in rows]) if rows else np.empty(0, int)
    return float(steps.mean()) if steps.size else math.nan


def _dropped_pilot(rows: Sequence[Row]) -> float:
    """Return the device-seconds of the pilot whose model training did not go on from."""
    ends = {row.phase: row for row in rows if row.phase.startswith("pilot")}
    first = next((row for row in rows if row.phase == "train" and row.round), None)
    if len(ends) < 2 or first is None:
        return 0.0
    begun = [row for row in ends.values() if row.round == first.round - 1]
    kept = min(begun or ends.values(), key=lambda row: row.loss).phase
    pilots = (row for row in rows if row.phase.startswith("pilot") and row.phase != kept)
    return sum(row.device_seconds - row.wasted_seconds for row in pilots)
