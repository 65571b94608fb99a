"""How long a step training bears, steered by the losses that follow it.

In rounds that is the cap on the weight of a round; without a barrier, how few updates make a step.
"""

from __future__ import annotations

import math
from typing import TypedDict

from fedpace.rounds.rows import Row

# A round of this part of the cap or more tells whether the cap is right.
HEAVY = 0.75
# The loss may rise by this part after a round; by less than half of it is fine.
TOO_MUCH = 0.2
# What becomes of the cap then.
GROWTH, CUT = 1.3, 0.5
# Without a barrier the smoothed loss may lie this part above its least, and is fine near it.
TOO_FAR, NEAR = 0.3, 0.05
# Parts of the least loss, or of this part of the first where that is more: near 0 all jumps.
OF_FIRST = 1 / 3
# What becomes of the steps then, per C updates.
TEMPO_GROWTH = 1.5
# C/B at least, where the rate does not fall and the loss has not risen; but two updates in a step.
STEADY, FEWEST = 4.0, 2
# Where the rate has fallen to less than this part, a rise of the loss is no reason for a cut.
SAME_RATE = 0.9


class Stride(TypedDict):
    """The cap on the weight of a round, the latest evaluated loss, and the heaviest round since."""

    cap: float
    loss: float
    heaviest: float


class Tempo(TypedDict):
    """C/B: how many steps are made of C updates, as many as there are clients at work.

    It is steered by the learning rate, that of the latest step and of the one with the least loss;
    and by the smoothed loss, the least of it since the latest cut, the first that was evaluated,
    and the cuts so far. `updates` are those since the latest evaluated loss, and `grown` is by how
    much the rate has made `steps` grow since.
    """

    steps: float
    rate: float
    least_rate: float
    loss: float
    least: float
    first: float
    cuts: int
    updates: int
    grown: float


def first_stride(cap: float) -> Stride:
    """Return the state before the first round."""
    return Stride(cap=cap, loss=math.nan, heaviest=0.0)


def first_tempo(steps: float) -> Tempo:
    """Return the state before the first step."""
    unknown = math.nan
    return Tempo(
        steps=steps,
        rate=unknown,
        least_rate=unknown,
        loss=unknown,
        least=unknown,
        first=unknown,
        cuts=0,
        updates=0,
        grown=1.0,
    )


def after_round(stride: Stride, row: Row, limits: tuple[float, float]) -> Stride:
    """Return the state after a round: a cap that bears more where heavy rounds did no harm.

    The cap is halved where the loss rose by more than a fifth after a round that was heavy for it,
    and grows by 1.3 where it rose by less than a tenth or fell. Where nobody evaluates the loss
    the cap stays as it is. `limits` are the least and the largest cap.
    """
    heaviest = max(stride["heaviest"], float(row.weights.sum()))
    if not _is_known(row):
        return Stride(cap=stride["cap"], loss=stride["loss"], heaviest=heaviest)
    cap, before = stride["cap"], stride["loss"]
    if heaviest >= HEAVY * cap:
        rise = row.loss - before
        if rise > TOO_MUCH * abs(before):
            cap = CUT * min(cap, heaviest)
        elif rise < TOO_MUCH / 2 * abs(before):
            cap *= GROWTH
    return Stride(cap=_within(cap, limits), loss=row.loss, heaviest=0.0)


def steps_at(tempo: Tempo, rate: float, limits: tuple[float, float]) -> float:
    """Return C/B for a step at this learning rate: more steps of fewer updates as the rate falls.

    The first step is made of all C, as they begin with the same model. C/B grows as the rate η
    falls: η/B, what one update moves the model by, stays as it was until single updates make steps.
    A rate that does not fall, or that nobody knows, is one that training bears all the time: then
    C/B is at least 4, with two updates or more in a step, until the loss rises. `limits` are the
    least and the largest C/B; the largest is C.
    """
    steps, before = tempo["steps"], tempo["rate"]
    if 0 < rate < before:
        steps *= before / rate
    elif not tempo["cuts"] and not (math.isnan(before) and rate > 0):
        steps = max(steps, min(STEADY, limits[1] / FEWEST))
    return _within(steps, limits)


def after_step(tempo: Tempo, row: Row, limits: tuple[float, float], *, rate: float) -> Tempo:
    """Return the state after a step without a barrier, at this learning rate: see `steps_at`.

    The loss says how much more training bears. One step says little: with few updates the loss
    goes up and down, and still falls. So losses are smoothed over about C updates. C/B grows where
    the loss is at its least or near it, by 1.5 in C updates unless the rate has made it grow more,
    which the first step does not show; after the first cut by the root of 1.5, and so on: where the
    rate does not fall the noise does not either, and steps must settle. C/B is halved where the
    smoothed loss lies 0.3 of its least above that, which then is forgotten; or of a third of the
    first loss, where that is more; but not where the rate has fallen by a tenth since, which will
    do.
    """
    known_rate = rate if rate > 0 else tempo["rate"]
    steps = steps_at(tempo, rate, limits) if row.round else tempo["steps"]
    grown = tempo["grown"] * steps / tempo["steps"]
    updates = tempo["updates"] + row.clients.size
    after = Tempo(**{**tempo, "steps": steps, "rate": known_rate, "grown": grown})
    if not _is_known(row):
        return Tempo(**{**after, "updates": updates})
    cuts, least = tempo["cuts"], tempo["least"]
    first = row.loss if math.isnan(tempo["first"]) else tempo["first"]
    after = Tempo(**{**after, "first": first, "updates": 0, "grown": 1.0})
    if not math.isfinite(least):
        return Tempo(**{**after, "loss": row.loss, "least": row.loss, "least_rate": known_rate})
    part = min(max(updates, 1) / limits[1], 1.0)
    loss = tempo["loss"] + part * (row.loss - tempo["loss"])
    size = max(abs(least), OF_FIRST * abs(first))
    fallen = known_rate < SAME_RATE * tempo["least_rate"]
    too_far = loss - least > TOO_FAR * size and not fallen
    if too_far:
        steps, cuts = CUT * steps, cuts + 1
    elif loss - least <= NEAR * size and tempo["rate"] > 0:
        steps *= max(TEMPO_GROWTH ** (part / (1 + cuts)) / grown, 1.0)
    after = Tempo(**{**after, "steps": _within(steps, limits), "loss": loss, "cuts": cuts})
    if too_far or loss < least:
        after = Tempo(**{**after, "least": loss, "least_rate": known_rate})
    return after


def _is_known(row: Row) -> bool:
    return row.evaluated and not math.isnan(row.loss)


def _within(value: float, limits: tuple[float, float]) -> float:
    least, most = limits
    return max(least, min(value, most))
