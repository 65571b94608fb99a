"""c = β/α from two pilots: how much of the rounds is sampling's doing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedpace.checks import FloatArray
from fedpace.errors import InputError
from fedpace.profile import stand_in

# Uniform and weighted sampling must differ in S by more than this factor to tell c from noise.
LEAST_CONTRAST = 1.1
# Beyond this multiple of S_0 the bound says "only the fastest", which no training survives.
LARGEST_RATIO = 10.0
# So far beyond log U/V, ρ is rounding, not contradiction.
EXPLAINED = 0.01
# Standard deviations to either side of the estimate.
INTERVAL = 2.0


class RatioEstimate(NamedTuple):
    """c with an interval; `identified` is False where `value` is the default.

    `rho` is R_uniform / R_weighted, combined over all thresholds that both pilots passed.
    """

    value: float
    low: float
    high: float
    identified: bool
    reason: str
    rho: float


def estimate_ratio(
    uniform_losses: Sequence[float],
    weighted_losses: Sequence[float],
    thresholds: Sequence[float],
    weights: FloatArray,
    grad_norms: FloatArray,
) -> RatioEstimate:
    """Estimate c = β/α from how soon two pilots pass the same losses [Luo22, Alg. 2].

    R ∝ S + c for either pilot, with S = U = N Σ p_i² G_i² under uniform and S = V = Σ p_i G_i²
    under weighted sampling, so ρ = R_uniform/R_weighted = (U + c)/(V + c), and
    c = (ρ V − U)/(1 − ρ).

    Differs from [Luo22, Alg. 2], which averages c over the thresholds: near ρ = 1 each c is a
    quotient of noise and may be negative. Here log ρ is averaged over the thresholds before it is
    inverted, with an interval of two standard deviations. Its variance is that between thresholds
    plus the luck of the pilots themselves, which the thresholds share: see `_luck`. The interval
    is carried over to c, and c is cut to [0, 10 S_0]. c is not identified, and the value is the
    default S_0 moved into the interval, where the interval has no upper end, where U ≈ V, and
    where ρ lies beyond U/V, which no c explains.

    Parameters
    ----------
    uniform_losses, weighted_losses : sequences
        Global loss after rounds 0, 1, 2, … of each pilot.
    thresholds : sequence
        The losses F_s.
    weights, grad_norms : arrays of N
        p_i and G_i.
    """
    if not thresholds:
        raise InputError("thresholds must not be empty, got none; give losses to pass on the way")
    any_gradient = bool(grad_norms.any())
    grad_norms = stand_in(grad_norms)
    default = float(weights @ grad_norms) ** 2
    largest = LARGEST_RATIO * default
    uniform_variance = weights.size * float(weights**2 @ grad_norms**2)
    weighted_variance = float(weights @ grad_norms**2)
    logs = _log_rhos(uniform_losses, weighted_losses, thresholds)
    if not logs or not any_gradient:
        reason = "no threshold passed" if any_gradient else "all gradient norms are 0"
        return RatioEstimate(default, 0.0, math.inf, False, reason, math.nan)
    middle, rho = float(np.mean(logs)), math.exp(float(np.mean(logs)))
    luck = _luck(uniform_losses) + _luck(weighted_losses)
    spread = INTERVAL * math.sqrt(float(np.var(logs)) + luck)
    contrast = uniform_variance / weighted_variance
    if max(contrast, 1 / contrast) < LEAST_CONTRAST:
        return RatioEstimate(default, 0.0, math.inf, False, "balanced data: U ≈ V", rho)
    low, value, high = sorted(
        _inverted(math.exp(log), uniform_variance, weighted_variance)
        for log in (middle - spread, middle, middle + spread)
    )
    moved = min(max(default, low), high, largest)
    if low == math.inf:
        return RatioEstimate(default, 0.0, math.inf, False, "ρ on the wrong side of 1", rho)
    if abs(middle) > abs(math.log(contrast)) + EXPLAINED:
        return RatioEstimate(moved, low, high, False, "ρ beyond U/V: no c explains it", rho)
    if high > largest:
        return RatioEstimate(moved, low, high, False, "the interval has no upper end", rho)
    return RatioEstimate(value, low, high, True, "", rho)


def rounds_to_pass(losses: Sequence[float], threshold: float) -> float:
    """Return the round at which the loss first passes the threshold, between rounds linearly.

    >>> rounds_to_pass([2.0, 1.0, 0.5], 1.5)
    0.5
    >>> rounds_to_pass([2.0, 1.0, 0.5], 0.1)
    inf
    """
    for index, loss in enumerate(losses):
        if loss <= threshold:
            if index == 0:
                return 0.0
            before = losses[index - 1]
            return index - 1 + (before - threshold) / (before - loss)
    return math.inf


def _log_rhos(
    uniform_losses: Sequence[float], weighted_losses: Sequence[float], thresholds: Sequence[float]
) -> list[float]:
    logs = []
    for threshold in thresholds:
        first = rounds_to_pass(uniform_losses, threshold)
        second = rounds_to_pass(weighted_losses, threshold)
        if 0 < first < math.inf and 0 < second < math.inf:
            logs.append(math.log(first / second))
    return logs


def _luck(losses: Sequence[float]) -> float:
    """Return the variance of the logarithm of a pilot's rounds that its ups and downs cause.

    If the loss falls by D in n rounds, in steps that scatter by σ around their trend, the rounds
    to a given loss scatter by the fraction σ √n / D (first passage of a walk with drift). σ² is
    taken from the steps upwards, which no trend makes, and counted twice, for those downwards
    that go unseen: a history that only falls has no luck in it.
    """
    steps = -np.diff(losses)
    fall = float(steps.sum())
    if not fall > 0:
        return 0.0
    scatter = 2 * float(np.mean(np.minimum(steps, 0) ** 2))
    return scatter * steps.size / fall**2


def _inverted(rho: float, uniform_variance: float, weighted_variance: float) -> float:
    """Return the c ≥ 0 whose ρ is nearest: ρ runs from U/V at c = 0 to 1 at c = ∞."""
    towards_one = (rho - 1) * (uniform_variance - weighted_variance)
    if towards_one <= 0:
        return math.inf
    return max((rho * weighted_variance - uniform_variance) / (1 - rho), 0.0)
