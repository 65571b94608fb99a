"""P3 for asynchronous training: the share of completions that each client should have.

C clients are always at work, so a completion takes M/C seconds, M = Σ f_i t_i, and as a client
does one task at a time, f_i t_i ≤ M/C. `rates` solves it in completions per second.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fedpace.checks import FloatArray, IntArray, one_per_client, positive_column, positive_count
from fedpace.errors import InputError
from fedpace.profile import Profile
from fedpace.sampling.bound import variance_term
from fedpace.sampling.design import normalise
from fedpace.sampling.solvers.rates import AT_BOUND, full_scale, rate_problem
from fedpace.sampling.solvers.solution import NOTHING_LEFT, Solution, check_cap

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
