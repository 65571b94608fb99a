"""How long a step training bears, steered by the losses that follow it.

In rounds that is the cap on the weight of a round; without a barrier, how few updates make a step.
"""

from __future__ import annotations

import math
from typing import TypedDict

from fedpace.rounds.rows import Row

# A round of this part of the cap or more tells whether the cap is right.
HEAVY = 0.75
# The loss may rise by this part after a round, or after a step without a barrier, which is noisier;
# by less than half of it is fine.
TOO_MUCH, TOO_MUCH_IN_A_STEP = 0.2, 0.3
# What becomes of the cap then; steps are many more than heavy rounds, and grow more slowly.
GROWTH, STEP_GROWTH, CUT = 1.3, 1.1, 0.5


class Stride(TypedDict):
    """The cap on the weight of a round, and what it is steered by.

    That is the latest evaluated loss, the heaviest round since, and how often the cap was cut.
    Without a barrier the cap is C/B: how much one update weighs in a step, next to how much it
    would if all at work made one.
    """

    cap: float
    loss: float
    heaviest: float
    cuts: int


def first_stride(cap: float) -> Stride:
    """Return the state before the first round."""
    return Stride(cap=cap, loss=math.nan, heaviest=0.0, cuts=0)


def after_round(stride: Stride, row: Row, limits: tuple[float, float]) -> Stride:
    """Return the state after a round: a cap that bears more where heavy rounds did no harm.

    The cap is halved where the loss rose by more than a fifth after a round that was heavy for it,
    and grows by 1.3 where it rose by less than a tenth or fell. Where nobody evaluates the loss
    the cap stays as it is. `limits` are the least and the largest cap.
    """
    heaviest = max(stride["heaviest"], float(row.weights.sum()))
    if not _is_known(row):
        return Stride(**{**stride, "heaviest": heaviest})
    if heaviest < HEAVY * stride["cap"]:
        return Stride(**{**stride, "loss": row.loss, "heaviest": 0.0})
    tried = min(stride["cap"], heaviest)
    return _steered(stride, tried, row.loss, limits, growth=GROWTH, too_much=TOO_MUCH)


def after_step(stride: Stride, row: Row, limits: tuple[float, float]) -> Stride:
    """Return the state after a step without a barrier, by a like rule; every step counts.

    A rise by 0.3 is too much. Growth is 1.1 until the first cut, its root after that, and so on:
    where the learning rate does not fall, neither does the noise, and steps must settle.
    """
    if not _is_known(row):
        return stride
    growth = STEP_GROWTH ** (1 / (1 + stride["cuts"]))
    much = TOO_MUCH_IN_A_STEP
    return _steered(stride, stride["cap"], row.loss, limits, growth=growth, too_much=much)


def _is_known(row: Row) -> bool:
    return row.evaluated and not math.isnan(row.loss)


def _steered(
    stride: Stride,
    tried: float,
    loss: float,
    limits: tuple[float, float],
    *,
    growth: float,
    too_much: float,
) -> Stride:
    """Return the state with the next cap, after `tried` took the loss to where it is."""
    cap, cuts, before = stride["cap"], stride["cuts"], stride["loss"]
    rise = loss - before
    if rise > too_much * abs(before):
        cap, cuts = CUT * tried, cuts + 1
    elif rise < too_much / 2 * abs(before):
        cap *= growth
    least, most = limits
    return Stride(cap=max(least, min(cap, most)), loss=loss, heaviest=0.0, cuts=cuts)
