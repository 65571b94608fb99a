"""P3 for asynchronous training: the share of completions that each client should have.

C clients are always at work, so a completion takes M/C seconds, M = Σ f_i t_i, and as a client
does one task at a time, f_i t_i ≤ M/C. `RateProblem` solves
it in completions per second λ_i = C f_i / M, where it is convex, by a scalar root around a scalar
root; docs/method.md has the proof.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpace.checks import FloatArray, IntArray, one_per_client, positive_column, positive_count
from fedpace.errors import InputError
from fedpace.profile import Profile
from fedpace.sampling.bound import variance_term
from fedpace.sampling.design import normalise
from fedpace.sampling.solvers.mean_time import falling_root, unit_importance
from fedpace.sampling.solvers.solution import NOTHING_LEFT, Solution, check_cap

# Steps of Newton's method on a piecewise linear function; it ends by itself after a few.
NEWTON_STEPS = 100
# A smaller step no longer changes the shares in float64, but for the rounding of their sums.
SAME = 1e-14
# Shapes times this are nothing beside 1/t.
LEAST_SCALE = 1e-200
# From this many clients on, two unknowns are solved for at once: fewer passes over all clients.
MANY = 4096
# Most steps of that; then the unknowns are solved for one after the other.
JOINT_STEPS = 30
# A share this near to a bound is at it.
AT_BOUND = 1e-9
# The certificate tries these for floors: with a cap of 1 + 1e-9 every share is that near to its
# floor. Below rounding, the last one, no floor is met.
NEAR_FLOOR = (AT_BOUND, 1e-12, 1e-15, -1.0)


class Member(NamedTuple):
    """λ_i = max(l_i Λ, min(s a_i / √(t_i − θ), 1/t_i)), Λ = Σ λ, and which floors are met.

    `misfit` has the sign of the objective's slope in Λ, which rises with θ.
    """

    rates: FloatArray
    total: float
    scale: float
    floored: FloatArray | None = None
    misfit: float = 0.0


# Clients always at work and floors leave no room for the others: θ is too large.
INFEASIBLE = Member(np.empty(0), 0.0, 0.0, None, misfit=1e3)


class RateProblem(NamedTuple):
    """Minimise Σ a_i² / λ_i + c / Λ subject to Σ λ_i t_i = C, l_i Λ ≤ λ_i ≤ 1/t_i; Σ a = 1."""

    importance: FloatArray
    times: FloatArray
    most: FloatArray
    c: float
    slots: int
    floors: FloatArray | None
    floor_loads: FloatArray  # l_i t_i, and a_i² / l_i; empty where there are no floors
    floor_moments: FloatArray

    def solve(self) -> tuple[FloatArray, int, bool]:
        """Return the optimum, the evaluations of the scalar equation, and whether it converged.

        Clients with t_i < θ are always at work; between two clients' times the equation is smooth.
        So first find the fastest client with t_i ≥ θ, among C, then θ.
        """
        fastest = np.sort(np.partition(self.times, self.slots - 1)[: self.slots])
        seen = 0
        member: Member | None = None

        def misfit(anchor: float, below: float) -> float:
            nonlocal seen, member
            seen += 1
            member = self.member(anchor, below, member)
            return member.misfit

        last = first_positive(lambda i: misfit(float(fastest[i]), 0.0), self.slots - 1)
        anchor = float(fastest[last])
        width = anchor - float(fastest[last - 1]) if last else anchor
        root = falling_root(lambda log: misfit(anchor, math.exp(log)), math.log(width))
        return self.member(anchor, math.exp(root.at), member).rates, seen, root.converged

    def member(self, anchor: float, below: float, guess: Member | None = None) -> Member:
        """Return the member of the family for θ = anchor − below; apart, as they may cancel."""
        gaps = self.times - anchor
        gaps += below
        fast = gaps <= 0
        if np.count_nonzero(fast) >= self.slots:
            return INFEASIBLE
        gaps[fast] = 1.0
        shape = np.divide(self.importance, np.sqrt(gaps, out=gaps), out=gaps)
        shape[fast] = np.inf
        if self.floors is None:
            scale = full_scale(shape * self.times, self.slots)
            rates = np.minimum(scale * shape, self.most)
            member = Member(rates, float(rates.sum()), scale)
        else:
            member = self._solve_with_floor(shape, fast, self.floors, guess)
        if member is INFEASIBLE:
            return member
        return member._replace(misfit=self._misfit(member, anchor - below))

    def _solve_with_floor(
        self,
        shape: FloatArray,
        fast: NDArray[np.bool_],
        floors: FloatArray,
        guess: Member | None,
    ) -> Member:
        """Find s and Λ with Σ λ t = C and Σ λ = Λ, starting from those of another θ."""
        if guess is None or guess is INFEASIBLE or guess.scale == 0:
            scale = full_scale(shape * self.times, self.slots)
            total = float(np.minimum(scale * shape, self.most).sum())
        else:
            total, scale = guess.total, guess.scale
        if shape.size < MANY:
            return self._solve_bracketed(shape, floors, total, scale)
        if not self._has_room(fast, floors):
            return INFEASIBLE
        found = self._at_once(shape, floors, total, scale)
        return self._solve_bracketed(shape, floors, total, scale) if found is None else found

    def _has_room(self, fast: NDArray[np.bool_], floors: FloatArray) -> bool:
        """Return whether the fast clients, always at work, and the other floors leave room."""
        who = np.flatnonzero(fast)
        left = 1 - float(floors.sum()) + float(floors[who].sum())
        loaded = float(self.floor_loads.sum()) - float(self.floor_loads[who].sum())
        return who.size + float(self.most[who].sum()) / left * loaded < self.slots

    def _at_once(
        self, shape: FloatArray, floors: FloatArray, total: float, scale: float
    ) -> Member | None:
        """Find s and Λ from the sets of clients at a floor or always at work; None if that fails.

        Given these sets, Σ λ t = C and Σ λ = Λ are linear in s and Λ. Their solution gives new
        sets, until they stay the same.
        """
        below, load = shape / floors, shape * self.times
        floored = full = np.zeros(0, dtype=np.bool_)
        for _ in range(JOINT_STEPS):
            before, last = floored, full
            floored = below < total / scale
            floored |= self.floor_loads > 1 / total
            full = (load > 1 / scale) & ~floored
            held = floored.astype(np.float64)
            if np.array_equal(floored, before) and np.array_equal(full, last):
                rates = np.maximum(floors * total, np.minimum(scale * shape, self.most))
                return Member(rates, total, scale, held)
            always = np.flatnonzero(full)
            left, loaded = 1 - float(floors @ held), float(self.floor_loads @ held)
            room, most = self.slots - always.size, float(self.most[always].sum())
            moving = np.where(floored | full, 0.0, shape)
            rate, weight = float(moving.sum()), float(moving @ self.times)
            both = left * weight + rate * loaded or math.nan  # if no client moves
            scale = (left * room - loaded * most) / both
            total = (most * weight + rate * room) / both
            if not (scale > LEAST_SCALE and total > 0):
                return None
        return None

    def _solve_bracketed(
        self, shape: FloatArray, floors: FloatArray, total: float, scale: float
    ) -> Member:
        """Find s with Σ λ t = C, which is piecewise linear in s and rises with it.

        Newton's method within a bracket.
        """
        low, high = 0.0, math.inf
        for _ in range(NEWTON_STEPS):
            wanted = np.minimum(scale * shape, self.most)
            total, floored = _total(wanted, floors, total)
            rates = np.maximum(floors * total, wanted)
            over = float(rates @ self.times) - self.slots
            low, high = (low, scale) if over > 0 else (scale, high)
            moving = np.where((floored == 0) & (wanted < self.most), shape, 0.0)
            follow = float(self.floor_loads @ floored) / (1 - float(floors @ floored))
            slope = float(moving @ self.times) + follow * float(moving.sum())
            better = scale - over / slope if slope > 0 else math.inf
            if abs(better - scale) <= SAME * scale or low >= high * (1 - SAME):
                break
            if over > 0 and scale <= LEAST_SCALE:
                return INFEASIBLE
            if not low < better < high:
                middle = (low + high) / 2 if high < math.inf else 2 * scale
                better = middle if low > 0 else LEAST_SCALE
            scale = better
        return Member(rates, total, scale, floored)

    def _misfit(self, member: Member, theta: float) -> float:
        """Compare the two sides of the equation for θ: cost and gain of Λ, times s²."""
        cost, gain, left = 0.0, self.c, 1.0
        if self.floors is not None and member.floored is not None:
            left -= float(self.floors @ member.floored)
            cost = float(self.floor_loads @ member.floored) / left
            gain += float(self.floor_moments @ member.floored)
        gain *= (member.scale / member.total) ** 2 / left
        cost += max(theta, 0.0)
        gain += max(-theta, 0.0)
        return math.log1p(cost) - math.log1p(gain)

    def certificate(self, rates: FloatArray) -> tuple[float, float]:
        """Return the first-order residual, and by how much the objective can exceed its minimum.

        The problem is convex. For any ν and κ ≥ 0, and every feasible y,
        φ(λ) − φ(y) ≤ Σ ρ_i (λ_i − y_i) + Σ κ_i (λ_i − l_i Λ) with
        ρ_i = ∂φ/∂λ_i + ν t_i − κ_i + Σ κ_j l_j. κ is positive on floors that are met, and how
        nearly that must be depends on what all floors leave: the best of several bounds counts.
        """
        near = (AT_BOUND,) if self.floors is None else NEAR_FLOOR
        residuals, gains = zip(*(self._bound(rates, each) for each in near), strict=True)
        gain = min(gains)
        return min(*residuals, gain), gain / (1 - gain) if gain < 1 else math.inf

    def _bound(self, rates: FloatArray, near: float) -> tuple[float, float]:
        """Return the residual and the bound, with κ on floors met up to the fraction `near`."""
        total = float(rates.sum())
        floors = np.zeros_like(rates) if self.floors is None else self.floors
        at_floor = rates - floors * total <= near * floors * total
        free = ~at_floor & (rates < self.most * (1 - AT_BOUND))
        held = np.where(at_floor, floors, 0.0)
        left = 1 - float(held.sum())
        slope = -((self.importance / rates) ** 2) - self.c / total**2
        pull, follow = float(held @ slope) / left, float(held @ self.times) / left
        moving = np.where(free, rates, 0.0) if free.any() else rates
        price = -float(moving @ (slope + pull)) / float(moving @ (self.times + follow))
        slope += price * self.times
        kept = np.where(at_floor, np.maximum(slope + pull + price * follow, 0.0), 0.0)
        slope += float(kept @ floors) - kept
        value = float(self.importance @ (self.importance / rates)) + self.c / total
        more, less = np.maximum(slope, 0.0), np.maximum(-slope, 0.0)
        low, high = self._box(floors)
        fall, rise = np.maximum(rates - low, 0.0), np.maximum(high - rates, 0.0)
        slack = float(kept @ np.maximum(rates - floors * total, 0.0))
        gain = (float(more @ fall + less @ rise) + slack) / value
        short = np.maximum(self.most - rates, 0.0)
        residual = float(more @ rates + less @ np.minimum(rates, short)) / value
        return residual, gain

    def _box(self, floors: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return bounds on all feasible rates: shares lie between l_i and l_i + (1 − Σ l)."""
        left, loaded = max(1 - float(floors.sum()), 0.0), float(floors @ self.times)
        least = self.slots / (loaded + left * float(self.times.max()))
        most = self.slots / (loaded + left * float(self.times.min()))
        return floors * least, np.minimum(self.most, (floors + left) * most)


