"""From runs to numbers: how long each scheme takes to the target, with intervals over seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from fedpace.report.arrivals import Times, accuracy_arrival, arrival, seconds_of, times_of
from fedpace.report.costs import Costs, costs_of
from fedpace.report.intervals import Interval, mean_interval, ratio_interval, time_interval
from fedpace.report.setups import Setup

BASELINE = "uniform"
PROPOSED = "optimal-mean"
NO_TIMES = Times({}, {}, {}, {})


class SchemeSummary(NamedTuple):
    """One line of the table: seconds and rounds to the target, and ratios of the seconds.

    `net` means without the pilots' seconds. A ratio below 1 is faster than what it is taken to.
    `seconds` count to the first touch of the target, `sustained` until the mean of the last ten
    evaluated losses has reached it; NaN for runs that ended at the first touch. `costs` is what it
    took of devices and networks.
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
    sustained_seconds: Interval
    sustained_to_proposed: Interval
    accuracy_reached: int
    accuracy_seconds: Interval
    paper_seconds: float
    paper_ratio: float
    costs: Costs


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


def summarise(setup: Setup) -> Summary:
    """Compute every number of a setup's table."""
    accuracy = target_accuracy(setup)
    times = {scheme: times_of(setup.of(scheme)) for scheme in setup.schemes}
    rows = (_row(setup, scheme, accuracy.value, times) for scheme in setup.schemes)
    return Summary(setup, accuracy, tuple(rows))


def target_accuracy(setup: Setup) -> Interval:
    """Return the accuracy with which optimal-mean reaches the target loss, averaged over seeds.

    So the paper defines it; a study that stops at an accuracy has that one.
    """
    stop = setup.study.stop
    if stop.accuracy is not None:
        return Interval(stop.accuracy)
    if not setup.study.measures_accuracy:
        return Interval()
    arrivals = (arrival(run) for run in setup.of(PROPOSED))
    known = (row.accuracy for row in arrivals if row is not None)
    return mean_interval(accuracy for accuracy in known if not math.isnan(accuracy))


def _row(setup: Setup, scheme: str, accuracy: float, times: Mapping[str, Times]) -> SchemeSummary:
    runs, mine = setup.of(scheme), times[scheme]
    baseline, proposed = (times.get(name, NO_TIMES) for name in (BASELINE, PROPOSED))
    to_accuracy = [seconds_of(accuracy_arrival(run, accuracy)) for run in runs]
    arrivals = [arrival(run) for run in runs]
    paper = setup.study.paper.get(scheme, math.nan)
    return SchemeSummary(
        scheme=scheme,
        runs=len(runs),
        reached=sum(row is not None for row in arrivals),
        seconds=time_interval(mine.gross.values()),
        rounds=time_interval(math.inf if row is None else row.round for row in arrivals),
        pilot_seconds=time_interval(mine.pilots.values()),
        net_seconds=time_interval(mine.net.values()),
        to_uniform=ratio_interval(mine.gross, baseline.gross),
        to_proposed=ratio_interval(mine.gross, proposed.gross),
        net_to_uniform=ratio_interval(mine.net, baseline.net),
        net_to_proposed=ratio_interval(mine.net, proposed.net),
        sustained_seconds=time_interval(mine.sustained.values()),
        sustained_to_proposed=ratio_interval(mine.sustained, proposed.sustained),
        accuracy_reached=sum(map(math.isfinite, to_accuracy)),
        accuracy_seconds=time_interval(to_accuracy),
        paper_seconds=paper,
        paper_ratio=paper / setup.study.paper.get(PROPOSED, math.nan),
        costs=costs_of(runs),
    )
