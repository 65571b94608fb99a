"""Predicted time: the bound on the rounds [Luo22, Thm. 1] and the expected time of a round."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedpace.checks import (
    FloatArray,
    norm_column,
    number,
    positive_column,
    positive_count,
    probabilities,
    refuse_first,
)
from fedpace.errors import InputError


def expected_round_time(q: ArrayLike, times: ArrayLike, k: int) -> float:
    """Return the exact expected time of the slowest of K draws.

    T(q) = Σ_i (C_i^K − C_{i−1}^K) t_i = t_1 + Σ_{i<N} (1 − C_i^K) (t_{i+1} − t_i)

    Parameters
    ----------
    q : array of N, sums to 1
        Probabilities.
    times : array of N, seconds
        t_i, in any order.
    k : int ≥ 1
        K, the number of draws with replacement.

    Examples
    --------
    Two clients, two draws: both draws hit the fast one with probability 1/4.

    >>> expected_round_time([0.5, 0.5], [1.0, 3.0], k=2)
    2.5

    References
    ----------
    [Luo22, Thm. 2]
    """
    t = positive_column("times", times)
    probability = probabilities(q, t.size)
    order = np.argsort(t)
    return sorted_round_time(probability[order], t[order], positive_count("k", k))


def round_time_gradient(q: ArrayLike, times: ArrayLike, k: int) -> FloatArray:
    """Return ∂T/∂q_j = −K Σ_{j ≤ i < N} C_i^{K−1} (t_{i+1} − t_i).

    On the simplex a gradient is defined up to a constant; in this one the slowest client's
    entry is 0 and the others say how much sooner the round ends per unit of probability.

    >>> round_time_gradient([0.5, 0.5], [1.0, 3.0], k=2)
    array([-2.,  0.])
    """
    t = positive_column("times", times)
    probability = probabilities(q, t.size)
    order = np.argsort(t)
    cost = sorted_marginal_times(probability[order], t[order], positive_count("k", k))
    gradient = np.empty_like(t)
    gradient[order] = cost.excess - cost.excess[-1]
    return gradient


def mean_round_time(q: ArrayLike, times: ArrayLike) -> float:
    """Return the paper's surrogate Σ q_i t_i, exact for K = 1 or equal times [Luo22, P3].

    >>> mean_round_time([0.5, 0.5], [1.0, 3.0])
    2.0
    """
    t = positive_column("times", times)
    return float(probabilities(q, t.size) @ t)


class MarginalTimes(NamedTuple):
    """What each client costs a round, at the margin: τ_j = first + excess_j, rising with j."""

    round_time: float
    first: float
    excess: FloatArray


def sorted_round_time(q: FloatArray, times: FloatArray, k: int) -> float:
    """Return T(q) for clients sorted by time."""
    log_cdf, _ = _log_cdf(q)
    log_cdf *= k
    return float(times[0] - np.expm1(log_cdf, out=log_cdf) @ np.diff(times))


def sorted_marginal_times(q: FloatArray, times: FloatArray, k: int) -> MarginalTimes:
    """Return T(q) and its tangent plane Σ_j τ_j q_j, for clients sorted by time.

    T is concave, so the plane bounds it from above everywhere and meets it at q. With the
    gap i weighted by what can happen behind it,

        τ_1       = t_1 + Σ_i P(at least two of K draws are slower than i) (t_{i+1} − t_i)
        τ_j − τ_1 = K Σ_{i<j} C_i^{K−1} (t_{i+1} − t_i).

    Both are sums of non-negative terms, whereas T − ∇T·q + ∂T/∂q_j cancels.
    """
    gaps = np.diff(times)
    log_cdf, tail = _log_cdf(q)
    round_time = float(times[0] - np.expm1(k * log_cdf) @ gaps)
    if k == 1:
        log_cdf = np.zeros_like(log_cdf)  # C^0 = 1, also where C = 0
    log_cdf *= k - 1
    excess = np.zeros_like(times)
    np.exp(log_cdf, out=excess[1:])
    excess[1:] *= gaps
    excess[1:] *= k
    np.cumsum(excess, out=excess)
    # 1 − C^K − K C^{K−1} (1 − C) = 1 − C^{K−1} (1 + (K−1)(1−C)), in one exponent.
    tail *= k - 1
    log_cdf += np.log1p(tail, out=tail)
    first = float(times[0] - np.expm1(np.minimum(log_cdf, 0, out=log_cdf), out=log_cdf) @ gaps)
    return MarginalTimes(round_time, first, excess)


def _log_cdf(q: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return log C_i and 1 − C_i for i < N.

    Near 1 the logarithm comes from the tail: C_i^K with K = 1e4 needs 1 − C_i to all digits.
    """
    tail = np.cumsum(q[:0:-1])[::-1]
    np.minimum(tail, 1, out=tail)
    cdf = np.cumsum(q[:-1])
    with np.errstate(divide="ignore"):  # log 0 = −∞ is meant: leading clients with q = 0
        return np.where(tail < 0.5, np.log1p(-tail), np.log(cdf)), tail


