"""Choose the size of server steps.

In synchronous training this is a cap on the weight of a round, from the losses that follow. In
asynchronous training it is γ, how far the server steps along one update, from measured curvature,
age and noise, or where the learning rate falls fast the number of updates per step.
"""

from __future__ import annotations

import math
from typing import NamedTuple, TypedDict

import numpy as np

from fedpace.checks import FloatArray
from fedpace.training.history import Row

# Rounds of at least this part of the cap show whether the cap is right.
HEAVY = 0.75
# Largest relative rise of the loss after a round; less than half of it is fine.
TOO_MUCH = 0.2
# Factors of the cap in these two cases.
GROWTH, CUT = 1.3, 0.5

# κ: the part of the noise that counts; the rest goes with the running mean of the models.
NOISE_COUNTED = 0.2
# Growth of γ in C updates, and the fewest clients at work that its sums are made for.
GROWTH_AT_ONCE, FEW = 2.0, 5
# γ before λ is known, in units of the first update over C, and the pairs that weigh as much.
FIRST_GUESS, GUESS_PAIRS = 3.0, 3.0
# ρ before anything is measured, in units of C, with the weight of 2 C updates; largest in N.
PRIOR_NOISE, PRIOR_UPDATES, MOST_NOISE = 1.0, 2.0, 10.0
# Relative rise of the loss over its least after which γ is halved; its recovery in C updates.
RISE, RECOVERY = 0.2, 1.2
# Updates in which λ falls by half at most, in units of C.
HALVED = 20
# A schedule falls fast if η/η_0 is at most (1 + r) to minus this power. Steps that follow it are no
# shorter than this part of γ, or training would stand still.
FAST, SHORTEST = 0.9, 5.0


class RoundWeightCap(TypedDict):
    """The cap on the weight of a round, the latest evaluated loss, and the heaviest round since."""

    cap: float
    loss: float
    heaviest: float


def initial_round_weight_cap(cap: float) -> RoundWeightCap:
    """Return the state before the first round."""
    return RoundWeightCap(cap=cap, loss=math.nan, heaviest=0.0)


def update_round_weight_cap(
    state: RoundWeightCap, row: Row, limits: tuple[float, float]
) -> RoundWeightCap:
    """Return the state after a round: raise the cap as long as heavy rounds do no harm.

    After a round of at least 0.75 of the cap, the cap is halved if the loss rose by more than a
    fifth, and grows by 1.3 if it rose by less than a tenth or fell. Without evaluated losses the
    cap does not change. `limits` are the least and the largest cap.
    """
    heaviest = max(state["heaviest"], float(row.weights.sum()))
    if not _is_known(row):
        return RoundWeightCap(cap=state["cap"], loss=state["loss"], heaviest=heaviest)
    cap, before = state["cap"], state["loss"]
    if heaviest >= HEAVY * cap:
        rise = row.loss - before
        if rise > TOO_MUCH * abs(before):
            cap = CUT * min(cap, heaviest)
        elif rise < TOO_MUCH / 2 * abs(before):
            cap *= GROWTH
    return RoundWeightCap(cap=_clip(cap, limits), loss=row.loss, heaviest=0.0)


def _is_known(row: Row) -> bool:
    return row.evaluated and not math.isnan(row.loss)


def _clip(value: float, limits: tuple[float, float]) -> float:
    least, most = limits
    return max(least, min(value, most))


class StepSize(TypedDict):
    """γ, how far the server steps along one direction, and what it follows from.

    `gain`, `moment` and `count` are sums over the latest updates u of ⟨u, d̄⟩, ‖u‖² and 1, and
    `age` and `weight` of weight times age and of weight. `rate` is the first learning rate, and
    `first` the first task's local steps times it; `curvature` is λ, `loss` the least evaluated
    loss, `cut` the factor that its rises have left, `cuts` their number, and `since` the updates
    since the latest.
    """

    step: float
    gain: float
    moment: float
    count: float
    age: float
    weight: float
    rate: float
    first: float
    loss: float
    cut: float
    curvature: float
    cuts: int
    since: int


class MeasuredUpdates(NamedTuple):
    """⟨u, d̄⟩ and ‖u‖² of some updates, their weights, 1 on average, and their ages in updates."""

    gains: FloatArray
    moments: FloatArray
    weights: FloatArray
    ages: FloatArray


def first_step() -> StepSize:
    """Return the state before the first update."""
    nan = math.nan
    return StepSize(
        step=nan,
        gain=0.0,
        moment=0.0,
        count=0.0,
        age=0.0,
        weight=0.0,
        rate=nan,
        first=nan,
        loss=math.inf,
        cut=1.0,
        curvature=0.0,
        cuts=0,
        since=0,
    )


def begin_step(state: StepSize, rate: float, steps: float) -> StepSize:
    """Return the state with the first learning rate and the local steps of the first task."""
    if state["first"] > 0:
        return state
    known = rate if 0 < rate < math.inf else 1.0
    return StepSize(**{**state, "rate": rate, "first": known * steps})


