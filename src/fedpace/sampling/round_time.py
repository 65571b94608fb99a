"""How long a round lasts when K clients are drawn with replacement.

Clients are sorted by time, t_1 ≤ … ≤ t_N, and C_i = q_1 + … + q_i. Every formula is written
with the gaps t_{i+1} − t_i as a sum of terms of one sign, so that nothing cancels.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedpace.checks import FloatArray, positive_column, positive_count, probabilities


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
