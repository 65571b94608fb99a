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
    return _steered(stride, min(stride["cap"], heaviest), row.loss, GROWTH, limits)


def after_step(stride: Stride, row: Row, limits: tuple[float, float]) -> Stride:
    """Return the state after a step without a barrier, by the same rule; every step counts.

    Growth is 1.1 until the first cut, its root after that, and so on: where the learning rate does
    not fall, neither does the noise, and steps must settle.
    """
    if not _is_known(row):
        return stride
    growth = STEP_GROWTH ** (1 / (1 + stride["cuts"]))
    return _steered(stride, stride["cap"], row.loss, growth, limits)


def _is_known(row: Row) -> bool:
    return row.evaluated and not math.isnan(row.loss)


def _steered(
    stride: Stride, tried: float, loss: float, growth: float, limits: tuple[float, float]
) -> Stride:
    """Return the state with the next cap, after `tried` took the loss to where it is."""
    cap, cuts, before = stride["cap"], stride["cuts"], stride["loss"]
    rise = loss - before
    if rise > TOO_MUCH * abs(before):
        cap, cuts = CUT * tried, cuts + 1
    elif rise < FINE * abs(before):
        cap *= growth
    least, most = limits
    return Stride(cap=max(least, min(cap, most)), loss=loss, heaviest=0.0, cuts=cuts)
