"""From runs to numbers: how long each scheme takes to the target, with intervals over seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedpace.report.setups import Setup, Sweep, plain_name
from fedpace.report.time_to_target import (
    Costs,
    Interval,
    Times,
    accuracy_arrival,
    arrival,
    costs_of,
    full_in_turn,
    mean_interval,
    ratio_interval,
    seconds_of,
    seconds_to_hear_all,
    time_interval,
    times_of,
)
from fedpace.studies.store import StoredRun

BASELINE = "uniform"
PROPOSED = "optimal-mean"
FULL = "full"
NO_TIMES = Times({}, {}, {}, {})


class SchemeSummary(NamedTuple):
    """One line of the table: seconds and rounds to the target, and ratios of the seconds.

    `net` means without the pilots' seconds. A ratio below 1 is faster than what it is taken to.
    `seconds` count to the first touch of the target, `sustained` until the mean of the last ten
    evaluated losses has reached it; NaN for runs that ended at the first touch. `best_other` is the
    other scheme with the shortest time. `to_limit` is the time over that in which every client can
    be heard once: see `seconds_to_hear_all`. `costs` is what it took of devices and networks.
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
    best_other: str
    to_best_other: Interval
    to_limit: Interval
    costs: Costs


@dataclass(frozen=True, eq=False)
class Summary:
    """The numbers of a setup; `accuracy` is the target accuracy, NaN if there is none.

    `times` are those of every scheme by seed.
    """

    setup: Setup
    accuracy: Interval
    rows: tuple[SchemeSummary, ...]
    times: Mapping[str, Times]

    @property
    def target(self) -> str:
        """The target in words, such as "loss 0.78"."""
        stop = self.setup.study.stop
        if stop.loss is not None:
            return f"loss {stop.loss:g}"
        return "the target" if stop.accuracy is None else f"accuracy {100 * stop.accuracy:g} %"

    @property
    def limits(self) -> tuple[Interval, Interval]:
        """Seconds to hear every client once, and those of full participation's steps in turn."""
        runs = [run for scheme in self.setup.schemes for run in self.setup.of(scheme)]
        once = {run.seed: seconds_to_hear_all(run) for run in runs}
        in_turn = map(full_in_turn, self.setup.of(FULL))
        return time_interval(once.values()), time_interval(in_turn)

    def ratio(self, scheme: str, other: str) -> Interval:
        """Return a scheme's time over another's, paired by seed."""
        return ratio_interval(self.times[scheme].gross, self.times[other].gross)


def summarise(setup: Setup) -> Summary:
    """Compute every number of a setup's table."""
    accuracy = target_accuracy(setup)
    times = {scheme: times_of(setup.of(scheme)) for scheme in setup.schemes}
    rows = (_row(setup, scheme, accuracy.value, times) for scheme in setup.schemes)
    return Summary(setup, accuracy, tuple(rows), times)


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
    baseline, proposed = (_times_like(times, name) for name in (BASELINE, PROPOSED))
    best_other = _best_other(times, scheme)
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
        best_other=best_other,
        to_best_other=ratio_interval(mine.gross, times.get(best_other, NO_TIMES).gross),
        to_limit=ratio_interval(mine.gross, {r.seed: seconds_to_hear_all(r) for r in runs}),
        costs=costs_of(runs),
    )


def _times_like(times: Mapping[str, Times], name: str) -> Times:
    """Return the times of a scheme; those of its asynchronous runs where there are no others."""
    own = (scheme for scheme in times if plain_name(scheme) == name)
    return times.get(name) or times.get(next(own, name), NO_TIMES)


def _best_other(times: Mapping[str, Times], scheme: str) -> str:
    """Return the other scheme that is soonest: most runs at the target first, then least time."""
    means = {
        name: (-sum(map(math.isfinite, each.gross.values())) / len(each.gross), mean.value)
        for name, each in times.items()
        if name != scheme and math.isfinite((mean := time_interval(each.gross.values())).value)
    }
    return min(means, key=lambda name: means[name], default="")


