"""Independent draws of least predicted time: 0 < π ≤ 1, Σ π = K, and a cap on the weights.

With the mean time Σ π_i t_i / K this is a scalar root around a scalar root, and the optimum is
global. With the exact expected slowest, steps go towards the optimum for the marginal times, as far
as the objective falls; docs/method.md has the proofs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedpace.checks import FloatArray, IntArray, positive_count, short_repr
from fedpace.errors import InputError
from fedpace.profile import Profile
from fedpace.sampling.independent import Bounded, Independent, clip_to_sum, sorted_slowest
from fedpace.sampling.order import stable_order
from fedpace.sampling.solvers.max_time import LARGE, solve_max_time
from fedpace.sampling.solvers.mean_time import falling_root, unit_importance
from fedpace.sampling.solvers.shares import first_positive
from fedpace.sampling.solvers.solution import NOTHING_LEFT, Solution, check_cap, residual

# Descent steps from one start; none of our tests needed more than 100.
STEP_LIMIT = 500
# A large fleet gets fewer: a step takes a second, and the start is the optimum of draws with
# replacement, which differ little from independent ones if K is far below N.
LARGE_LIMIT = 3
# A step that lowers the objective by less than this fraction ends the descent.
LEAST_DECREASE = 1e-12
# An end with a larger residual is not called converged.
LARGEST_RESIDUAL = 1e-3
# Halvings of a step that would raise the objective.
HALVINGS = 40
# Tries to find positive marginal times; with the last, the plane is that of the objective itself.
LINEAR = 20
# Starts, as multiples of c for the mean-time problem: more is more in favour of fast clients.
FAVOURS = (0.0, 1.0, 100.0)


@dataclass(frozen=True, eq=False)
class IndependentSolution(Solution):
    """A solution whose `q` are shares of draws, π / K; `gap` is against the mean-time optimum.

    Attributes
    ----------
    inclusion : array of N, in (0, 1]
        π_i.
    """

    inclusion: FloatArray


def solve_independent(
    weights: ArrayLike,
    times: ArrayLike,
    grad_norms: ArrayLike,
    beta_over_alpha: float | None,
    k: int,
    max_weight: float | None = None,
    *,
    time: Literal["max", "mean"] = "max",
) -> IndependentSolution:
    """Minimise T (S + c) over independent draws of K clients on average.

    S is that of `Independent`. With the time "mean", T = Σ π_i t_i / K, a draw without any client
    is ignored, and the minimiser is π_i = min(s a_i / √(t_i − θ), 1), 1 for t_i ≤ θ.

    Parameters
    ----------
    weights, times, grad_norms, beta_over_alpha, k
        p_i, t_i, G_i, c = β/α (None: (Σ p_i G_i)²) and K, as in `solve_max_time`.
    max_weight : float ≥ 1/k, optional
        Cap on the weight p_i / π_i of one client. No weight can be less than p_i: a smaller cap is
        met as closely as possible.
    time : "max" or "mean"
        The exact expected slowest, or the mean time of the clients drawn.

    Examples
    --------
    The fast client always takes part, and the slow one as rarely as its data allow.

    >>> solution = solve_independent([0.5, 0.25, 0.25], [1.0, 2.0, 4.0], [1.0] * 3, 0.1, k=2)
    >>> solution.inclusion.round(3), solution.status
    (array([1.   , 0.617, 0.383]), 'converged')
    """
    if time not in ("max", "mean"):
        raise InputError(f"time must be 'max' or 'mean', got {short_repr(time)}; give one of them")
    profile = Profile(weights, times, grad_norms, beta_over_alpha)
    k = positive_count("k", k)
    floors = None
    if max_weight is not None:
        check_cap("max_weight", max_weight, k)
        floors = np.minimum(profile.weights / max_weight, 1.0)
    order = stable_order(profile.times)
    problem = _problem(profile, k, floors, order)
    mean = problem.mean_time(problem.relative, problem.constant / problem.k)
    best = _Descent(mean.inclusion, problem.objective(mean.inclusion), mean.seen, mean.converged)
    if time == "max":
        starts = problem.starts(profile, max_weight)
        limit = LARGE_LIMIT if profile.n > LARGE else STEP_LIMIT
        best = min((_descend(problem, each, limit) for each in starts), key=lambda way: way.value)
    return _solution(profile, problem, best, mean, order, time)


class _Mean(NamedTuple):
    """The optimum of a mean-time problem, and the part of its objective that may be left."""

    inclusion: FloatArray
    seen: int
    converged: bool
    gap: float = 0.0


class _Descent(NamedTuple):
    inclusion: FloatArray
    value: float
    steps: int
    converged: bool


class _Problem(NamedTuple):
    """The problem for clients sorted by time, in units where t_1 = 1 and Σ a = 1.

    T (S + c) = E[slowest] (K Σ a²/π + d / (1 − P_0)), d = c − (K − 1) Σ a². `total` is Σ π.
    """

    importance: FloatArray
    relative: FloatArray
    k: int
    total: float
    constant: float
    floors: FloatArray | None

    def objective(self, inclusion: FloatArray) -> float:
        """Return T (S + c)."""
        slowest = sorted_slowest(inclusion, self.relative)
        return slowest.mean * self.k * self._spread(inclusion, slowest.somebody)

    def _spread(self, inclusion: FloatArray, somebody: float) -> float:
        spread = float(self.importance @ (self.importance / inclusion))
        return spread + self.constant / (self.k * somebody)

    def tangent(self, inclusion: FloatArray) -> tuple[FloatArray, float]:
        """Return times τ and a constant e: (Σ τ π) (Σ a²/π + e) has the objective's gradient.

        On Σ π = K; τ_j is what client j costs a round at the margin. With e = d / (K (1 − P_0)) a
        client may have τ_j ≤ 0 if K is small, as it makes empty draws rarer; then e is raised.
        """
        slowest = sorted_slowest(inclusion, self.relative)
        e = self.constant / (self.k * slowest.somebody)
        squares = (self.importance / inclusion) ** 2
        moment = float(squares @ inclusion)
        gradient = slowest.gradient / slowest.mean
        gradient -= e / (slowest.somebody * (moment + e)) * slowest.nonempty
        gradient -= squares / (moment + e)
        power = 0
        while True:
            raised = e + moment * (4.0**power - 1)
            times = gradient + squares / (moment + raised)
            times += (1 - float(times @ inclusion)) / self.total
            power += 1
            if times.min() > 0 or power == LINEAR:
                return np.maximum(times, NOTHING_LEFT * times.max()), raised

    def mean_time(self, times: FloatArray, e: float) -> _Mean:
        """Minimise (Σ t_i π_i) (Σ a_i² / π_i + e) subject to l_i ≤ π_i ≤ 1, Σ π = K.

        π_i = max(l_i, min(s a_i / √(t_i − θ), 1)). Between two clients' times the equation for θ is
        smooth: so first find the fastest client with t_i ≥ θ, then θ.
        """
        least = np.zeros(0) if self.floors is None else self.floors
        if self.total >= times.size:
            return _Mean(np.ones_like(times), 0, True)
        if (held := float(least.sum())) >= self.total * (1 - NOTHING_LEFT):
            return _Mean(least * (self.total / held), 0, True)
        slots = math.ceil(self.total)
        fastest = np.sort(np.partition(times, slots - 1)[:slots])
        seen, scale = 0, None
        found = Bounded(times, 1.0)

        def misfit(anchor: float, below: float) -> float:
            """Return log of A / (s² B), which rises with θ = anchor − below."""
            nonlocal seen, scale, found
            seen += 1
            gaps = times - anchor
            gaps += below
            ahead = np.flatnonzero(gaps <= 0)
            kept = held - float(least[ahead].sum()) if held else 0.0
            if ahead.size + kept >= self.total:
                return math.inf
            gaps[ahead] = 1.0
            shape = np.divide(self.importance, np.sqrt(gaps, out=gaps), out=gaps)
            shape[ahead] = np.inf
            found = clip_to_sum(shape, self.floors, self.total, scale)
            scale = found.scale
            return self._slope(found, times, e)

        last = first_positive(lambda i: misfit(float(fastest[i]), 0.0), slots - 1)
        anchor = float(fastest[last])
        width = anchor - float(fastest[last - 1]) if last else anchor
        root = falling_root(lambda log: min(misfit(anchor, math.exp(log)), 1e3), math.log(width))
        slope = misfit(anchor, math.exp(root.at))
        return _Mean(found.values, seen, root.converged, self._gap(found.values, slope, times, e))

    def _slope(self, found: Bounded, times: FloatArray, e: float) -> float:
        spread = float(self.importance @ (self.importance / found.values)) + e
        return math.log(float(found.values @ times) / spread) - 2 * math.log(found.scale)

    def _gap(self, inclusion: FloatArray, slope: float, times: FloatArray, e: float) -> float:
        """Return how much is left to gain: the objective is convex in A = Σ π_i t_i.

        The optimum has A ≥ K t_1, and A ≤ J / B_min with B_min at π ∝ a.
        """
        least = clip_to_sum(self.importance, None, self.total).values
        lowest = float(self.importance @ (self.importance / least)) + e
        spread = float(self.importance @ (self.importance / inclusion)) + e
        mean = float(inclusion @ times) / (self.total * float(times.min()))
        return abs(math.expm1(slope)) * max(1 - 1 / mean, spread / lowest - 1, 0.0)

    def starts(self, profile: Profile, max_weight: float | None) -> list[FloatArray]:
        """Return points to descend from: the optimum with replacement, and the mean-time family."""
        fleet = (profile.weights, profile.times, profile.grad_norms, profile.beta_over_alpha)
        order = stable_order(profile.times)
        q = solve_max_time(*fleet, self.k, max_weight=max_weight).q[order]
        replaced = clip_to_sum(q, self.floors, self.total).values
        if profile.n > LARGE:
            return [replaced]
        c = [favour * max(abs(self.constant), 1.0) / self.k for favour in FAVOURS]
        family = [self.mean_time(self.relative, each).inclusion for each in c]
        return [replaced, *family]


def _problem(profile: Profile, k: int, floors: FloatArray | None, order: IntArray) -> _Problem:
    importance, c = unit_importance(profile)
    return _Problem(
        importance[order],
        profile.times[order] / float(profile.times.min()),
        k,
        float(min(k, profile.n)),
        c - (k - 1) * float(importance @ importance),
        None if floors is None else floors[order],
    )


def _descend(problem: _Problem, start: FloatArray, limit: int) -> _Descent:
    """Solve the mean-time problem of the tangent plane, go towards its optimum, repeat.

    The step is halved until the objective falls.
    """
    here, value = start, problem.objective(start)
    for step in range(1, limit + 1):
        target = problem.mean_time(*problem.tangent(here)).inclusion
        length = 1.0
        for _ in range(HALVINGS):
            there = (1 - length) * here + length * target
            reached = problem.objective(there)
            if reached < value:
                break
            length /= 2
        if not reached < value * (1 - LEAST_DECREASE):
            return _Descent(here, value, step, True)
        here, value = there, reached
    return _Descent(here, value, limit, False)


def _solution(
    profile: Profile,
    problem: _Problem,
    best: _Descent,
    mean: _Mean,
    order: IntArray,
    time: str,
) -> IndependentSolution:
    inclusion = np.empty(profile.n)
    inclusion[order] = best.inclusion
    times, e = problem.relative, problem.constant / problem.k
    gap = mean.gap
    if time == "max":
        gap = max(best.value / _lower_bound(problem, mean) - 1, 0.0)
        times, e = problem.tangent(best.inclusion)
    ones = np.ones_like(times)
    floors = 0 * ones if problem.floors is None else problem.floors
    left = residual(best.inclusion, problem.importance, times, e, floors, ones)
    design = Independent(inclusion, profile.weights, k=problem.k)
    drawn, variance = design.expected_round_time(profile.times), design.variance_term(profile)
    if time == "mean":
        drawn = float(inclusion @ profile.times) / problem.total
        squares = (profile.weights * profile.grad_norms) ** 2
        variance = float(squares @ (1 + problem.k * (1 / inclusion - 1)))
    return IndependentSolution(
        q=design.q,
        objective=drawn * (variance + profile.beta_over_alpha),
        status="converged" if best.converged and left < LARGEST_RESIDUAL else "iteration-limit",
        iterations=best.steps,
        residual=left,
        gap=gap,
        inclusion=inclusion,
    )


def _lower_bound(problem: _Problem, mean: _Mean) -> float:
    """Return a bound on T (S + c) from min P3, as T ≥ Σ π_i t_i / K and 1 − P_0 ≥ 1 − e^−K.

    With M = K Σ a²/π, S + c is at least (1 − e^−K) M + d, and M at least that of π ∝ a.
    """
    least = clip_to_sum(problem.importance, None, problem.total).values
    lowest = problem.k * float(problem.importance @ (problem.importance / least))
    somebody, d = -math.expm1(-problem.total), problem.constant
    a = problem.importance
    moment = problem.k * float(a @ (a / mean.inclusion))
    time = float(mean.inclusion @ problem.relative) / problem.total
    solved = time * (moment + d) / (1 + mean.gap)  # min of time · (M + d)
    # (1 − e^−K) M + d ≥ x (M + d) for the least ratio x, at M = its least.
    share = somebody if d >= 0 else (somebody * lowest + d) / (lowest + d)
    return max(share * solved, somebody * lowest + d, 1e-300)
