"""How long a step training bears, steered by the losses that follow it.

In rounds that is the cap on the weight of a round; without a barrier, how few updates make a step.
"""

from __future__ import annotations

import math
from typing import TypedDict

from fedpace.rounds.rows import Row

# A round of this part of the cap or more tells whether the cap is right.
HEAVY = 0.75
# The loss may rise by the first of these parts and still count as fine; by the second is too much.
FINE, TOO_MUCH = 0.1, 0.2
# What becomes of the cap then; steps are many more than heavy rounds, and grow more slowly.
GROWTH, STEP_GROWTH, CUT = 1.3, 1.1, 0.5


class Stride(TypedDict):
    """The cap on the weight of a round, the latest evaluated loss, and the heaviest round since.

    Without a barrier the cap is C/B: how much one update weighs in a step, next to how much it
    would if all at work made one.
    """

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
    if not _is_known(row):
        return Stride(cap=stride["cap"], loss=stride["loss"], heaviest=heaviest)
    cap = stride["cap"]
    if heaviest >= HEAVY * cap:
        cap = _steered(cap, min(cap, heaviest), row.loss, stride["loss"], GROWTH, limits)
    return Stride(cap=cap, loss=row.loss, heaviest=0.0)


def after_step(stride: Stride, row: Row, limits: tuple[float, float]) -> Stride:
    """Return the state after a step without a barrier: by the same rule, with a growth of 1.1."""
    if not _is_known(row):
        return stride
    cap = _steered(stride["cap"], stride["cap"], row.loss, stride["loss"], STEP_GROWTH, limits)
    return Stride(cap=cap, loss=row.loss, heaviest=0.0)


def _is_known(row: Row) -> bool:
    return row.evaluated and not math.isnan(row.loss)


def _steered(
    cap: float, tried: float, loss: float, before: float, growth: float, limits: tuple[float, float]
) -> float:
    """Return the next cap, after `tried` took the loss from `before` to where it is."""
    rise = loss - before
    if rise > TOO_MUCH * abs(before):
        cap = CUT * tried
    elif rise < FINE * abs(before):
        cap *= growth
    least, most = limits
    return max(least, min(cap, most))