def busy_share(run: StoredRun) -> float:
    """Return the mean part of a round during which a drawn client works; NaN without rounds.

    Σ_i t_i / (K t_round) of each round of training, over the K clients that answered, each for t_i.
    Asynchronous: Σ_i t_i / (C t) over the run, with C clients to be at work; what was under way at
    the end is left out.
    """
    if run.study.training.asynchronous:
        return _busy_slots(run)
    rows = [
        row
        for row in run.history.rows
        if not row.phase.startswith("pilot") and row.clients.size and row.round_seconds > 0
    ]
    each = [row.client_seconds.sum() / (row.clients.size * row.round_seconds) for row in rows]
    return float(np.mean(each)) if each else math.nan


def _busy_slots(run: StoredRun) -> float:
    rows = run.history.rows
    busy = sum(float(row.client_seconds.sum() + row.missing_seconds.sum()) for row in rows)
    seconds = rows[-1].seconds - sum(row.waiting_seconds for row in rows)
    return min(busy / (run.study.training.slots * seconds), 1.0) if seconds > 0 else math.nan


def busy_shares(setup: Setup) -> dict[str, Interval]:
    """Return each scheme's share in percent, with its interval over seeds within 0 to 100."""
    found = {
        scheme: [100 * share for run in setup.of(scheme) if math.isfinite(share := busy_share(run))]
        for scheme in setup.schemes
    }
    means = {scheme: mean_interval(each) for scheme, each in found.items() if each}
    return {
        scheme: mean._replace(low=max(mean.low, 0.0), high=min(mean.high, 100.0))
        if mean.seeds > 1
        else mean
        for scheme, mean in means.items()
    }


class Sensitivity(NamedTuple):
    """Seconds to the target of a scheme over given c/S_0, and with c estimated.

    `chosen` holds the estimates of c/S_0 by seed order, `defaults` how many are the default.
    `star` says where they go on the axis: their median, between the ends of the central 80 %.
    """

    scheme: str
    seconds: list[Interval]
    estimated: Interval
    chosen: list[float]
    defaults: int
    star: list[float]


def sensitivities(sweep: Sweep) -> list[Sensitivity]:
    """Return, for each scheme of a sweep, the time to the target against c."""
    schemes = dict.fromkeys(scheme for setup in sweep.members for scheme in setup.schemes)
    return [_sensitivity(sweep, scheme) for scheme in schemes]


def places(values: Sequence[float]) -> list[float]:
    """Return where values of c/S_0 go on a logarithmic axis: 0 a step left of all others.

    >>> places([0.0, 0.3, 1.0])
    [0.1, 0.3, 1.0]
    """
    zero = round(min((value for value in values if value > 0), default=1.0) / 3, 12)
    return [value if value > 0 else zero for value in values]


def baseline_seconds(sweep: Sweep) -> Interval:
    """Return uniform's time to the target in the same setup, which does not depend on c."""
    runs = [] if sweep.base is None else sweep.base.of(BASELINE)
    return mean_interval(times_of(runs).gross.values())


def _sensitivity(sweep: Sweep, scheme: str) -> Sensitivity:
    runs = [] if sweep.base is None else sweep.base.of(scheme)
    chosen = [
        run.ratio.value / float(run.profile.importance.sum()) ** 2 for run in runs if run.ratio
    ]
    span = np.percentile(chosen, (10, 50, 90)).tolist() if chosen else []
    return Sensitivity(
        scheme,
        [time_interval(times_of(setup.of(scheme)).gross.values()) for setup in sweep.members],
        time_interval(times_of(runs).gross.values()),
        chosen,
        sum(run.ratio is not None and not run.ratio.identified for run in runs),
        places([*sweep.values, *span])[len(sweep.values) :],
    )
