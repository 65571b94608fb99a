"""From runs to numbers: each scheme's time to the target, and curves over seeds, with intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from fedpace.checks import FloatArray
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
from fedpace.training.history import Row

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


def axis_positions(values: Sequence[float]) -> list[float]:
    """Return where values of c/S_0 go on a logarithmic axis: 0 a step left of all others.

    >>> axis_positions([0.0, 0.3, 1.0])
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
        axis_positions([*sweep.values, *span])[len(sweep.values) :],
    )


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
