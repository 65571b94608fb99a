"""When training ends, and its learning rate: stopping rules and schedules."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

from fedpace.errors import InputError
from fedpace.training.history import Row

DIVERGED = "diverged"
TIME_IS_UP = "seconds"


@dataclass(frozen=True)
class Stop:
    """Stop at the first limit that is reached; None for no limit.

    A loss that is not finite always stops. With `blind`, a loss of NaN means that it was not
    measured, and training continues. With `sustained`, the loss is reached when the mean of the
    last ten evaluated losses is: one low loss is not enough.
    """

    loss: float | None = None
    accuracy: float | None = None
    rounds: int | None = None
    seconds: float | None = None
    blind: bool = False
    sustained: bool = False

    def __post_init__(self) -> None:
        limits = (self.loss, self.accuracy, self.rounds, self.seconds)
        if not self.blind and all(limit is None for limit in limits):
            raise InputError("Stop must end a run, got no limit; give rounds, seconds or a loss")

    def reason(self, row: Row) -> str:
        """Return why training ends after this row; empty if it continues."""
        if not math.isfinite(row.loss) and not (self.blind and math.isnan(row.loss)):
            return DIVERGED
        if self.loss is not None and self._loss_of(row) <= self.loss:
            return "target loss"
        if self.accuracy is not None and row.accuracy >= self.accuracy:
            return "target accuracy"
        if self.rounds is not None and row.round >= self.rounds:
            return "rounds"
        if self.seconds is not None and row.seconds >= self.seconds:
            return TIME_IS_UP
        return ""

    def promise(self, row: Row) -> str:
        """Return why this row would end training, if its loss were evaluated and sustained."""
        return replace(self, sustained=False).reason(row)

    def _loss_of(self, row: Row) -> float:
        return row.sustained_loss if self.sustained else row.loss


Schedule: TypeAlias = Callable[[int], float]


def inverse(initial: float) -> Schedule:
    """η_0 / (1 + r), as in the paper's evaluation.

    >>> inverse(0.1)(4)
    0.02
    """
    return lambda r: initial / (1 + r)


def constant(rate: float) -> Schedule:
    """η in every round.

    >>> constant(0.05)(100)
    0.05
    """
    return lambda _: rate


def theoretical(strong_convexity: float, shift: float) -> Schedule:
    """2 / (μ (γ + r)), the schedule of the convergence bound [Luo22, Thm. 1].

    >>> theoretical(strong_convexity=0.5, shift=50)(0)
    0.08
    """
    return lambda r: 2 / (strong_convexity * (shift + r))
