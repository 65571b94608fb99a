"""Learning-rate schedules: functions of the round r."""

from collections.abc import Callable
from typing import TypeAlias

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
