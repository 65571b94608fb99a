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


class Stride(TypedDict):
    """The cap on the weight of a round, the latest evaluated loss, and the heaviest round since."""

    cap: float
    loss: float
    heaviest: float


class Tempo(TypedDict):
    """C/B: how many steps are made of C updates, as many as there are clients at work.

    It is steered by the smoothed loss, the least of it since the latest cut, the first that was
    evaluated, and the cuts so far. `updates` are those since the latest evaluated loss.
    """

    steps: float
    loss: float
    least: float
    first: float
    cuts: int
    updates: int


def first_stride(cap: float) -> Stride:
    """Return the state before the first round."""
    return Stride(cap=cap, loss=math.nan, heaviest=0.0)


def first_tempo(steps: float) -> Tempo:
    """Return the state before the first step."""
    unknown = math.nan
    return Tempo(steps=steps, loss=unknown, least=unknown, first=unknown, cuts=0, updates=0)


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


def after_step(tempo: Tempo, row: Row, limits: tuple[float, float]) -> Tempo:
    """Return the state after a step without a barrier: fewer updates a step while the loss falls.

    One step says little: with few updates the loss goes up and down, and still falls. So losses
    are smoothed over about C updates. C/B is halved where the smoothed loss lies 0.3 of its least
    above that, which then is forgotten; or of a third of the first loss, where that is more. It
    grows only where the loss is at its least or near it, by 1.5 in C updates, after the first cut
    by the root of that, and so on: where the learning rate does not fall, neither does the noise,
    and steps must settle. `limits` are the least and the largest C/B; the largest is C.
    """
    updates = tempo["updates"] + row.clients.size
    if not _is_known(row):
        return Tempo(**{**tempo, "updates": updates})
    steps, cuts, least = tempo["steps"], tempo["cuts"], tempo["least"]
    first = row.loss if math.isnan(tempo["first"]) else tempo["first"]
    if not math.isfinite(least):
        return Tempo(**{**tempo, "loss": row.loss, "least": row.loss, "first": first, "updates": 0})
    part = min(max(updates, 1) / limits[1], 1.0)
    loss = tempo["loss"] + part * (row.loss - tempo["loss"])
    size = max(abs(least), OF_FIRST * abs(first))
    if loss - least > TOO_FAR * size:
        steps, cuts, least = CUT * steps, cuts + 1, loss
    elif loss - least <= NEAR * size:
        steps *= TEMPO_GROWTH ** (part / (1 + cuts))
    steps, least = _within(steps, limits), min(least, loss)
    return Tempo(steps=steps, loss=loss, least=least, first=first, cuts=cuts, updates=0)


def _is_known(row: Row) -> bool:
    return row.evaluated and not math.isnan(row.loss)


def _within(value: float, limits: tuple[float, float]) -> float:
    least, most = limits
    return max(least, min(value, most))
