"""How heavy a round training bears: the cap on its weight, steered by the losses that follow."""

from __future__ import annotations

import math
from typing import TypedDict

from fedpace.rounds.rows import Row

# A round of this part of the cap or more tells whether the cap is right.
HEAVY = 0.75
# The loss may rise by the first of these parts and still count as fine; by the second is too much.
FINE, TOO_MUCH = 0.1, 0.2
# What becomes of the cap then.
GROWTH, CUT = 1.3, 0.5


class Stride(TypedDict):
    """The cap on the weight of a round, the latest evaluated loss, and the heaviest round since."""

    cap: float
    loss: float
    heaviest: float


def first_stride(cap: float) -> Stride:
    """Return the state before the first round."""
    return Stride(cap=cap, loss=math.nan, heaviest=0.0)


def after_round(stride: Stride, row: Row, limits: tuple[float, float]) -> Stride:
    """Return the state after a round: a cap that bears more where heavy rounds did no harm.

    The cap is halved where the loss rose by more than a fifth after a round that was heavy for it,
    and grows by 1.3 where it rose by less than a tenth or fell. Where nobody evaluates the loss
    the cap stays as it is. `limits` are the least and the largest cap.
    """
    heaviest = max(stride["heaviest"], float(row.weights.sum()))
    if not row.evaluated or math.isnan(row.loss):
        return Stride(cap=stride["cap"], loss=stride["loss"], heaviest=heaviest)
    cap, before = stride["cap"], stride["loss"]
    rise = row.loss - before
    if heaviest >= HEAVY * cap and not math.isnan(rise):
        least, most = limits
        if rise > TOO_MUCH * abs(before):
            cap = max(least, CUT * min(cap, heaviest))
        elif rise < FINE * abs(before):
            cap = max(least, min(GROWTH * cap, most))
    return Stride(cap=cap, loss=row.loss, heaviest=0.0)
