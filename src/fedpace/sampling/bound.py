"""How many rounds a target takes: the convergence bound and what follows from it.

F(w^R) − F* ≤ (α S(q) + β) / R, with S(q) = Σ p_i² G_i² / q_i [Luo22, Thm. 1]
"""

import numpy as np
from numpy.typing import ArrayLike

from fedpace.checks import norm_column, number, positive_column, probabilities, refuse_first
from fedpace.errors import InputError


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
