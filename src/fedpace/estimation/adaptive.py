"""Algorithm 2: pilots, estimates, the optimal design, and training that goes on from there."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from fedpace.estimation.gradients import estimated_grad_norms
from fedpace.estimation.ratio import RatioEstimate, estimate_ratio
from fedpace.estimation.times import estimated_times
from fedpace.profile import Profile
from fedpace.rounds.backend import Backend
from fedpace.rounds.history import History, Row
from fedpace.rounds.journal import Journal
from fedpace.rounds.loop import start, train
from fedpace.rounds.schedules import Schedule
from fedpace.rounds.state import State
from fedpace.rounds.stopping import Stop
from fedpace.sampling.design import Design
from fedpace.sampling.schemes import SCHEMES, Scheme
from fedpace.seeds import Seeds


class Outcome(NamedTuple):
    """A finished run: what happened, where it ended, and what was known when q was chosen."""

    history: History
    state: State
    design: Design
    profile: Profile
    ratio: RatioEstimate | None = None


@dataclass(frozen=True)
class Pilots:
    """The two pilots of Algorithm 2, from which c is estimated.

    Parameters
    ----------
    thresholds : losses F_s
        Both pilots run until they pass the lowest.
    rounds : int
        Or until this many rounds are over.
    """

    thresholds: Sequence[float]
    rounds: int


@dataclass(frozen=True)
class WarmUp:
    """One pilot that is not thrown away: so many rounds of weighted sampling, then c = S_0.

    For a live federation, where training a model twice from the start is too dear, and where the
    two pilots would hardly ever identify c.
    """

    rounds: int


@dataclass(frozen=True)
class Live:
    """What a run needs that may be interrupted, and whose clients come and go.

    Parameters
    ----------
    journal : Journal, optional
        Keeps every finished round; with it the run goes on where it was ended.
    evaluate_every : int ≥ 0
        See `train`.
    refresh : int ≥ 1, optional
        After so many rounds the design is solved for again, from all that was measured so far.
    """

    journal: Journal | None = None
    evaluate_every: int = 1
    refresh: int | None = None


SIMULATED = Live()


def run_known(
    backend: Backend,
    scheme: Scheme,
    profile: Profile | None,
    *,
    k: int,
    schedule: Schedule,
    stop: Stop,
    seeds: Seeds,
    max_weight: float | None = None,
    live: Live = SIMULATED,
) -> Outcome:
    """Train with the design for a known profile, from the initial model.

    Without a profile: for schemes that look at sample counts alone.
    """
    state, first = start(backend, journal=live.journal)
    rows = [first]
    # Sample counts may become known as replies come in, and clients may join: then every round.
    refresh = 1 if profile is None and live.refresh is not None else live.refresh
    live = replace(live, refresh=refresh)
    way = _Way(k, schedule, stop, max_weight, live, timed=profile is not None)
    state, design, known = _trained(
        backend,
        rows,
        state,
        way,
        scheme,
        lambda _: blank_profile(backend) if profile is None else profile,
        seeds.stream("draw"),
    )
    return Outcome(History(rows), state, design, known)


def run_adaptive(
    backend: Backend,
    scheme: Scheme,
    *,
    k: int,
    schedule: Schedule,
    stop: Stop,
    seeds: Seeds,
    pilots: Pilots | WarmUp,
    c_over_s0: float | None = None,
    max_weight: float | None = None,
    live: Live = SIMULATED,
) -> Outcome:
    """Learn G, c and t from pilots, solve, and train on from the better one [Luo22, Alg. 2].

    The history holds the uniform pilot, the weighted pilot after it on the same clock, and the
    rest. Both pilots start from the initial model, as in the paper; their time counts. Gradient
    norms come from both pilots, and so do times where the backend does not know them. A given
    `c_over_s0` is used instead of the estimate of c.
    """
    way = _Way(k, schedule, stop, max_weight, live)
    if isinstance(pilots, WarmUp):
        rows, ends = _warm_up(backend, way, seeds, pilots)
    else:
        rows, ends = _pilots(backend, way, seeds, pilots)
    if all(end.ended == "diverged" for end, _ in ends):
        blank = blank_profile(backend)
        state = ends[0][0]._replace(seconds=rows[-1].seconds)
        return Outcome(History(rows), state, SCHEMES["uniform"](blank, k), blank)
    ratio = None
    if isinstance(pilots, Pilots):
        ratio = _estimated_ratio(rows, pilots, known_so_far(backend, rows, c_over_s0))
    pilot_value = None if c_over_s0 is not None or ratio is None else ratio.value
    state, last = min(ends, key=lambda end: _or_infinity(end[1].loss))
    reason = stop.reason(last._replace(seconds=rows[-1].seconds))
    latest = ends[-1][0]  # who answers was learned in both
    state = State(
        state.parameters, state.round, latest.seconds, reason or "", latest.asked, latest.answered
    )
    state, design, profile = _trained(
        backend,
        rows,
        state,
        way,
        scheme,
        lambda rows: known_so_far(backend, rows, c_over_s0, pilot_value),
        seeds.stream("draw"),
    )
    return Outcome(History(rows), state, design, profile, ratio)


class _Way(NamedTuple):
    """How to train, whoever is drawn; `timed` says whether the profile's times mean anything."""

    k: int
    schedule: Schedule
    stop: Stop
    max_weight: float | None
    live: Live
    timed: bool = True


