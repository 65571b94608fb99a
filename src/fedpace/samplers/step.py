"""Choose the size of server steps from the losses that follow them.

In synchronous training this is a cap on the weight of a round; in asynchronous training it is the
number of updates per step.
"""

from __future__ import annotations

import math
from typing import TypedDict

import numpy as np

from fedpace.checks import FloatArray
from fedpace.training.history import Row

# Rounds of at least this part of the cap show whether the cap is right.
HEAVY = 0.75
# Largest relative rise of the loss after a round; less than half of it is fine.
TOO_MUCH = 0.2
# Factors of the cap in these two cases.
GROWTH, CUT = 1.3, 0.5
# The same for the smoothed loss of asynchronous training, over its least.
TOO_FAR, NEAR = 0.3, 0.05
# They are relative to the least loss, or to this part of the first: near 0 every change is large.
OF_FIRST = 1 / 3
# Factor of the steps per C updates.
STEPS_GROWTH = 1.5
# Least C/B at a constant rate while the loss has not risen, and the fewest updates in a step.
STEADY, FEWEST = 4.0, 2
# No cut where the rate has fallen to less than this part.
SAME_RATE = 0.9


class RoundWeightCap(TypedDict):
    """The cap on the weight of a round, the latest evaluated loss, and the heaviest round since."""

    cap: float
    loss: float
    heaviest: float


class StepsPerRound(TypedDict):
    """C/B, the steps made of C updates, as many as clients are at work.

    It follows the learning rate (of the latest step, and of the one with the least loss) and the
    smoothed loss (now, its least since the latest cut, the first evaluated, and the cuts so far).
    `updates` counts those since the latest evaluated loss; `growth` is the factor by which the rate
    has raised `steps` since then.
    """

    steps: float
    rate: float
    least_rate: float
    loss: float
    least: float
    first: float
    cuts: int
    updates: int
    growth: float


def initial_round_weight_cap(cap: float) -> RoundWeightCap:
    """Return the state before the first round."""
    return RoundWeightCap(cap=cap, loss=math.nan, heaviest=0.0)


def initial_steps_per_round(steps: float) -> StepsPerRound:
    """Return the state before the first step."""
    unknown = math.nan
    return StepsPerRound(
        steps=steps,
        rate=unknown,
        least_rate=unknown,
        loss=unknown,
        least=unknown,
        first=unknown,
        cuts=0,
        updates=0,
        growth=1.0,
    )


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


def steps_per_round(state: StepsPerRound, rate: float, limits: tuple[float, float]) -> float:
    """Return C/B for a step at this learning rate: the lower the rate, the smaller the steps.

    The first step takes all C updates, as they begin with the same model. C/B grows as the rate η
    falls: η/B, the distance that one update moves the model, stays the same until steps are single
    updates. A rate that is constant or unknown is one that training can use throughout: then C/B is
    at least 4, with two updates or more in a step, until the loss rises. `limits` are the least and
    the largest C/B; the largest is C.
    """
    steps, before = state["steps"], state["rate"]
    if 0 < rate < before:
        steps *= before / rate
    elif not state["cuts"] and not (math.isnan(before) and rate > 0):
        steps = max(steps, min(STEADY, limits[1] / FEWEST))
    return _clip(steps, limits)


def update_steps_per_round(
    state: StepsPerRound, row: Row, limits: tuple[float, float], *, rate: float
) -> StepsPerRound:
    """Return the state after an asynchronous step at this learning rate: see `steps_per_round`.

    Steps of few updates make the loss go up and down while it falls, so losses are smoothed over
    about C updates. C/B grows while the loss is at or near its least: by 1.5 in C updates, unless
    the rate has raised it more (the first step does not show this); after the first cut by the root
    of 1.5, and so on, since at a constant rate the noise does not fall and steps must settle. C/B
    is halved, and the least loss forgotten, where the smoothed loss is 0.3 of the least above the
    least, or 0.3 of a third of the first loss if that is more; but not if the rate has fallen by a
    tenth since.
    """
    known_rate = rate if rate > 0 else state["rate"]
    steps = steps_per_round(state, rate, limits) if row.round else state["steps"]
    growth = state["growth"] * steps / state["steps"]
    updates = state["updates"] + row.clients.size
    after = StepsPerRound(**{**state, "steps": steps, "rate": known_rate, "growth": growth})
    if not _is_known(row):
        return StepsPerRound(**{**after, "updates": updates})
    cuts, least = state["cuts"], state["least"]
    first = row.loss if math.isnan(state["first"]) else state["first"]
    after = StepsPerRound(**{**after, "first": first, "updates": 0, "growth": 1.0})
    if not math.isfinite(least):
        after = StepsPerRound(**{**after, "loss": row.loss, "least": row.loss})
        return StepsPerRound(**{**after, "least_rate": known_rate})
    part = min(max(updates, 1) / limits[1], 1.0)
    loss = state["loss"] + part * (row.loss - state["loss"])
    size = max(abs(least), OF_FIRST * abs(first))
    fallen = known_rate < SAME_RATE * state["least_rate"]
    too_far = loss - least > TOO_FAR * size and not fallen
    if too_far:
        steps, cuts = CUT * steps, cuts + 1
    elif loss - least <= NEAR * size and state["rate"] > 0:
        steps *= max(STEPS_GROWTH ** (part / (1 + cuts)) / growth, 1.0)
    after = StepsPerRound(**{**after, "steps": _clip(steps, limits), "loss": loss, "cuts": cuts})
    if too_far or loss < least:
        after = StepsPerRound(**{**after, "least": loss, "least_rate": known_rate})
    return after


