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
    state, design, known = _train_on(
        backend,
        rows,
        state,
        lambda _: blank_profile(backend) if profile is None else profile,
        scheme,
        k=k,
        schedule=schedule,
        stop=stop,
        rng=seeds.stream("draw"),
        max_weight=max_weight,
        live=live,
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
    if isinstance(pilots, WarmUp):
        rows, ends = _warm_up(backend, k, schedule, stop, seeds, pilots, live)
    else:
        rows, ends = _pilots(backend, k, schedule, stop, seeds, pilots, live)
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
    state = state._replace(seconds=rows[-1].seconds, ended=reason or "")
    state, design, profile = _train_on(
        backend,
        rows,
        state,
        lambda rows: known_so_far(backend, rows, c_over_s0, pilot_value),
        scheme,
        k=k,
        schedule=schedule,
        stop=stop,
        rng=seeds.stream("draw"),
        max_weight=max_weight,
        live=live,
    )
    return Outcome(History(rows), state, design, profile, ratio)


def _train_on(
    backend: Backend,
    rows: list[Row],
    state: State,
    profile: Callable[[Sequence[Row]], Profile],
    scheme: Scheme,
    *,
    k: int,
    schedule: Schedule,
    stop: Stop,
    rng: np.random.Generator,
    max_weight: float | None,
    live: Live,
) -> tuple[State, Design, Profile]:
    """Solve and train, again and again where `live.refresh` says so; rows are added to `rows`."""
    first = state.round
    while True:
        # Solved for as of the last refresh, so that an interruption in between changes nothing.
        solved = (
            first if live.refresh is None else state.round - (state.round - first) % live.refresh
        )
        known = profile([row for row in rows if row.phase != "train" or row.round <= solved])
        design = scheme(known, k, max_weight=max_weight)
        if state.ended:
            return state, design, known
        until = stop
        if live.refresh is not None:
            again = solved + live.refresh
            until = replace(stop, rounds=again if stop.rounds is None else min(again, stop.rounds))
        state, more = train(
            backend,
            design,
            state,
            schedule=schedule,
            stop=until,
            rng=rng,
            journal=live.journal,
            evaluate_every=live.evaluate_every,
            times=known.times,
        )
        rows += more
        state = state._replace(ended=stop.reason(rows[-1]) or "")


def _pilots(
    backend: Backend,
    k: int,
    schedule: Schedule,
    stop: Stop,
    seeds: Seeds,
    pilots: Pilots,
    live: Live,
) -> tuple[list[Row], list[tuple[State, Row]]]:
    """Run both pilots from the initial model; return all rows, and how each pilot ended."""
    state, first = start(backend, "pilot-uniform", live.journal)
    initial = state.parameters
    rows: list[Row] = [first]
    ends: list[tuple[State, Row]] = []
    until = Stop(loss=min(pilots.thresholds), rounds=pilots.rounds, seconds=stop.seconds)
    for index, name in enumerate(("uniform", "weighted")):
        state, more = train(
            backend,
            SCHEMES[name](blank_profile(backend), k),
            state._replace(parameters=initial, round=0),
            schedule=schedule,
            stop=until,
            rng=seeds.stream("pilot-draw", index),
            phase=f"pilot-{name}",
            journal=live.journal,
            evaluate_every=live.evaluate_every,
        )
        rows += more
        ends.append((state, more[-1]))
    return rows, ends


def _warm_up(
    backend: Backend,
    k: int,
    schedule: Schedule,
    stop: Stop,
    seeds: Seeds,
    pilot: WarmUp,
    live: Live,
) -> tuple[list[Row], list[tuple[State, Row]]]:
    """Train the first rounds with weighted sampling; return all rows, and how they ended."""
    state, first = start(backend, "warm-up", live.journal)
    rounds = pilot.rounds if stop.rounds is None else min(pilot.rounds, stop.rounds)
    state, rows = train(
        backend,
        SCHEMES["weighted"](blank_profile(backend), k),
        state,
        schedule=schedule,
        stop=replace(stop, rounds=rounds),
        rng=seeds.stream("pilot-draw", 1),
        phase="warm-up",
        journal=live.journal,
        evaluate_every=live.evaluate_every,
    )
    return [first, *rows], [(state, rows[-1])]


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
        name: [rows[0].loss, *(row.loss for row in rows[1:] if row.phase == name)]
        for name in ("pilot-uniform", "pilot-weighted")
    }
    return estimate_ratio(
        losses["pilot-uniform"],
        losses["pilot-weighted"],
        pilots.thresholds,
        profile.weights,
        profile.grad_norms,
    )