def _trained(
    backend: Backend,
    rows: list[Row],
    state: State,
    way: _Way,
    scheme: Scheme,
    profile: Callable[[Sequence[Row]], Profile],
    rng: np.random.Generator,
    phase: str = "train",
) -> tuple[State, Design, Profile]:
    """Solve and train until the phase ends; rows are added to `rows`.

    It is solved for again after every so many rounds where `live.refresh` says so, and when nobody
    is left of those whom the design knows.
    """
    begin, stop, refresh = state.round, way.stop, way.live.refresh
    while True:
        # As of the last refresh: an interruption since then changes nothing but sample counts.
        solved = begin if refresh is None else state.round - (state.round - begin) % refresh
        known = profile([row for row in rows if row.phase != phase or row.round <= solved])
        design = scheme(known, way.k, max_weight=way.max_weight)
        if state.ended:
            return state, design, known
        until = stop
        if refresh is not None:
            again = solved + refresh
            until = replace(stop, rounds=again if stop.rounds is None else min(again, stop.rounds))
        state, more = train(
            backend,
            design,
            state,
            schedule=way.schedule,
            stop=until,
            rng=rng,
            phase=phase,
            journal=way.live.journal,
            evaluate_every=way.live.evaluate_every,
            times=known.times if way.timed else None,
        )
        rows += more
        state = state._replace(ended=(stop.reason(rows[-1]) or "") if more else "")


def _pilots(
    backend: Backend, way: _Way, seeds: Seeds, pilots: Pilots
) -> tuple[list[Row], list[tuple[State, Row]]]:
    """Run both pilots from the initial model; return all rows, and how each pilot ended."""
    state, first = start(backend, "pilot-uniform", way.live.journal)
    initial = state.parameters
    rows: list[Row] = [first]
    ends: list[tuple[State, Row]] = []
    lowest = min(pilots.thresholds)
    until = replace(way.stop, loss=lowest, accuracy=None, rounds=pilots.rounds)
    for index, name in enumerate(("uniform", "weighted")):
        state, _, _ = _trained(
            backend,
            rows,
            state._replace(parameters=initial, round=0, ended=""),
            _blank_way(way, until),
            SCHEMES[name],
            lambda _: blank_profile(backend),
            seeds.stream("pilot-draw", index),
            f"pilot-{name}",
        )
        ends.append((state, rows[-1]))
    return rows, ends


def _warm_up(
    backend: Backend, way: _Way, seeds: Seeds, pilot: WarmUp
) -> tuple[list[Row], list[tuple[State, Row]]]:
    """Train the first rounds with weighted sampling; return all rows, and how they ended."""
    state, first = start(backend, "warm-up", way.live.journal)
    rows = [first]
    rounds = pilot.rounds if way.stop.rounds is None else min(pilot.rounds, way.stop.rounds)
    state, _, _ = _trained(
        backend,
        rows,
        state,
        _blank_way(way, replace(way.stop, rounds=rounds)),
        SCHEMES["weighted"],
        lambda _: blank_profile(backend),
        seeds.stream("pilot-draw", 1),
        "warm-up",
    )
    return rows, [(state, rows[-1])]


def _blank_way(way: _Way, stop: Stop) -> _Way:
    """Return how to train before anything is known but sample counts, as far as they are."""
    refresh = None if way.live.refresh is None else 1
    return way._replace(stop=stop, live=replace(way.live, refresh=refresh), timed=False)


def blank_profile(backend: Backend) -> Profile:
    """Return what is known before the first reply: sample counts, and times if any."""
    ones = [1.0] * backend.weights.size
    times = backend.usual_times
    return Profile(backend.weights, ones if times is None else times, ones)


def known_so_far(
    backend: Backend,
    rows: Sequence[Row],
    c_over_s0: float | None,
    beta_over_alpha: float | None = None,
) -> Profile:
    """Return the profile that the rows tell of, with c in units of S_0, or as given, or S_0."""
    n = backend.weights.size
    usual = backend.usual_times
    times = estimated_times(rows, n) if usual is None else usual
    profile = Profile(backend.weights, times, estimated_grad_norms(rows, n), beta_over_alpha)
    if c_over_s0 is None:
        return profile
    ratio = c_over_s0 * float(profile.importance.sum()) ** 2
    return Profile(profile.weights, profile.times, profile.grad_norms, ratio)


def _or_infinity(loss: float) -> float:
    return loss if math.isfinite(loss) else math.inf


def _estimated_ratio(rows: list[Row], pilots: Pilots, profile: Profile) -> RatioEstimate:
    losses = {
        name: _filled([rows[0].loss, *(row.loss for row in rows[1:] if row.phase == name)])
        for name in ("pilot-uniform", "pilot-weighted")
    }
    return estimate_ratio(
        losses["pilot-uniform"],
        losses["pilot-weighted"],
        pilots.thresholds,
        profile.weights,
        profile.grad_norms,
    )


def _filled(losses: list[float]) -> list[float]:
    """Draw a line between the rounds whose loss is known; beyond the last there is nothing.

    >>> _filled([3.0, math.nan, 1.0, math.nan])
    [3.0, 2.0, 1.0]
    """
    known = np.flatnonzero(np.isfinite(losses))
    if not known.size:
        return []
    filled = np.interp(np.arange(known[-1] + 1), known, np.array(losses)[known])
    return filled.tolist()  # type: ignore[no-any-return]
