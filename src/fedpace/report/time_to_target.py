"""When runs reach their target, at what cost, and 95 % intervals over seeds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import numpy as np
from scipy.special import stdtrit

from fedpace.checks import FloatArray
from fedpace.studies.store import StoredRun
from fedpace.studies.study import Study
from fedpace.training.history import Row

CONFIDENCE = 0.95
BySeed = dict[int, float]


class Interval(NamedTuple):
    """A value with its 95 % interval over `seeds` runs; the ends are NaN for fewer than two.

    `bound` is "≥" where runs that never got there would make the value larger, "≤" where they
    would make it smaller, "≈" where they pull either way, and empty where there are none.
    """

    value: float = math.nan
    low: float = math.nan
    high: float = math.nan
    seeds: int = 0
    bound: str = ""


def mean_interval(values: Iterable[float]) -> Interval:
    """Return the mean of the finite values with Student's interval of the mean.

    >>> mean_interval([1.0, 3.0, math.inf])._replace(low=0, high=0)
    Interval(value=2.0, low=0, high=0, seeds=2, bound='≥')
    """
    every = np.array(list(values), dtype=np.float64)
    finite = every[np.isfinite(every)]
    if finite.size == 0:
        return Interval()
    mean, half = float(finite.mean()), _half_width(finite)
    bound = "≥" if finite.size < every.size else ""
    return Interval(mean, mean - half, mean + half, finite.size, bound)


def time_interval(values: Iterable[float]) -> Interval:
    """Return the mean of times with an interval that cannot go below zero.

    It is Student's by the delta method on the logarithm: mean · exp(± t s / (√n mean)).

    >>> found = time_interval([1.0, 1000.0])
    >>> found.value, found.low > 0
    (500.5, True)
    """
    plain = mean_interval(values)
    if not plain.value > 0:
        return plain
    factor = math.exp((plain.high - plain.value) / plain.value)
    return plain._replace(low=plain.value / factor, high=plain.value * factor)


def ratio_interval(numerators: BySeed, denominators: BySeed) -> Interval:
    """Return the ratio of two means over the seeds that both have, with an interval.

    R = Σ a_s / Σ b_s over the seeds s in which both arrived. Both share the data, device times
    and initial model of a seed, so a_s and b_s are paired: the interval is that of the delta
    method, from the spread of a_s − R b_s, with Student's factor. It is taken on log R: it stays
    positive, and the inverse ratio has the inverse interval. A bootstrap over seeds does as well
    for fifty seeds, but is far too narrow for three.

    >>> ratio_interval({0: 2.0, 1: 4.0}, {0: 1.0, 1: 2.0})
    Interval(value=2.0, low=2.0, high=2.0, seeds=2, bound='')
    """
    seeds = sorted(numerators.keys() & denominators.keys())
    pairs = np.array([(numerators[seed], denominators[seed]) for seed in seeds]).reshape(-1, 2)
    arrived = np.isfinite(pairs)
    both = pairs[arrived.all(axis=1)]
    if len(both) == 0 or both.sum(axis=0).min() <= 0:
        return Interval()
    top, bottom = both.mean(axis=0)
    ratio = float(top / bottom)
    factor = math.exp(_half_width((both[:, 0] - ratio * both[:, 1]) / top))
    above, below = np.all(arrived, axis=0).tolist()
    bound = "" if above and below else "≥" if below else "≤" if above else "≈"
    return Interval(ratio, ratio / factor, ratio * factor, len(both), bound)


def invert(ratio: Interval) -> Interval:
    """Return the inverse of a ratio: 2 for half the time, with the inverse interval.

    >>> invert(Interval(0.5, 0.25, 1.0, 3, "≥"))
    Interval(value=2.0, low=1.0, high=4.0, seeds=3, bound='≤')
    """
    bounds = {"≥": "≤", "≤": "≥"}
    value, low, high = (
        1 / each if each > 0 else math.nan for each in (ratio.value, ratio.high, ratio.low)
    )
    return Interval(value, low, high, ratio.seeds, bounds.get(ratio.bound, ratio.bound))


def seeds_needed(ratio: Interval, *, most: int = 1_000) -> int | None:
    """Return how many more seeds would show that a ratio like this one is not 1.

    The standard deviation s of log R per seed follows from the interval; the result is n' − n for
    the smallest n' ≥ n with t(n' − 1) s / √n' < |log R|. None if more than `most` would be needed.

    >>> seeds_needed(Interval(1.5, 1.5 / 2, 1.5 * 2, seeds=3))
    2
    """
    if not ratio.seeds > 1 or not math.isfinite(ratio.high) or ratio.value in (0.0, 1.0):
        return None
    shift = abs(math.log(ratio.value))
    spread = (
        math.log(ratio.high / ratio.value) * math.sqrt(ratio.seeds) / student_factor(ratio.seeds)
    )
    for more in range(most + 1):
        n = ratio.seeds + more
        if student_factor(n) * spread / math.sqrt(n) < shift:
            return more
    return None


def student_factor(n: int) -> float:
    """Return the quantile of Student's t for the 95 % interval of a mean of n values."""
    return float(stdtrit(n - 1, (1 + CONFIDENCE) / 2))


