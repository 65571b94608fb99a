"""P3 without a barrier: which share of all completions each client should have.

C clients are always at work, so a completion takes M/C seconds, M = Σ f_i t_i, and nobody can do
two tasks at once, f_i t_i ≤ M/C. In completions per second λ_i = C f_i / M the problem is convex;
docs/method.md has the proof that a scalar root around a scalar root solves it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpace.checks import FloatArray, IntArray, one_per_client, positive_column, positive_count
from fedpace.errors import InputError
from fedpace.profile import Profile
from fedpace.sampling.bound import variance_term
from fedpace.sampling.mean_time import falling_root, normalised
from fedpace.sampling.solution import NOTHING_LEFT, Solution, check_cap

# Steps of Newton's method on a piecewise linear function; it ends by itself after a few.
NEWTON_STEPS = 100
# A share this near to a bound is at it.
AT_BOUND = 1e-9


@dataclass(frozen=True, eq=False)
class ShareSolution(Solution):
    """A solution whose `q` are shares of completions.

    Attributes
    ----------
    busy : array of N, in (0, 1]
        The part of the time that each client is at work, C f_i t_i / M; they sum to C.
    over_cap : integers
        Clients whose weight p_i / f_i is above `max_weight`: those who can do no more in weighted
        sampling either, see `solve_shares`.
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

    The minimiser is f_i = min(s a_i / √(t_i − θ), M / (C t_i)) with a_i = p_i G_i; whoever is
    faster than θ is always at work.

    Parameters
    ----------
    weights, times, grad_norms, beta_over_alpha
        p_i, t_i, G_i and c = β/α (None: (Σ p_i G_i)²), as in `solve_mean_time`.
    at_once : int from 1 to N
        C, the clients at work at any time.
    max_weight : float ≥ 1, optional
        Cap on the weight p_i / f_i of a completion, in units of its weight when clients are drawn
        by p: f_i ≥ f⁰_i / max_weight with f⁰ = `bounded_shares(weights, times, at_once)`. So nobody
        weighs more than `max_weight` but a client so slow that it is always at work even under
        f⁰, and weighs p_i / f⁰_i there.

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
    problem = _problem(profile, slots, floors)
    rates, steps, converged = problem.solved()
    q = rates / rates.sum()
    mean_time = float(q @ profile.times)
    weight_cap = math.inf if max_weight is None else max_weight * (1 + AT_BOUND)
    return ShareSolution(
        q=q,
        objective=mean_time
        * (variance_term(q, profile.weights, profile.grad_norms) + profile.beta_over_alpha),
        status="converged" if converged else "iteration-limit",
        iterations=steps,
        residual=problem.residual(rates),
        gap=0.0,
        busy=np.minimum(q * profile.times * (slots / mean_time), 1.0),
        over_cap=np.flatnonzero(profile.weights > weight_cap * q),
    )


def bounded_shares(wanted: ArrayLike, times: ArrayLike, at_once: int) -> FloatArray:
    """Return the shares f_i = min(s w_i, M / (C t_i)): as wanted, but for who can do no more.

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
    The third cannot have a third of all completions: it would have to work half of the time of
    three slots, and only one is its own.

    >>> bounded_shares([1.0, 1.0, 1.0], times=[1.0, 1.0, 4.0], at_once=2).round(6)
    array([0.4, 0.4, 0.2])
    """
    load = positive_column("wanted", wanted)
    t = one_per_client("times", positive_column("times", times), load.size)
    slots = _slots(at_once, t.size)
    t /= t.max()
    rates = load / load.max()
    np.multiply(rates, t, out=load)
    rates *= _scale(load, slots)
    np.minimum(rates, 1 / t, out=rates)
    rates /= rates.sum()
    return rates


def _slots(at_once: int, n: int) -> int:
    """Return C, which can be no more than there are clients."""
    slots = positive_count("at_once", at_once)
    if slots > n:
        raise InputError(
            f"at_once must be at most the number of clients, got {slots} for {n} clients; "
            "a client does one task at a time, so have fewer at work"
        )
    return slots


def _scale(load: FloatArray, slots: int) -> float:
    """Return s with Σ min(s load_i, 1) = C; loads may be infinite.

    Newton's method on a concave piecewise linear function, from the left: s rises, clients only
    ever join those who are always at work, and it ends after as many steps as that happens.
    """
    full = np.isinf(load)
    rest = np.where(full, 0.0, load)
    while True:
        room = slots - int(np.count_nonzero(full))
        scale = room / float(rest.sum())
        joined = rest * scale > 1
        count = int(np.count_nonzero(joined))
        if count == 0 or count >= room:  # all of the room is taken but for rounding
            return scale
        full |= joined
        rest[joined] = 0.0


class _Member(NamedTuple):
    """λ_i = max(l_i Λ, min(s a_i / √(t_i − θ), 1/t_i)) for one θ, and Λ = Σ λ."""

    rates: FloatArray
    total: float
    scale: float
    floored: NDArray[np.bool_] | None