def _is_known(row: Row) -> bool:
    return row.evaluated and not math.isnan(row.loss)


def _clip(value: float, limits: tuple[float, float]) -> float:
    least, most = limits
    return max(least, min(value, most))


# γ in units of 1/(λ (2C + ρ)), and its growth in C updates.
SAFETY, DOUBLING = 2.0, 2.0
# Pairs of updates before the curvature is trusted; until then γ u is this part of a first update.
TRUSTED, UNTIL = 5.0, 0.3
# ρ before anything is measured in units of C, worth so many updates in units of C; largest in N.
PRIOR_NOISE, PRIOR_UPDATES, MOST_NOISE = 1.0, 2.0, 2.0
# Relative rise of the loss over its least after which γ is cut; its recovery in C updates.
RISE, CUT_TO, RECOVERY = 0.1, 0.5, 1.2


class StepSize(TypedDict):
    """γ, how far the server steps along the directions, and what it follows from.

    `gain`, `moment` and `count` are sums over the latest updates u of ⟨u, d̄⟩, ‖u‖² and 1; `reach`
    is the length of the first update as made; `least` is the least evaluated loss, and `cut` a
    factor that its rise has left.
    """

    step: float
    gain: float
    moment: float
    count: float
    reach: float
    least: float
    cut: float


def first_step() -> StepSize:
    """Return the state before the first update."""
    nan = math.nan
    return StepSize(step=nan, gain=0.0, moment=0.0, count=0.0, reach=nan, least=math.inf, cut=1.0)


def update_step_size(
    state: StepSize,
    gains: FloatArray,
    moments: FloatArray,
    *,
    at_once: int,
    n: int,
    curvature: float,
    pairs: float,
    first: float,
) -> StepSize:
    """Return the state after these updates, with γ = 2 / (λ (2C + ρ)), ρ = E‖u‖² / ‖d̄‖².

    To second order, a step of γ along u gains γ ‖d̄‖² (1 − λ γ C) − γ² λ/2 E‖u‖², as the model has
    moved by C steps since the task was sent. γ begins with `first` / C, and at most doubles in C
    updates. As long as the curvature λ is unknown, steps are a third of the first update, and
    shorter with noise.
    """
    count, most = gains.size, float(moments.max(initial=0.0))
    if not (count and math.isfinite(most) and np.isfinite(gains).all()):
        return state
    if not state["moment"] > 0:
        usual, prior = float(moments.mean()), PRIOR_UPDATES * at_once
        gain = prior * usual / (PRIOR_NOISE * at_once)
        reach = first * math.sqrt(usual)
        state = StepSize(
            step=first / at_once,
            gain=gain,
            moment=prior * usual,
            count=prior,
            reach=reach,
            least=state["least"],
            cut=state["cut"],
        )
    kept = math.exp(-count / (2 * at_once + _noise_ratio(state, n)))
    after = StepSize(**state)
    after["gain"] = kept * state["gain"] + float(gains.sum())
    after["moment"] = kept * state["moment"] + float(moments.sum())
    after["count"] = kept * state["count"] + count
    ratio = 2 * at_once + _noise_ratio(after, n)
    if pairs >= TRUSTED and curvature > 0:
        best = SAFETY / (curvature * ratio)
    else:
        usual = math.sqrt(after["moment"] / after["count"]) or 1.0
        best = UNTIL * after["reach"] / usual * (2 * at_once + 1) / ratio
    after["step"] = min(state["step"] * DOUBLING ** (count / at_once), after["cut"] * best)
    return after


def guard_step(state: StepSize, row: Row, at_once: int) -> StepSize:
    """Return the state after an evaluation: a loss of a tenth above its least halves γ.

    The least is then forgotten: shorter steps need time to bring the loss back.
    """
    if not _is_known(row):
        return state
    part, least = row.clients.size / at_once, state["least"]
    after = StepSize(**{**state, "least": min(least, row.loss)})
    if row.loss > least + RISE * abs(least):
        after["least"] = row.loss
        after["cut"], after["step"] = (CUT_TO * state[name] for name in ("cut", "step"))
    else:
        after["cut"] = min(1.0, RECOVERY**part * state["cut"])
    return after


def _noise_ratio(state: StepSize, n: int) -> float:
    if not state["moment"] > 0:
        return 1.0
    return 1 + state["moment"] / max(state["gain"], state["moment"] / (MOST_NOISE * n))
