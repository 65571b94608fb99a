"""From runs to numbers: how long each scheme takes to the target, with intervals over seeds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import stats

from fedpace.checks import FloatArray
from fedpace.report.setups import Setup
from fedpace.rounds.rows import Row
from fedpace.studies.store import StoredRun

BASELINE = "uniform"
PROPOSED = "optimal-mean"
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


class SchemeSummary(NamedTuple):
    """One line of the table: seconds and rounds to the target, and ratios of the seconds.

    `net` means without the pilots' seconds. A ratio below 1 is faster than what it is taken to.
    """

    scheme: str
    runs: int
    reached: int
    seconds: Interval
    rounds: Interval
    pilot_seconds: Interval
    net_seconds: Interval
    to_uniform: Interval
    to_proposed: Interval
    net_to_uniform: Interval
    net_to_proposed: Interval
    accuracy_reached: int
    accuracy_seconds: Interval
    paper_seconds: float
    paper_ratio: float


@dataclass(frozen=True, eq=False)
class Summary:
    """The numbers of a setup; `accuracy` is the target accuracy, NaN if there is none."""

    setup: Setup
    accuracy: Interval
    rows: tuple[SchemeSummary, ...]

    @property
    def target(self) -> str:
        """The target in words, such as "loss 0.78"."""
        stop = self.setup.study.stop
        if stop.loss is not None:
            return f"loss {stop.loss:g}"
        return "the target" if stop.accuracy is None else f"accuracy {100 * stop.accuracy:g} %"


class Times(NamedTuple):
    """Seconds by seed: to the target, of the pilots, and to the target without the pilots."""

    gross: BySeed
    pilots: BySeed
    net: BySeed


def summarise(setup: Setup) -> Summary:
    """Compute every number of a setup's table."""
    accuracy = target_accuracy(setup)
    times = {scheme: times_of(setup.of(scheme)) for scheme in setup.schemes}
    rows = (_row(setup, scheme, accuracy.value, times) for scheme in setup.schemes)
    return Summary(setup, accuracy, tuple(rows))


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


def times_of(runs: Sequence[StoredRun]) -> Times:
    """Return the seconds of a scheme's runs; ∞ where a run never reached the target."""
    gross = {run.seed: _seconds(arrival(run)) for run in runs}
    pilots = {run.seed: pilot_seconds(run) for run in runs}
    # A target that is reached within the pilots needs nothing beyond them.
    net = {seed: max(gross[seed] - pilots[seed], 0.0) for seed in gross}
    return Times(gross, pilots, net)


def pilot_seconds(run: StoredRun) -> float:
    """Return the seconds after which the pilots were over; 0 for a run without pilots."""
    pilots = (row.seconds for row in run.history.rows if row.phase.startswith("pilot"))
    return max(pilots, default=0.0)


def target_accuracy(setup: Setup) -> Interval:
    """Return the accuracy with which optimal-mean reaches the target loss, averaged over seeds.

    So the paper defines it; a study that stops at an accuracy has that one.
    """
    stop = setup.study.stop
    if stop.accuracy is not None:
        return Interval(stop.accuracy)
    arrivals = (arrival(run) for run in setup.of(PROPOSED))
    known = (row.accuracy for row in arrivals if row is not None)
    return mean_interval(accuracy for accuracy in known if not math.isnan(accuracy))


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


def _row(setup: Setup, scheme: str, accuracy: float, times: Mapping[str, Times]) -> SchemeSummary:
    runs, mine = setup.of(scheme), times[scheme]
    baseline, proposed = (times.get(name, Times({}, {}, {})) for name in (BASELINE, PROPOSED))
    to_accuracy = [_seconds(accuracy_arrival(run, accuracy)) for run in runs]
    arrivals = [arrival(run) for run in runs]
    paper = setup.study.paper.get(scheme, math.nan)
    return SchemeSummary(
        scheme=scheme,
        runs=len(runs),
        reached=sum(row is not None for row in arrivals),
        seconds=mean_interval(mine.gross.values()),
        rounds=mean_interval(math.inf if row is None else row.round for row in arrivals),
        pilot_seconds=mean_interval(mine.pilots.values()),
        net_seconds=mean_interval(mine.net.values()),
        to_uniform=ratio_interval(mine.gross, baseline.gross),
        to_proposed=ratio_interval(mine.gross, proposed.gross),
        net_to_uniform=ratio_interval(mine.net, baseline.net),
        net_to_proposed=ratio_interval(mine.net, proposed.net),
        accuracy_reached=sum(map(math.isfinite, to_accuracy)),
        accuracy_seconds=mean_interval(to_accuracy),
        paper_seconds=paper,
        paper_ratio=paper / setup.study.paper.get(PROPOSED, math.nan),
    )


def _seconds(row: Row | None) -> float:
    return math.inf if row is None else row.seconds


def _half_width(values: FloatArray) -> float:
    """Return t · s/√n, and NaN for a single value."""
    if values.size < 2:
        return math.nan
    factor = float(stats.t.ppf((1 + CONFIDENCE) / 2, values.size - 1))
    return factor * float(values.std(ddof=1)) / math.sqrt(values.size)