def _half_width(values: FloatArray) -> float:
    """Return t · s/√n, and NaN for a single value."""
    if values.size < 2:
        return math.nan
    factor = student_factor(values.size)
    return factor * float(values.std(ddof=1)) / math.sqrt(values.size)


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
    """Return whether a study's runs go on past the first touch, to a sustained target loss."""
    return study.stop.loss is not None and study.stop.sustained


def arrival(run: StoredRun) -> Row | None:
    """Return the row in which a run first reached its study's target, if any.

    Only evaluated losses count: what the drawn clients report may be below the target by chance.
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


def client_times(run: StoredRun) -> FloatArray:
    """Return t_i: as known beforehand, else as measured on average in the run.

    A client that never answered counts with the mean of the others.
    """
    rows = run.history.rows
    clients = np.concatenate([row.clients for row in rows])
    known = run.study.devices.known and run.study.network is None
    if known or not clients.size:
        return run.profile.times
    counts = np.bincount(clients, minlength=run.profile.n)
    sums = np.bincount(clients, np.concatenate([row.client_seconds for row in rows]), counts.size)
    usual = sums.sum() / counts.sum()
    out = np.full(counts.size, usual)
    times: FloatArray = np.divide(sums, counts, out=out, where=counts > 0)
    return times


def seconds_to_hear_all(run: StoredRun) -> float:
    """Return max(t_max, Σ t_i / C): the least time in which C at work hear from every client."""
    times = client_times(run)
    return max(float(times.max()), float(times.sum()) / run.study.training.slots)


def full_in_turn(run: StoredRun) -> float:
    """Return the rounds of full participation as steps of one client, R Σ p_i t_i / C.

    The C slots are always busy.
    """
    last, slots = arrival(run), run.study.training.slots
    each = float(run.profile.weights @ client_times(run)) / slots
    return math.inf if last is None else last.round * each


def seconds_of(row: Row | None) -> float:
    """Return the seconds of a row; ∞ for none."""
    return math.inf if row is None else row.seconds


MEGABYTE = 1e6


class Costs(NamedTuple):
    """What runs cost on average until they reached the target, or ended.

    `device_seconds` are all seconds that clients worked, `wasted` the share of them that brought
    nothing: candidates, late replies, clients that left, and the pilot that was dropped.
    `down` and `up` are megabytes; `busiest` is the share of the busiest client in all work that
    counted. `updates` are those that came, `staleness` is how many steps old they were on average,
    asynchronously. `accuracy` and `slow_accuracy`, on the slowest fifth of clients, are those at
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


# The titles of the table of costs, and how its numbers are written.
COST_COLUMNS: dict[str, tuple[str, Literal["count", "amount", "share"]]] = {
    "device_seconds": ("device-seconds", "count"),
    "updates": ("updates", "count"),
    "wasted": ("wasted", "share"),
    "down": ("MB down", "amount"),
    "up": ("MB up", "amount"),
    "busiest": ("busiest client", "share"),
    "staleness": ("staleness, steps", "amount"),
    "accuracy": ("final accuracy", "share"),
    "slow_accuracy": ("of the slowest fifth", "share"),
}


def costs_of(runs: Sequence[StoredRun]) -> Costs:
    """Return what a scheme's runs cost."""
    each = [_costs(run) for run in runs]
    found = Costs(*(time_interval(_finite(values)) for values in zip(*each, strict=True)))
    means = dict(
        zip(
            Costs._fields, (mean_interval(_finite(v)) for v in zip(*each, strict=True)), strict=True
        )
    )
    metrics = {name: means[name] for name in ("accuracy", "slow_accuracy")}
    shares = {name: means[name] for name in ("wasted", "busiest")}
    if all(run.study.measures_accuracy for run in runs):  # else a metric, of any size
        shares |= metrics
    limited = {name: _share(each) for name, each in shares.items()}
    return found._replace(**metrics | limited)


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


def _finite(values: Sequence[float]) -> list[float]:
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
