"""Optimal tiers: the least predicted time with rounds of clients of similar speed.

For given tiers and given probabilities within them a tier is like a client: it takes T_g
seconds, and adds A_g / m_g to the second moment of the step. So its chance m_g solves P3 over
tiers, by one scalar root, and globally. docs/method.md has the argument.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from fedpace.checks import FloatArray, IntArray, number, positive_count
from fedpace.errors import InputError
from fedpace.profile import Profile, stand_in
from fedpace.sampling.design import normalise
from fedpace.sampling.order import stable_order
from fedpace.sampling.solvers.max_time import solve_max_time
from fedpace.sampling.solvers.mean_time import Tilt, solve_mean_time, solve_tilt
from fedpace.sampling.solvers.solution import NOTHING_LEFT, Solution, check_cap, residual
from fedpace.sampling.tiers import Tiered, inclusion_probabilities, totals

# Up to this many clients, numbers of tiers are compared by their exact times.
SMALL = 2**11
# A larger fleet has at most this many tiers, so narrow that finer ones gain nothing. A single tier
# with the probabilities of P2 is not tried there: it takes longer than everything else.
LARGE = 2**15
# In a large fleet every third number of tiers is tried first, then those around the best.
COARSER = 3
# Ratio of successive numbers of tiers that are tried.
FINER = 1.5
Number = TypeVar("Number", float, FloatArray)
ROUND_CAP_REMEDY = "give the largest sum of the weights of a round, or leave it out"


@dataclass(frozen=True, eq=False)
class TierSolution(Solution):
    """A solution with its tiers; `q` are the shares of all draws, `gap` is against min P3.

    Attributes
    ----------
    tiers : integers of N
        The tier of each client; 0 has the fastest.
    chances : array of G
        m_g.
    inclusion : array of N
        π_i within its tier.
    """

    tiers: IntArray
    chances: FloatArray
    inclusion: FloatArray


def solve_tiers(
    weights: ArrayLike,
    times: ArrayLike,
    grad_norms: ArrayLike,
    beta_over_alpha: float | None,
    k: int,
    max_weight: float | None = None,
    *,
    max_round_weight: float | None = None,
    tiers: int | None = None,
    coherence: float = 0.0,
) -> TierSolution:
    """Minimise T (S + c) over tiers of clients with neighbouring times.

    T = Σ_g m_g T_g is exact, S = K Σ_g A_g / m_g − (K − 1) Σ a_i² with A_g = Σ_{i∈g} a_i² / π_i
    and a_i = p_i G_i. Within a tier π_i ∝ a_i, at most 1. No unbiased draw of K different clients
    has an objective below min P3 with c − (K − 1) Σ a_i² in the place of c: `gap` is against it.

    Parameters
    ----------
    weights, times, grad_norms, beta_over_alpha, k
        p_i, t_i, G_i, c = β/α (None: (Σ p_i G_i)²) and K, as in `solve_max_time`.
    max_weight : float ≥ 1/k, optional
        Cap on the weight p_i / (m_g π_i) of one client. As no client is drawn twice in a round, no
        weight can be less than p_i: a smaller cap is met as closely as possible.
    max_round_weight : float ≥ 1, optional
        Cap on the weight P_g / m_g of a round, P_g = Σ_{i∈g} p_i.
    tiers : int ≥ 1, optional
        Number of tiers; by default the best number, or a single tier.
    coherence : float in [0, 1]
        κ, the mean cosine between the updates of two clients, if known: A_g becomes
        (1 − κ) Σ a_i² / π_i + κ (Σ a_i)². 0 assumes orthogonal updates.

    Examples
    --------
    Two fast and two slow clients, two a round: each pair is a tier.

    >>> solution = solve_tiers([0.25] * 4, [1.0, 9.0, 1.0, 9.0], [1.0] * 4, 0.25, k=2)
    >>> solution.tiers, solution.chances.round(6)
    (array([0, 1, 0, 1]), array([0.75, 0.25]))
    """
    profile = Profile(weights, times, grad_norms, beta_over_alpha)
    k = positive_count("k", k)
    if max_weight is not None:
        check_cap("max_weight", max_weight, k)
    caps = (max_weight, _round_cap(max_round_weight))
    order = stable_order(profile.times)
    norms = stand_in(profile.grad_norms)
    taught = Profile(profile.weights, profile.times, norms, profile.beta_over_alpha)
    problem = _Problem(taught, k, *caps, _coherence(coherence), order)
    if tiers is None:
        best, tried = _search(problem)
    else:
        count = positive_count("tiers", tiers, f"give 1 to {profile.n}", most=profile.n)
        best, tried = problem.solve(problem.cut(count), exact=True), 1
    return _solution(problem, best, tried, profile.grad_norms)


def tier_counts(n: int, k: int) -> list[int]:
    """Return the numbers of tiers to try: from 1 to N, with N/K among them.

    >>> tier_counts(40, k=4)
    [1, 2, 3, 4, 7, 10, 15, 22, 34, 40]
    """
    up, down = [n / k], [n / k]
    while up[-1] * FINER < n:
        up.append(up[-1] * FINER)
    while down[-1] / FINER > 1:
        down.append(down[-1] / FINER)
    return sorted({min(max(round(each), 1), n) for each in (1, *down, *up, n)})


def tiers_by_time(times: FloatArray, count: int) -> IntArray:
    """Return the tier of each client, of `count` tiers of equal size; 0 is the fastest.

    >>> tiers_by_time(np.array([3.0, 1.0, 2.0, 9.0]), 2)
    array([1, 0, 0, 1])
    """
    return _tiers(stable_order(times), count)


def least_moment(importance: FloatArray, tiers: IntArray, inclusion: FloatArray) -> float:
    """Return (Σ_g √A_g)², the least E‖u‖² that chances of these tiers can give.

    >>> least_moment(np.array([0.5, 0.5]), np.array([0, 1]), np.ones(2))
    1.0
    """
    moments = totals(tiers, importance * (importance / inclusion))
    return float(np.sqrt(moments).sum()) ** 2


def _tiers(order: IntArray, count: int) -> IntArray:
    tiers = np.empty(order.size, dtype=np.int64)
    tiers[order] = np.arange(order.size) * count // order.size
    return tiers


class _Parts(NamedTuple):
    """Clients in tiers, and π within them; both in the order of the clients."""

    tiers: IntArray
    inclusion: FloatArray


class _Found(NamedTuple):
    """The best chances of some tiers. `excess` is 1, or how far their caps are out of reach."""

    parts: _Parts
    tilt: Tilt
    times: FloatArray
    residual: float
    excess: float
    objective: float

    @property
    def rank(self) -> tuple[float, float]:
        """Sort key: caps first, then the objective."""
        return self.excess, self.objective


class _Problem(NamedTuple):
    profile: Profile
    k: int
    max_weight: float | None
    max_round_weight: float
    coherence: float
    order: IntArray

    @property
    def constant(self) -> float:
        """The constant added to K Σ_g A_g / m_g: c, and a term as no client is drawn twice."""
        importance = self.profile.importance
        mean = self._mix(float(importance @ importance), float(importance.sum()) ** 2)
        return self.profile.beta_over_alpha - (self.k - 1) * mean

    @property
    def lower_bound(self) -> float:
        """A bound that no unbiased draw of at most K different clients can beat.

        It is min P3 with the constant in the place of c. Where that is negative, −d, the second
        moment M′ of any such draw, times K, is at least the least possible M, so that
        M′ − d ≥ (1 − d/M) M′, and the bound is that share of min P3 with 0. And no round is
        shorter than the fastest client's: t_1 (M − d) is a bound, too.
        """
        profile, constant = self.profile, self.constant
        importance = profile.importance
        inclusion = inclusion_probabilities(importance, np.zeros(profile.n, dtype=np.int64), self.k)
        own = float(importance @ (importance / inclusion))
        least = self.k * self._mix(own, float(importance.sum()) ** 2)
        fleet = (profile.weights, profile.times, profile.grad_norms)
        bound = solve_mean_time(*fleet, max(constant, 0.0)).objective
        share = 1 + min(constant / least, 0.0)
        return max(share * bound, float(profile.times.min()) * (least + constant))

    def cut(self, count: int) -> _Parts:
        """Cut the clients, sorted by time, into tiers of equal size."""
        tiers = _tiers(self.order, count)
        parts = _Parts(tiers, inclusion_probabilities(self.profile.importance, tiers, self.k))
        if self.max_weight is None or self._floors(parts).sum() <= 1:
            return parts
        # With π ∝ p the weights of a tier are equal: no other π comes closer to the cap.
        return _Parts(tiers, inclusion_probabilities(self.profile.weights, tiers, self.k))

    def solve(self, parts: _Parts, *, exact: bool) -> _Found:
        """Return the best chances of these tiers: P3 over tiers."""
        design = self._design(parts) if exact else None
        times = design.tier_times(self.profile.times) if design else self._near_times(parts)
        roots = np.sqrt(self.k * self._moments(parts, self.profile.importance, design))
        total = float(roots.sum())
        floors = self._floors(parts)
        excess = max(float(floors.sum()), 1.0)
        bounds = floors / excess if floors.any() else None
        relative = times / times.min() - 1
        c = self.constant / total**2
        tilt = solve_tilt(roots / total, relative, c, bounds)
        spread = float(roots @ (roots / tilt.q)) + self.constant
        left = residual(tilt.q, roots / total, 1 + relative, c, bounds)
        objective = float(tilt.q @ times) * spread
        return _Found(parts, tilt, times, left, excess, objective)

    def predicted_time(self, found: _Found, grad_norms: FloatArray) -> float:
        """Return T (S + c) with the norms as given, as a sum in which nothing cancels."""
        m = found.tilt.q
        importance = self.profile.weights * grad_norms
        design = self._design(found.parts) if self.coherence else None
        moments = self._moments(found.parts, importance, design)
        mean = self._mix(float(importance @ importance), float(importance.sum()) ** 2)
        # A_g − Σ a² of a tier: what π < 1 adds to it.
        added = float(importance**2 @ (1 / found.parts.inclusion - 1))
        if self.coherence:
            added = float(moments.sum()) - mean
        variance = float(moments @ (1 + self.k * ((1 - m) / m))) + (self.k - 1) * added
        return float(m @ found.times) * (variance + self.profile.beta_over_alpha)

    def _mix(self, own: Number, together: Number) -> Number:
        return (1 - self.coherence) * own + self.coherence * together

    def _moments(self, parts: _Parts, importance: FloatArray, design: Tiered | None) -> FloatArray:
        """Return A_g; without a design as if a draw's Σ a_i / π_i were always its mean."""
        own = totals(parts.tiers, importance * (importance / parts.inclusion))
        if not self.coherence:
            return own
        if design is None:
            return self._mix(own, totals(parts.tiers, importance) ** 2)
        sums = design.outcomes.sums((importance / parts.inclusion)[design.order])
        return self._mix(own, design.outcomes.mean(sums**2))

    def _floors(self, parts: _Parts) -> FloatArray:
        """Return the least chances that keep the caps; their sum may exceed 1."""
        p = self.profile.weights
        floors = totals(parts.tiers, p) / self.max_round_weight
        if self.max_weight is not None:
            np.maximum.at(floors, parts.tiers, p / (parts.inclusion * self.max_weight))
        return floors

    def _design(self, parts: _Parts) -> Tiered:
        """Return the tiers with equal chances, for quantities that do not depend on them."""
        count = int(parts.tiers.max()) + 1
        even = np.full(count, 1 / count)
        return Tiered(parts.tiers, even, parts.inclusion, self.profile.weights, k=self.k)

    def _near_times(self, parts: _Parts) -> FloatArray:
        """Return T_g as if the draws within a tier were independent: approximate, but fast.

        E[max] = Σ_j t_j (C_j^K − C_{j−1}^K) with C the cumulated π / Σ π of the tier.
        """
        tiers, t = parts.tiers[self.order], self.profile.times[self.order]
        first = np.flatnonzero(np.diff(tiers, prepend=-1))
        share = parts.inclusion[self.order]
        before = np.cumsum(share) - share
        total = np.add.reduceat(share, first)
        start = (before - before[first][tiers]) / total[tiers]
        end = np.minimum(start + share / total[tiers], 1)
        last = np.append(first[1:], t.size) - 1
        end[last] = 1.0
        slowest = np.add.reduceat((end**self.k - start.clip(0, 1) ** self.k) * t, first)
        whole = np.bincount(tiers) <= self.k
        return np.where(whole, t[last], np.clip(slowest, t[first], t[last]))