def first_positive(function: Callable[[int], float], last: int) -> int:
    """Return the first of 0 … last where a rising function is positive; at `last` it is."""
    low, high = -1, last
    middle = 0
    while high - low > 1:
        if function(middle) > 0:
            high = middle
        else:
            low = middle
        middle = (low + high) // 2
    return high


def _total(wanted: FloatArray, floors: FloatArray, guess: float) -> tuple[float, FloatArray]:
    """Return Λ = Σ max(l_i Λ, wanted_i), and which floors are met.

    Newton's method on a convex piecewise linear function: after the first step it only rises.
    """
    everything = float(wanted.sum())
    total = guess
    for _ in range(NEWTON_STEPS):
        floored = (wanted < floors * total).astype(np.float64)
        before = total
        total = (everything - float(wanted @ floored)) / (1 - float(floors @ floored))
        if abs(total - before) <= SAME * total:
            break
    return total, floored


def full_scale(load: FloatArray, slots: int) -> float:
    """Return s with Σ min(s load_i, 1) = C; loads may be infinite.

    Newton's method on a concave piecewise linear function, from the left: s rises, clients only
    join those that are always at work, and each step but the last adds at least one.
    """
    full = np.isinf(load)
    rest = np.where(full, 0.0, load)
    while True:
        room = slots - int(np.count_nonzero(full))
        scale = room / float(rest.sum())
        joined = rest * scale > 1
        count = int(np.count_nonzero(joined))
        if count == 0 or count >= room:  # no room is left, up to rounding
            return scale
        full |= joined
        rest[joined] = 0.0