def falls_fast(state: StepSize, rate: float, steps: int) -> bool:
    """Return whether the learning rate has fallen in `steps` server steps as η_0 / (1 + r) does.

    Such a schedule says by itself how the noise is to fall.

    >>> falls_fast(begin_step(first_step(), 0.1, 1), 0.1 / 8, 7)
    True
    >>> falls_fast(begin_step(first_step(), 0.1, 1), 0.1 / 8**0.5, 7)
    False
    """
    first = state["rate"]
    return 0 < rate < math.inf and bool(rate <= first * (1 + steps) ** -FAST) and steps > 0


def updates_per_step(state: StepSize, rate: float, at_once: int) -> int:
    """Return B where the learning rate falls fast: η/B, how far one update moves, stays the same.

    >>> state = begin_step(first_step(), 0.1, 1)
    >>> [updates_per_step(state, 0.1 / (1 + r), at_once=10) for r in (0, 1, 4, 99)]
    [10, 5, 2, 1]
    """
    count = at_once * rate / state["rate"]
    return min(max(round(count), 1), at_once)


def update_step_size(
    state: StepSize,
    updates: MeasuredUpdates,
    *,
    at_once: int,
    n: int,
    curvature: float,
    pairs: float,
) -> StepSize:
    """Return the state after these updates, with γ = 2 / (λ (2A + κ ρ)).

    To second order, a step of γ along u gains γ ‖d̄‖² (1 − λ γ A) − γ² λ/2 E‖u‖², as the model has
    moved by A steps since the task was sent. ρ = E‖u‖² / ‖d̄‖²; as the running mean of the models
    is handed out, κ = 0.2 of its noise counts. γ begins at 1/C of the first update, and at most
    doubles in C updates; with few pairs of updates λ is shrunk towards a guess. λ falls slowly, as
    its estimate is noisy and a step that is too long costs more than one that is too short.
    """
    gains, moments, weights, ages = updates
    count, most = gains.size, float(moments.max(initial=0.0))
    if not (count and math.isfinite(most) and np.isfinite(gains).all()):
        return state
    after = StepSize(**state)
    if not state["moment"] > 0:
        usual, prior = float(moments.mean()), PRIOR_UPDATES * at_once
        after["gain"] = prior * usual / (PRIOR_NOISE * at_once)
        after["moment"], after["count"] = prior * usual, prior
        after["age"], after["weight"] = prior * at_once, prior
        after["step"] = state["first"] / at_once
    kept = math.exp(-count / (2 * max(at_once, FEW) + _noise_ratio(after, n)))
    for name, more in (
        ("gain", gains.sum()),
        ("moment", moments.sum()),
        ("count", count),
        ("age", weights @ ages),
        ("weight", weights.sum()),
    ):
        after[name] = kept * after[name] + float(more)  # type: ignore[literal-required]
    best = FIRST_GUESS * state["first"] / at_once
    if math.isfinite(curvature):
        lowest = state["curvature"] * 0.5 ** (count / (HALVED * max(at_once, FEW)))
        after["curvature"] = curvature = max(curvature, lowest)
    if curvature > 0:
        age = after["age"] / after["weight"] if after["weight"] > 0 else at_once
        measured = 2 / (curvature * (2 * age + NOISE_COUNTED * _noise_ratio(after, n)))
        best *= (measured / best) ** (pairs / (pairs + GUESS_PAIRS))
    grown = after["step"] * GROWTH_AT_ONCE ** (count / max(at_once, 3))
    after["step"] = min(grown, after["cut"] * best)
    return after


def guard_step(state: StepSize, row: Row, at_once: int) -> StepSize:
    """Return the state after an evaluation: a loss well above its least halves γ.

    At most once in C updates, as those under way began before; the least is then forgotten. γ
    recovers more slowly after every cut, so that steps settle where noise does not fall.
    """
    since, loss = state["since"] + row.clients.size, state["loss"]
    after = StepSize(**{**state, "since": since})
    if not _is_known(row):
        return after
    after["loss"] = min(loss, row.loss)
    if row.loss > loss + RISE * abs(loss):
        if since >= at_once:
            after["loss"], after["since"] = row.loss, 0
            after["cut"], after["step"] = state["cut"] / 2, state["step"] / 2
            after["cuts"] = state["cuts"] + 1
    else:
        part = row.clients.size / max(at_once, FEW) / math.sqrt(1 + state["cuts"])
        after["cut"] = min(1.0, RECOVERY**part * state["cut"])
    return after


def _noise_ratio(state: StepSize, n: int) -> float:
    """Return ρ, at most 10N."""
    if not state["moment"] > 0:
        return 1.0
    return 1 + state["moment"] / max(state["gain"], state["moment"] / (MOST_NOISE * n))