def _search(problem: _Problem) -> tuple[_Found, int]:
    """Return the best number of tiers, or a single one with the probabilities of P2."""
    small, large = problem.profile.n <= SMALL, problem.profile.n > LARGE
    counts = [count for count in tier_counts(problem.profile.n, problem.k) if count <= LARGE]
    ranks: dict[int, tuple[float, float]] = {}

    def best(tried: list[int]) -> int:
        for count in tried:
            if count not in ranks:
                ranks[count] = problem.solve(problem.cut(count), exact=small).rank
        return min(ranks, key=ranks.__getitem__)

    at = counts.index(best(counts[::COARSER] if large else counts))
    count = best(counts[max(at - COARSER + 1, 0) : at + COARSER])
    found = problem.solve(problem.cut(count), exact=True)
    if not large:
        found = min(found, problem.solve(_one_tier(problem), exact=True), key=lambda way: way.rank)
    return found, len(ranks)


def _one_tier(problem: _Problem) -> _Parts:
    """Return the best without tiers: the probabilities of P2, at most 1 each."""
    profile, k = problem.profile, problem.k
    fleet = (profile.weights, profile.times, profile.grad_norms, profile.beta_over_alpha)
    q = solve_max_time(*fleet, k, max_weight=problem.max_weight).q
    tiers = np.zeros(profile.n, dtype=np.int64)
    return _Parts(tiers, inclusion_probabilities(q, tiers, k))


def _solution(problem: _Problem, best: _Found, tried: int, grad_norms: FloatArray) -> TierSolution:
    marginals = best.tilt.q[best.parts.tiers] * best.parts.inclusion
    return TierSolution(
        q=normalise(marginals),
        objective=problem.predicted_time(best, grad_norms),
        status="converged" if best.tilt.converged else "iteration-limit",
        iterations=tried,
        residual=best.residual,
        gap=max(best.objective / problem.lower_bound - 1, 0.0),
        tiers=best.parts.tiers,
        chances=best.tilt.q,
        inclusion=best.parts.inclusion,
    )


def _round_cap(cap: float | None) -> float:
    if cap is None:
        return np.inf
    cap = number("max_round_weight", cap, ROUND_CAP_REMEDY)
    if not cap >= 1 - NOTHING_LEFT:
        raise InputError(
            f"max_round_weight must be at least 1, got {cap:g}; weights sum to 1 on average"
        )
    return cap


def _coherence(value: float) -> float:
    remedy = "give a mean cosine, or leave it out"
    value = number("coherence", value, remedy)
    if not 0 <= value <= 1:
        raise InputError(f"coherence must lie between 0 and 1, got {value:g}; {remedy}")
    return value
