"""P3, the paper's problem: minimise (Σ q_i t_i) (S(q) + c), exactly, by one scalar root.

The proof that there is one stationary point, with and without floors, is in docs/method.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedpace.checks import FloatArray, positive_count
from fedpace.profile import Profile
from fedpace.sampling.bound import variance_term
from fedpace.sampling.solvers.solution import NOTHING_LEFT, Solution, residual, weight_floors

# Of the logarithm of the unknown: a smaller step no longer changes q in float64.
ROOT_TOLERANCE = 1e-14
# Steps of the root finder; 80 were the most over 460,000 roots of fleets that strain float64.
ROOT_STEPS = 200
# No allowed fleet has a_1² below 1e-120 / N²: with a smaller c, r ≤ c / a_1² is nothing beside 1.
NEGLIGIBLE = 1e-150
# Doublings of the step out from the free root: up to a factor e^511 in u.
DOUBLINGS = 9
# exp of this is still positive in float64.
LEAST_LOG = -700.0


def solve_mean_time(
    weights: ArrayLike,
    times: ArrayLike,
    grad_norms: ArrayLike,
    beta_over_alpha: float | None = None,
    max_weight: float | None = None,
    k: int = 1,
) -> Solution:
    """Minimise the mean-time objective (Σ q_i t_i) (Σ p_i² G_i² / q_i + c) over the simplex.

    The minimiser is q_i ∝ a_i / √(t_i − θ) with a_i = p_i G_i and θ the one root of

        Σ a_i √(θ / (t_i − θ)) = √c,   0 ≤ θ < t_1.

    Parameters
    ----------
    weights, times, grad_norms : arrays of N
        p_i, t_i and G_i; see `Profile`, also for the stand-in where G_i = 0.
    beta_over_alpha : float ≥ 0, optional
        c = β/α; by default (Σ p_i G_i)².
    max_weight : float ≥ 1/k, optional
        Cap on the aggregation weight of one draw, p_i / (K q_i).
    k : int ≥ 1
        K, used by the cap only.

    Examples
    --------
    With c = 0, q ∝ p_i G_i / √t_i [Luo22, Cor. 2]:

    >>> solve_mean_time([0.5, 0.5], times=[1.0, 4.0], grad_norms=[1.0, 1.0],
    ...                 beta_over_alpha=0.0).q.round(6)
    array([0.666667, 0.333333])

    Notes
    -----
    Differs from [Luo22, Alg. 2]: no convex solver inside a search over M = Σ q_i t_i,
    because stationarity reduces to the equation above; the optimum is exact and global.
    """
    profile = Profile(weights, times, grad_norms, beta_over_alpha)
    floors = weight_floors(profile, positive_count("k", k), max_weight)
    importance, c = unit_importance(profile)
    fastest = float(profile.times.min())
    excess = (profile.times - fastest) / fastest
    tilt = solve_tilt(importance, excess, c, floors)
    excess += 1
    mean_time = float(tilt.q @ profile.times)
    variance = variance_term(tilt.q, profile.weights, profile.grad_norms)
    return Solution(
        q=tilt.q,
        objective=mean_time * (variance + profile.beta_over_alpha),
        status="converged" if tilt.converged else "iteration-limit",
        iterations=tilt.evaluations,
        residual=residual(tilt.q, importance, excess, c, floors),
        gap=tilt.gap,
    )


def unit_importance(profile: Profile) -> tuple[FloatArray, float]:
    """Return a_i / Σ a and c / (Σ a)²: the problem in units where S_0 = 1."""
    importance = profile.importance
    total = float(importance.sum())
    importance /= total
    return importance, profile.beta_over_alpha / total**2


class Tilt(NamedTuple):
    """A member of the family q_i = max(l_i, s a_i / √(x_i + u)), with x_i = t_i/t_1 − 1."""

    q: FloatArray
    evaluations: int
    gap: float
    converged: bool


class _Root(NamedTuple):
    at: float
    evaluations: int
    converged: bool


def solve_tilt(
    importance: FloatArray, excess: FloatArray, c: float, floors: FloatArray | None = None
) -> Tilt:
    """Minimise (Σ q_i (1 + x_i)) (Σ a_i² / q_i + c) subject to q_i ≥ l_i.

    Parameters
    ----------
    importance : array of N, > 0, sums to 1
        a_i.
    excess : array of N, ≥ 0, with a zero
        x_i = t_i / t_1 − 1. Differences to the fastest come in as such: t_i − θ with
        θ → t_1 would cancel. The unknown is u = 1 − θ/t_1.
    c : float > −1
        In units of (Σ a)² = 1.
    floors : array of N, optional
        l_i.
    """
    root = _free_root(importance, excess, c)
    evaluations = root.evaluations
    if floors is None and c < 0:  # θ < 0, which only the other root finder looks for
        floors = np.zeros_like(importance)
    if floors is None:
        q, scale = _free_member(importance, excess, root.at)
    elif floors.sum() >= 1 - NOTHING_LEFT:
        return Tilt(floors / floors.sum(), evaluations, 0.0, True)
    else:
        root = _floored_root(importance, excess, c, floors, math.log(root.at))
        evaluations += root.evaluations
        q, scale = _floored_member(importance, excess, root.at, floors)
    mean = 1 + float(q @ excess)
    spread = float(importance @ (importance / q)) + c
    # J as a function of M = Σ q t is convex left of the root of J′(M) = B − A/s², and the
    # optimum has M ≥ t_1 and M ≤ J / (S_0 + c): so J′ bounds what is left to gain.
    slope = abs(1 - mean / (scale * scale * spread))
    gap = slope * max(1 - 1 / mean, spread / (1 + c) - 1, 0.0)
    return Tilt(q, evaluations, gap, root.converged)


def _free_root(importance: FloatArray, excess: FloatArray, c: float) -> _Root:
    """Solve Σ a_i √(r / (1 + x_i (1 + r))) = √c for r = θ/(t_1 − θ); return u = 1/(1 + r).

    The left side rises with r, is at most √r and at least √r Σ_{x_i = 0} a_i: the bracket.
    """
    if c < NEGLIGIBLE:
        return _Root(1.0, 0, True)
    buffer = np.empty_like(excess)
    half_log_c = math.log(c) / 2

    def log_misfit(log_r: float) -> float:
        r = math.exp(log_r)
        np.multiply(excess, 1 + r, out=buffer)
        np.add(buffer, 1, out=buffer)
        np.divide(r, buffer, out=buffer)
        np.sqrt(buffer, out=buffer)
        return math.log(importance @ buffer) - half_log_c

    fastest = float(importance[excess == 0].sum())
    margin = 1e-6  # the ends are exact where times are equal, and rounding may miss them
    low, high = 2 * half_log_c - margin, 2 * (half_log_c - math.log(fastest)) + margin
    root = _root(log_misfit, low, high)
    return root._replace(at=1 / (1 + math.exp(root.at)))


def _free_member(
    importance: FloatArray, excess: FloatArray, unknown: float
) -> tuple[FloatArray, float]:
    q = importance / np.sqrt(excess + unknown)
    scale = 1 / float(q.sum())
    q *= scale
    return q, scale


def _floored_root(
    importance: FloatArray, excess: FloatArray, c: float, floors: FloatArray, start: float
) -> _Root:
    """Solve s² = A / (S + c) along the floored family; u may exceed 1 (θ < 0) here."""
    seen = 0

    def log_misfit(log_u: float) -> float:
        nonlocal seen
        seen += 1
        q, scale = _floored_member(importance, excess, math.exp(log_u), floors)
        spread = float(importance @ (importance / q)) + c
        return math.log((1 + float(q @ excess)) / spread) - 2 * math.log(scale)

    root = falling_root(log_misfit, start)
    return _Root(math.exp(root.at), seen, root.converged)


def _floored_member(
    importance: FloatArray, excess: FloatArray, unknown: float, floors: FloatArray
) -> tuple[FloatArray, float]:
    """Return q = max(l, s b), b = a / √(x + u), with s such that Σ q = 1.

    Newton's method on a convex piecewise linear function, from the right: s falls, clients
    only ever join the floored ones, and it ends after as many steps as that happens.
    """
    shape = importance / np.sqrt(excess + unknown)
    scale = 1 / float(shape.sum())
    floored = shape * scale < floors
    joined = floored
    while joined.any():
        free = ~floored
        scale = (1 - float(floors[floored].sum())) / float(shape[free].sum())
        # Rounding may put a client that meets its floor exactly to either side: none leaves again.
        joined = free & (shape * scale < floors)
        floored |= joined
    shape *= scale
    return np.maximum(shape, floors, out=shape), scale


def falling_root(function: Callable[[float], float], start: float) -> _Root:
    """Return where a function of log u is zero that is positive for small u, negative for large."""
    direction = 1.0 if function(start) > 0 else -1.0
    for doubling in range(DOUBLINGS):  # step out from the start until the sign changes
        end = max(start + direction * 2.0**doubling, LEAST_LOG)
        if function(end) * direction <= 0:
            break
        start = end
    return _root(function, min(start, end), max(start, end))


def _root(function: Callable[[float], float], low: float, high: float) -> _Root:
    """Return where the function is zero, or the best known where that cannot be found."""
    # Imported on first use: scipy.optimize alone takes longer to import than all of fedpace.
    from scipy.optimize import brentq

    # SciPy's wrapper refers to itself and lives until the garbage collector comes round; through
    # the emptied list it does not keep the function's vectors of length N alive as well.
    held = [function]
    try:
        root, details = brentq(
            lambda at: held[0](at),
            low,
            high,
            xtol=ROOT_TOLERANCE,
            rtol=ROOT_TOLERANCE,
            maxiter=ROOT_STEPS,
            full_output=True,
            disp=False,
        )
    except ValueError:  # the same sign at both ends
        return _Root(min((low, high), key=lambda at: abs(function(at))), 4, False)
    finally:
        held.clear()
    return _Root(float(root), int(details.function_calls), bool(details.converged))
