"""What a solver returns."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from fedpace.checks import FloatArray, number
from fedpace.errors import InputError
from fedpace.profile import Profile

Status: TypeAlias = Literal["converged", "iteration-limit"]

# Floors that leave less than this to distribute leave nothing: q = p.
NOTHING_LEFT = 1e-12
CAP_REMEDY = "give the largest weight that one draw may have, or leave it out"


@dataclass(frozen=True, eq=False)
class Solution:
    """Hold the probabilities that minimise a predicted time, and how sure that is.

    Attributes
    ----------
    q : array of N
        Probabilities: positive, sum to 1, and with `max_weight` at least p_i / (K w_max).
    objective : float
        Predicted time T (S + c), in seconds times the unit of S; its ratios matter.
    status : "converged" or "iteration-limit"
        With "iteration-limit" q is valid and the best found, but `residual` is not small.
    iterations : int
        Evaluations of the scalar equation (mean time), or majorise–minimise steps (max time).
    residual : float
        Σ_i q_i |∂ log J/∂q_i − λ|: changing every probability by up to a factor 1 ± δ
        lowers the objective by no more than the fraction residual · δ, to first order.
    gap : float
        The objective is proven to be at most (1 + gap) times the global minimum.
    """

    q: FloatArray
    objective: float
    status: Status
    iterations: int
    residual: float
    gap: float


def weight_floors(profile: Profile, k: int, max_weight: float | None) -> FloatArray | None:
    """Return the least probabilities p_i / (K w_max) that keep p_i / (K q_i) ≤ w_max."""
    if max_weight is None:
        return None
    check_cap("max_weight", max_weight, k)
    return profile.weights / (k * max_weight)


def check_cap(name: str, max_weight: float, k: int) -> None:
    """Refuse a cap that is no number, or below 1/K, which no probabilities can keep."""
    max_weight = number(name, max_weight, CAP_REMEDY)
    if not max_weight >= (1 - NOTHING_LEFT) / k:
        raise InputError(
            f"{name} must be at least 1/k = {1 / k:g}, got {max_weight:g}; "
            "the weights of K clients sum to 1 on average"
        )


def residual(
    q: FloatArray,
    importance: FloatArray,
    relative_times: FloatArray,
    c: float,
    floors: FloatArray | None,
    most: FloatArray | None = None,
) -> float:
    """Return the first-order optimality residual of A (S + c), A = Σ q_i times_i.

    A client at its floor counts only as far as it would rather have more, and one at its `most`
    as far as it would rather have less.
    """
    ratio = importance / q
    spread = float(ratio @ importance) + c
    ratio *= ratio
    ratio /= -spread
    ratio += relative_times / float(q @ relative_times)
    if floors is None:
        ratio -= float(q @ ratio)
        return float(q @ np.abs(ratio, out=ratio))
    low = q <= floors * (1 + NOTHING_LEFT)
    high = np.zeros_like(low) if most is None else q >= most * (1 - NOTHING_LEFT)
    free = ~(low | high)
    if not free.any():
        return 0.0
    ratio -= float(q[free] @ ratio[free]) / float(q[free].sum())
    blocked = (low & (ratio > 0)) | (high & (ratio < 0))
    ratio[blocked] = 0
    return float(q @ np.abs(ratio, out=ratio))