def rate_problem(profile: Profile, slots: int, floors: FloatArray | None) -> RateProblem:
    """Return the problem with times in units of the fastest, and importances that sum to 1.

    Times are t_i, `slots` is C, and `floors` are l_i, the least share of each client.
    """
    importance, c = unit_importance(profile)
    times = profile.times / profile.times.min()
    none = np.empty(0)
    loads = none if floors is None else floors * times
    moments = none if floors is None else importance / floors * importance
    return RateProblem(importance, times, 1 / times, c, slots, floors, loads, moments)


# A solution that is not proven to be this near to the optimum is not called converged.
LARGEST_GAP = 1e-6


@dataclass(frozen=True, eq=False)
class ShareSolution(Solution):
    """A solution whose `q` are shares of completions.

    Attributes
    ----------
    busy : array of N, in (0, 1]
        The part of the time that each client is at work, C f_i t_i / M; they sum to C.
    over_cap : integers
        Clients whose weight p_i / f_i exceeds `max_weight`, because they are always at work even in
        weighted sampling; see `solve_shares`.
    """

    busy: FloatArray
    over_cap: IntArray


def solve_shares(
    weights: ArrayLike,
    times: ArrayLike,
    grad_norms: ArrayLike,
    beta_over_alpha: float | None,
    at_once: int,
    max_weight: float | None = None,
) -> ShareSolution:
    """Minimise (Σ f_i t_i) (Σ p_i² G_i² / f_i + c) over shares f with f_i t_i ≤ Σ f_j t_j / C.

    The minimiser is f_i = min(s a_i / √(t_i − θ), M / (C t_i)) with a_i = p_i G_i; clients with
    t_i < θ are always at work.

    Parameters
    ----------
    weights, times, grad_norms, beta_over_alpha
        p_i, t_i, G_i and c = β/α (None: (Σ p_i G_i)²), as in `solve_mean_time`.
    at_once : int from 1 to N
        C, the clients at work at any time.
    max_weight : float ≥ 1, optional
        Cap on the weight p_i / f_i of a completion: f_i ≥ f⁰_i / max_weight with
        f⁰ = `bounded_shares(weights, times, at_once)`. So no weight exceeds `max_weight`, except
        that of a client so slow that it is always at work under f⁰ and weighs p_i / f⁰_i there.

    Examples
    --------
    Two of three clients at work. The slow one is at work all the time, the others take turns.

    >>> solution = solve_shares([0.2, 0.2, 0.6], [1.0, 1.0, 4.0], [1.0] * 3, 0.0, at_once=2)
    >>> solution.q.round(6), solution.busy.round(6)
    (array([0.4, 0.4, 0.2]), array([0.5, 0.5, 1. ]))
    """
    profile = Profile(weights, times, grad_norms, beta_over_alpha)
    slots = _slots(at_once, profile.n)
    floors = None
    if max_weight is not None:
        check_cap("max_weight", max_weight, 1)
        floors = bounded_shares(profile.weights, profile.times, slots) / max_weight
    problem = rate_problem(profile, slots, floors)
    steps, converged, residual, gap = 0, True, 0.0, 0.0
    if slots == profile.n:  # all are always at work
        rates = problem.most
    elif floors is not None and floors.sum() >= 1 - NOTHING_LEFT:
        rates = floors
    else:
        rates, steps, converged = problem.solve()
        residual, gap = problem.certificate(rates)
    q = rates / rates.sum()
    mean_time = float(q @ profile.times)
    weight_cap = math.inf if max_weight is None else max_weight * (1 + AT_BOUND)
    return ShareSolution(
        q=q,
        objective=mean_time
        * (variance_term(q, profile.weights, profile.grad_norms) + profile.beta_over_alpha),
        status="converged" if converged and gap <= LARGEST_GAP else "iteration-limit",
        iterations=steps,
        residual=residual,
        gap=gap,
        busy=np.minimum(q * profile.times * (slots / mean_time), 1.0),
        over_cap=np.flatnonzero(profile.weights > weight_cap * q),
    )