def variance_term(q: ArrayLike, weights: ArrayLike, grad_norms: ArrayLike) -> float:
    """Return S(q) = Σ (p_i G_i)² / q_i, what sampling adds to the bound.

    Parameters
    ----------
    q : array of N, sums to 1
        Probabilities; positive where p_i G_i is.
    weights : array of N
        p_i.
    grad_norms : array of N
        G_i, as measured: a norm of 0 contributes nothing here.

    Examples
    --------
    >>> variance_term([0.5, 0.5], weights=[0.5, 0.5], grad_norms=[3.0, 1.0])
    5.0

    Its minimum is (Σ p_i G_i)², at q ∝ p_i G_i [Luo22, Cor. 1]:

    >>> variance_term([0.75, 0.25], weights=[0.5, 0.5], grad_norms=[3.0, 1.0])
    4.0
    """
    p = positive_column("weights", weights)
    norms = norm_column(grad_norms, p.size)
    probability = probabilities(q, p.size)
    importance = p * norms
    refuse_first(
        "q",
        probability,
        (probability == 0) & (importance > 0),
        "be positive wherever weights × grad_norms is",
        "a client that is never drawn leaves the model biased",
    )
    taught = importance > 0
    with np.errstate(over="ignore"):  # infinity is what a vanishing q costs
        return float(np.sum(importance[taught] * (importance[taught] / probability[taught])))


def convergence_bound(variance: float, *, alpha: float, beta: float, rounds: float) -> float:
    """Return the bound on F(w^R) − F* after R rounds, (α S + β) / R [Luo22, Thm. 1].

    >>> convergence_bound(5.0, alpha=2.0, beta=10.0, rounds=100)
    0.2
    """
    return _bound_times_rounds(variance, alpha, beta) / _positive("rounds", rounds)


def predicted_rounds(variance: float, *, alpha: float, beta: float, precision: float) -> float:
    """Return R = (α S + β) / ε, the rounds after which the bound reaches ε.

    >>> predicted_rounds(5.0, alpha=2.0, beta=10.0, precision=0.2)
    100.0
    """
    return _bound_times_rounds(variance, alpha, beta) / _positive("precision", precision)


def predicted_time(
    round_time: float, variance: float, *, alpha: float, beta: float, precision: float
) -> float:
    """Return the seconds until the bound reaches ε: T(q) (α S(q) + β) / ε [Luo22, P2].

    Only its ratio between schemes is meant to be used: the bound is far above the loss.

    >>> predicted_time(2.5, 5.0, alpha=2.0, beta=10.0, precision=0.2)
    250.0
    """
    rounds = predicted_rounds(variance, alpha=alpha, beta=beta, precision=precision)
    return _positive("round_time", round_time) * rounds


def _bound_times_rounds(variance: float, alpha: float, beta: float) -> float:
    for name, value in (("variance", variance), ("beta", beta)):
        if not number(name, value, "see Theorem 1") >= 0:
            raise InputError(f"{name} must be at least 0, got {value!r}; see Theorem 1")
    return _positive("alpha", alpha) * variance + beta


def _positive(name: str, value: float) -> float:
    if not number(name, value, "see Theorem 1") > 0:
        raise InputError(f"{name} must be positive, got {value!r}; see Theorem 1")
    return value
