"""P2, the exact problem: minimise T(q) (S(q) + c), with T the expected slowest of K draws.

T is concave, so its tangent plane at the current q bounds it from above, and replacing T by
the plane gives P3 with the marginal times τ: solve, repeat. The objective falls at every
step. There can be several local optima, so several starts; docs/method.md has the argument.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedpace.checks import FloatArray, IntArray, positive_count
from fedpace.profile import Profile
from fedpace.sampling.bound import sorted_marginal_times, sorted_round_time, variance_term
from fedpace.sampling.solvers.mean_time import solve_tilt, unit_importance
from fedpace.sampling.solvers.solution import Solution, certify, residual, weight_floors

# Majorise–minimise steps from one start; none of our tests needed more than 300.
STEP_LIMIT = 1000
# A step that lowers the objective by less than this fraction ends the descent.
LEAST_DECREASE = 1e-13
# Starts are tried on about this many groups of clients with neighbouring times.
GROUPS = 2048
# Above this many clients only the optima of the groups are refined: a descent takes a second.
LARGE = 2**15
# Descents to one local optimum end within this fraction of each other.
ALIKE = 1e-9
# Merging clients changes the objective by less than this fraction: 3e-5 at most in our tests.
NEAR = 1e-2
# Starts along the P3 family, as c in units of S_0: from Corollary 2 to "the fastest only".
START_RATIOS = (0.0, 1.0, 1e1, 1e2, 1e3, 1e4, 1e6)
# The same for a large fleet, which has more local optima; on its groups a start takes 10 ms.
FINE_RATIOS = (0.0, *(10 ** (half / 2) for half in range(-4, 15)))


def solve_max_time(
    weights: ArrayLike,
    times: ArrayLike,
    grad_norms: ArrayLike,
    beta_over_alpha: float | None,
    k: int,
    max_weight: float | None = None,
    *,
    certified: bool = False,
) -> Solution:
    """Minimise the exact objective T(q) (Σ p_i² G_i² / q_i + c), T(q) = E[slowest of K draws].

    Parameters
    ----------
    weights, times, grad_norms : arrays of N
        p_i, t_i and G_i; see `Profile`, also for the stand-in where G_i = 0.
    beta_over_alpha : float ≥ 0 or None
        c = β/α; None for (Σ p_i G_i)².
    k : int ≥ 1
        K, the number of draws.
    max_weight : float ≥ 1/k, optional
        Cap on the aggregation weight of one draw, p_i / (K q_i).
    certified : bool
        Search all local optima by dynamic programming (seconds instead of milliseconds):
        tightens `gap` to a few percent in most cases and starts from what it finds. Without
        it `gap` comes from T(q) ≥ Σ q_i t_i: valid, but loose when K is large.

    Examples
    --------
    One draw: the slowest is the mean, and P2 is P3.

    >>> solve_max_time([0.5, 0.5], times=[1.0, 4.0], grad_norms=[1.0, 1.0],
    ...                beta_over_alpha=0.0, k=1).q.round(6)
    array([0.666667, 0.333333])

    With ten draws a round almost surely meets the slow client, so avoiding it hardly helps:

    >>> solve_max_time([0.5, 0.5], times=[1.0, 4.0], grad_norms=[1.0, 1.0],
    ...                beta_over_alpha=0.0, k=10).q.round(2)
    array([0.5, 0.5])

    Notes
    -----
    Differs from [Luo22, P3]: no approximation of the expected maximum by the mean.
    """
    profile = Profile(weights, times, grad_norms, beta_over_alpha)
    k = positive_count("k", k)
    order = np.argsort(profile.times)
    fleet = _sorted_fleet(profile, order, k, max_weight)
    mean_bound, starts = _starts(fleet)
    best = min((_descend(fleet, q) for q in starts), key=lambda found: found.objective)
    lower = mean_bound
    if certified:
        best, lower = _certify(fleet, best, mean_bound)
    q = np.empty_like(best.q)
    q[order] = best.q
    round_time = sorted_round_time(best.q, fleet.times, k)
    variance = variance_term(q, profile.weights, profile.grad_norms)
    return Solution(
        q=q,
        objective=round_time * (variance + profile.beta_over_alpha),
        status="converged" if best.converged else "iteration-limit",
        iterations=best.steps,
        residual=_residual(fleet, best.q),
        gap=max(best.objective / lower - 1, 0.0),
    )


class _Fleet(NamedTuple):
    """The problem for clients sorted by time, in units where S_0 = 1."""

    importance: FloatArray
    times: FloatArray
    c: float
    k: int
    floors: FloatArray | None


class _Descent(NamedTuple):
    q: FloatArray
    objective: float
    steps: int
    converged: bool


def _sorted_fleet(profile: Profile, order: IntArray, k: int, max_weight: float | None) -> _Fleet:
    importance, c = unit_importance(profile)
    floors = weight_floors(profile, k, max_weight)
    return _Fleet(
        importance[order],
        profile.times[order],
        c,
        k,
        None if floors is None else floors[order],
    )


def _starts(fleet: _Fleet) -> tuple[float, list[FloatArray]]:
    """Return a lower bound on the objective, and the points to descend from.

    The starts are tried on a fleet of groups, which costs the same for a million clients as
    for two thousand; their optima, spread over the members, are then refined.
    """
    mean = _mean_time_optimum(fleet, fleet.c)
    mean_bound = float(mean @ fleet.times) * _spread(fleet, mean)
    if fleet.times.size <= GROUPS:
        return mean_bound, [fleet.importance, mean, *_family_starts(fleet, START_RATIOS)]
    small, member = _group(fleet)
    large = fleet.times.size > LARGE
    ratios = (*FINE_RATIOS, fleet.c) if large else START_RATIOS
    candidates = [small.importance, *_family_starts(small, ratios)]
    optima = _optima([_descend(small, q) for q in candidates])
    if not large:
        return mean_bound, [mean, _distribute(optima[0].q, fleet, small, member)]
    return mean_bound, [_distribute(each.q, fleet, small, member) for each in optima]


def _optima(found: list[_Descent]) -> list[_Descent]:
    """Return one descent to each optimum that may be the global one of the full fleet."""
    found = sorted(found, key=lambda each: each.objective)
    kept = found[:1]
    for each in found:
        if kept[-1].objective * (1 + ALIKE) < each.objective < found[0].objective * (1 + NEAR):
            kept.append(each)
    return kept


def _distribute(q: FloatArray, fleet: _Fleet, small: _Fleet, member: IntArray) -> FloatArray:
    spread = q[member] * (fleet.importance / small.importance[member])
    spread /= spread.sum()
    return spread


def _family_starts(fleet: _Fleet, ratios: Iterable[float]) -> list[FloatArray]:
    # To hardly ever meet a client in K draws its q must be below 1/K, and along the family
    # q falls with the root of c: hence K².
    rare = (float(fleet.k) ** 2, 100.0 * fleet.k**2)
    return [_mean_time_optimum(fleet, ratio) for ratio in (*ratios, *rare)]


def _mean_time_optimum(fleet: _Fleet, c: float) -> FloatArray:
    fastest = fleet.times[0]
    return solve_tilt(fleet.importance, (fleet.times - fastest) / fastest, c, fleet.floors).q


def _group(fleet: _Fleet) -> tuple[_Fleet, IntArray]:
    """Merge clients with neighbouring times into groups; return the group of each client.

    Groups are of equal size; those of a large fleet get smaller towards both ends: with a large c
    a few of the fastest get most of the draws, and a few of the slowest make a round long.
    """
    n = fleet.times.size
    first = np.arange(GROUPS) * n // GROUPS
    if n > LARGE:
        ends = np.geomspace(1, n, GROUPS // 4).astype(np.int64)
        first = np.unique(np.concatenate([first, ends - 1, n - ends]))
    importance = np.add.reduceat(fleet.importance, first)
    # Rounding may put means of equal times out of order; gaps must not be negative.
    times = np.add.reduceat(fleet.importance * fleet.times, first) / importance
    np.maximum.accumulate(times, out=times)
    floors = None if fleet.floors is None else np.add.reduceat(fleet.floors, first)
    member = np.repeat(np.arange(first.size), np.diff(first, append=n))
    return fleet._replace(importance=importance, times=times, floors=floors), member


def _descend(fleet: _Fleet, start: FloatArray) -> _Descent:
    """Majorise, minimise, repeat, until the objective stops falling.

    The start itself is never the answer: it need not respect the floors, the steps do.
    """
    cost = sorted_marginal_times(start, fleet.times, fleet.k)
    best = _Descent(start, np.inf, 0, False)
    for step in range(1, STEP_LIMIT + 1):
        cost.excess[:] /= cost.first
        tilt = solve_tilt(fleet.importance, cost.excess, fleet.c, fleet.floors)
        cost = sorted_marginal_times(tilt.q, fleet.times, fleet.k)
        objective = cost.round_time * _spread(fleet, tilt.q)
        if not objective < best.objective * (1 - LEAST_DECREASE):
            return best._replace(steps=step, converged=tilt.converged)
        best = _Descent(tilt.q, objective, step, False)
    return best


def _spread(fleet: _Fleet, q: FloatArray) -> float:
    """Return S(q) + c."""
    return float(fleet.importance @ (fleet.importance / q)) + fleet.c


def _residual(fleet: _Fleet, q: FloatArray) -> float:
    cost = sorted_marginal_times(q, fleet.times, fleet.k)
    relative = cost.excess
    relative /= cost.first
    relative += 1
    return residual(q, fleet.importance, relative, fleet.c, fleet.floors)


def _certify(fleet: _Fleet, best: _Descent, lower: float) -> tuple[_Descent, float]:
    """Raise the lower bound by dynamic programming, and descend from what it finds."""
    for _ in range(2):
        bound, starts = certify(*fleet, best.q, best.objective)
        lower = max(lower, bound)
        found = min((_descend(fleet, q) for q in starts), key=lambda found: found.objective)
        if found.objective >= best.objective * (1 - LEAST_DECREASE):
            break
        best = found
    return best, min(lower, best.objective)