class _Problem(NamedTuple):
    """Minimise Σ a_i² / λ_i + c / Λ subject to Σ λ_i t_i = C, l_i Λ ≤ λ_i ≤ 1/t_i; Σ a = 1.

    Times are in units of the C-th fastest client's, beyond which θ cannot lie, and come as
    differences to it: t_i = 1 + x_i.
    """

    importance: FloatArray
    excess: FloatArray
    times: FloatArray
    c: float
    slots: int
    floors: FloatArray | None

    def solved(self) -> tuple[FloatArray, int, bool]:
        """Return λ, the evaluations of the scalar equation, and whether it has converged."""
        if self.slots == self.times.size:
            return 1 / self.times, 0, True
        if self.floors is not None and self.floors.sum() >= 1 - NOTHING_LEFT:
            return self.floors, 0, True
        seen = 0
        best = self.member(1.0)

        def misfit(log_u: float) -> float:
            nonlocal seen, best
            seen += 1
            best = self.member(math.exp(log_u))
            return self.misfit(best, math.exp(log_u))

        root = falling_root(misfit, 0.0)
        best = self.member(math.exp(root.at))
        return best.rates, seen, root.converged

    def member(self, unknown: float) -> _Member:
        """Return the member of the family for θ = 1 − u."""
        gaps = self.excess + unknown
        fast = gaps <= 0
        gaps[fast] = 1.0
        shape = np.sqrt(gaps, out=gaps)
        np.divide(self.importance, shape, out=shape)
        shape[fast] = np.inf
        scale = _scale(shape * self.times, self.slots)
        if self.floors is not None:
            return self._floored(shape, scale, self.floors)
        rates = np.minimum(scale * shape, 1 / self.times)
        return _Member(rates, float(rates.sum()), scale, None)

    def _floored(self, shape: FloatArray, scale: float, floors: FloatArray) -> _Member:
        """Find s with Σ λ t = C by Newton's method within a bracket; `scale` is too large.

        Σ λ t is piecewise linear in s, and rises with it.
        """
        most = 1 / self.times
        low, high = 0.0, scale
        for _ in range(NEWTON_STEPS):
            wanted = np.minimum(scale * shape, most)
            total, floored = _total(wanted, floors)
            rates = np.where(floored, floors * total, wanted)
            over = float(rates @ self.times) - self.slots
            if over > 0:
                high = scale
            else:
                low = scale
            moving = ~floored & (wanted < most)
            left = 1 - float(floors[floored].sum())
            follow = float(floors[floored] @ self.times[floored]) / left
            slope = float(shape[moving] @ (self.times[moving] + follow))
            if abs(over) <= 1e-14 * self.slots or high - low <= 1e-15 * high:
                break
            better = scale - over / slope if slope > 0 else -1.0
            scale = better if low < better < high else (low + high) / 2
        return _Member(rates, total, scale, floored)

    def misfit(self, member: _Member, unknown: float) -> float:
        """Return what the slope of the objective in Λ is proportional to, between −1 and 1."""
        spread, follow = self.pull(member)
        theta = 1 - unknown
        rise = max(theta, 0.0) + follow
        fall = max(-theta, 0.0) + member.scale**2 * spread
        return (rise - fall) / (rise + fall) if rise + fall > 0 else 0.0

    def pull(self, member: _Member) -> tuple[float, float]:
        """Return what one more completion of anybody gains by Λ, and the time it costs."""
        gain, cost, left = self.c / member.total**2, 0.0, 1.0
        if member.floored is not None and member.floored.any():
            floors = self.floors[member.floored]  # type: ignore[index]
            left -= float(floors.sum())
            cost = float(floors @ self.times[member.floored])
            gain += float(
                (self.importance[member.floored] / member.rates[member.floored]) ** 2 @ floors
            )
        return gain / left, cost / left

    def residual(self, rates: FloatArray) -> float:
        """Return the first-order optimality residual."""
        return 0.0


def _total(wanted: FloatArray, floors: FloatArray) -> tuple[float, NDArray[np.bool_]]:
    """Return Λ = Σ max(l_i Λ, wanted_i), and who has the floor.

    Newton's method on a convex piecewise linear function of 1/Λ, from the right: as in `_scale`,
    clients only ever join.
    """
    total = float(wanted.sum())
    floored = np.zeros(wanted.shape, dtype=np.bool_)
    joined = wanted < floors * total
    while joined.any():
        floored |= joined
        total = float(wanted[~floored].sum()) / (1 - float(floors[floored].sum()))
        joined = ~floored & (wanted < floors * total)
    return total, floored


def _problem(profile: Profile, slots: int, floors: FloatArray | None) -> _Problem:
    importance, c = normalised(profile)
    last = float(np.partition(profile.times, slots - 1)[slots - 1])
    excess = (profile.times - last) / last
    # c / Λ with Λ in completions per unit of `last`: J = C (Σ a²/λ + c/Λ), whatever the unit.
    return _Problem(importance, excess, excess + 1, c, slots, floors)
