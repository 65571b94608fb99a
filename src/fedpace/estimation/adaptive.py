"""Algorithm 2: pilots, estimates, the optimal design, and training that goes on from there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fedpace.estimation.gradients import estimated_grad_norms
from fedpace.estimation.ratio import RatioEstimate, estimate_ratio
from fedpace.profile import FloatArray, Profile
from fedpace.rounds.backend import Backend
from fedpace.rounds.history import History, Row
from fedpace.rounds.loop import State, start, train
from fedpace.rounds.schedules import Schedule
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
    """How long the pilots run.

    Parameters
    ----------
    thresholds : losses F_s
        Both pilots run until they pass the lowest.
    rounds : int
        Or until this many rounds are over.
    """

    thresholds: Sequence[float]
    rounds: int


def run_known(
    backend: Backend,
    scheme: Scheme,
    profile: Profile,
    *,
    k: int,
    schedule: Schedule,
    stop: Stop,
    seeds: Seeds,
    max_weight: float | None = None,
) -> Outcome:
    """Train with the design for a known profile, from the initial model."""
    design = scheme(profile, k, max_weight=max_weight)
    state, first = start(backend)
    state, rows = train(
        backend, design, state, schedule=schedule, stop=stop, rng=seeds.stream("draw")
    )
    return Outcome(History([first, *rows]), state, design, profile)


def run_adaptive(
    backend: Backend,
    scheme: Scheme,
    *,
    k: int,
    schedule: Schedule,
    stop: Stop,
    seeds: Seeds,
    pilots: Pilots,
    c_over_s0: float | None = None,
    max_weight: float | None = None,
) -> Outcome:
    """Learn G and c from two pilots, solve, and train on from the better one [Luo22, Alg. 2].

    The history holds the uniform pilot, the weighted pilot after it on the same clock, and the
    rest. Both pilots start from the initial model, as in the paper; their time counts. Gradient
    norms come from both pilots. A given `c_over_s0` is used instead of the estimate of c.
    """
    rows, ends = _pilots(backend, k, schedule, stop, seeds, pilots)
    if not any(math.isfinite(last.loss) for _, last in ends):
        blank = blank_profile(backend)
        state = ends[0][0]._replace(seconds=rows[-1].seconds)
        return Outcome(History(rows), state, SCHEMES["uniform"](blank, k), blank)
    grad_norms = estimated_grad_norms(rows, backend.weights.size)
    profile = learned_profile(backend, grad_norms, c_over_s0)
    ratio = _estimated_ratio(rows, pilots, profile)
    if c_over_s0 is None:
        profile = Profile(profile.weights, profile.times, profile.grad_norms, ratio.value)
    design = scheme(profile, k, max_weight=max_weight)
    state, last = min(ends, key=lambda end: _or_infinity(end[1].loss))
    reason = stop.reason(last._replace(seconds=rows[-1].seconds))
    state = State(state.parameters, state.round, rows[-1].seconds, reason or "")
    if reason is None:
        rng = seeds.stream("draw")
        state, more = train(backend, design, state, schedule=schedule, stop=stop, rng=rng)
        rows += more
    return Outcome(History(rows), state, design, profile, ratio)


def _pilots(
    backend: Backend, k: int, schedule: Schedule, stop: Stop, seeds: Seeds, pilots: Pilots
) -> tuple[list[Row], list[tuple[State, Row]]]:
    """Run both pilots from the initial model; return all rows, and how each pilot ended."""
    blank = blank_profile(backend)
    state, first = start(backend, "pilot-uniform")
    rows: list[Row] = [first]
    ends: list[tuple[State, Row]] = []
    until = Stop(loss=min(pilots.thresholds), rounds=pilots.rounds, seconds=stop.seconds)
    for index, name in enumerate(("uniform", "weighted")):
        state, more = train(
            backend,
            SCHEMES[name](blank, k),
            State(backend.initial(), 0, rows[-1].seconds),
            schedule=schedule,
            stop=until,
            rng=seeds.stream("pilot-draw", index),
            phase=f"pilot-{name}",
        )
        rows += more
        ends.append((state, more[-1]))
    return rows, ends


def blank_profile(backend: Backend) -> Profile:
    """Return what is known before the first gradient norm."""
    return Profile(backend.weights, backend.usual_times, [1.0] * backend.weights.size)


def _or_infinity(loss: float) -> float:
    return loss if math.isfinite(loss) else math.inf


def learned_profile(backend: Backend, grad_norms: FloatArray, c_over_s0: float | None) -> Profile:
    """Return the profile with c in units of S_0, or the default c."""
    profile = Profile(backend.weights, backend.usual_times, grad_norms)
    if c_over_s0 is None:
        return profile
    ratio = c_over_s0 * float(profile.importance.sum()) ** 2
    return Profile(profile.weights, profile.times, profile.grad_norms, ratio)


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