def bounded_shares(wanted: ArrayLike, times: ArrayLike, at_once: int) -> FloatArray:
    """Return the shares f_i = min(s w_i, M / (C t_i)): as wanted, up to what a client can do.

    Parameters
    ----------
    wanted : array of N, > 0
        w_i, up to a factor: p for weighted sampling, ones for uniform.
    times : array of N, seconds, > 0
        t_i.
    at_once : int from 1 to N
        C, the clients at work at any time.

    Examples
    --------
    The third client cannot have a third of all completions: it would be at work for 4/3 of the
    time of a slot, and it does one task at a time.

    >>> bounded_shares([1.0, 1.0, 1.0], times=[1.0, 1.0, 4.0], at_once=2).round(6)
    array([0.4, 0.4, 0.2])
    """
    load = positive_column("wanted", wanted)
    t = one_per_client("times", positive_column("times", times), load.size)
    slots = _slots(at_once, t.size)
    t /= t.max()
    rates = load / load.max()
    np.multiply(rates, t, out=load)
    rates *= full_scale(load, slots)
    return normalise(np.minimum(rates, 1 / t, out=rates))


def _slots(at_once: int, n: int) -> int:
    """Return C, at most the number of clients."""
    slots = positive_count("at_once", at_once)
    if slots > n:
        raise InputError(
            f"at_once must be at most the number of clients, got {slots} for {n} clients; "
            "a client does one task at a time, so have fewer at work"
        )
    return slots
