"""Profile: what the server knows about its clients, the input of every scheme."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fedpace.checks import (
    WIDEST_SPAN,
    FloatArray,
    norm_column,
    number,
    one_per_client,
    positive_column,
    shares,
)
from fedpace.errors import InputError


@dataclass(frozen=True, eq=False)
class Profile:
    """What a scheme needs to know about N clients, validated once.

    Parameters
    ----------
    weights : array of N, > 0, sums to 1
        p_i, the share of client i in the global loss, n_i / Σ n.
    times : array of N, seconds, > 0
        t_i, the duration of a round of client i, computation and communication.
    grad_norms : array of N, ≥ 0
        G_i, the root mean square of client i's stochastic gradient norms. A client with
        G_i = 0 counts as one with the smallest positive G of the fleet (all zero: as
        equal), so that it keeps a positive probability: see `importance`.
    beta_over_alpha : float ≥ 0, optional
        c = β/α of the convergence bound [Luo22, Thm. 1]; by default S_0 = (Σ p_i G_i)²,
        the least variance term, which makes both terms of the bound equally large.

    Examples
    --------
    >>> profile = Profile(weights=[0.5, 0.5], times=[1.0, 4.0], grad_norms=[3.0, 1.0])
    >>> profile.beta_over_alpha
    4.0
    """

    weights: FloatArray
    times: FloatArray
    grad_norms: FloatArray
    beta_over_alpha: float

    def __init__(
        self,
        weights: ArrayLike,
        times: ArrayLike,
        grad_norms: ArrayLike,
        beta_over_alpha: float | None = None,
    ) -> None:
        p = shares(weights)
        t = one_per_client("times", positive_column("times", times), p.size)
        norms = norm_column(grad_norms, p.size)
        for name, array in (("weights", p), ("times", t), ("grad_norms", norms)):
            array.setflags(write=False)
            object.__setattr__(self, name, array)
        object.__setattr__(self, "beta_over_alpha", self._checked_ratio(beta_over_alpha))

    @classmethod
    def from_samples(
        cls,
        samples: ArrayLike,
        times: ArrayLike,
        grad_norms: ArrayLike,
        beta_over_alpha: float | None = None,
    ) -> Profile:
        """Make a profile from sample counts n_i instead of weights p_i = n_i / Σ n.

        >>> Profile.from_samples([30, 10], times=[1, 2], grad_norms=[1, 1]).weights
        array([0.75, 0.25])
        """
        counts = positive_column("samples", samples)
        return cls(counts / counts.sum(), times, grad_norms, beta_over_alpha)

    @property
    def n(self) -> int:
        """The number of clients."""
        return self.weights.size

    @property
    def importance(self) -> FloatArray:
        """a_i = p_i G_i, with the stand-in for G_i = 0.

        A gradient norm of exactly 0 means that the client contributed nothing when it was
        measured; it may later. With a_i = 0 the optimum would never draw it and its
        weight p_i / (K q_i) would be infinite. So it counts as a client with the smallest
        positive norm: never more than any client that did contribute.
        """
        return self.weights * stand_in(self.grad_norms)

    def with_ratio(self, beta_over_alpha: float, name: str = "beta_over_alpha") -> Profile:
        """Return the same fleet with another c; `name` is what an error calls it."""
        ratio = self._checked_ratio(beta_over_alpha, name)
        return Profile(self.weights, self.times, self.grad_norms, ratio)

    def _checked_ratio(self, ratio: float | None, name: str = "beta_over_alpha") -> float:
        least_variance = float(self.importance.sum()) ** 2
        if ratio is None:
            return least_variance
        ratio = finite_ratio(name, ratio)
        if ratio > WIDEST_SPAN * least_variance:
            raise InputError(
                f"{name} must be at most {WIDEST_SPAN:g} times (Σ p_i G_i)² = "
                f"{least_variance:.3g}, got {ratio:g}; check the unit of the gradient norms"
            )
        return ratio


def finite_ratio(name: str, ratio: float) -> float:
    """Return c = β/α as a finite number of at least 0."""
    remedy = "leave it out for the default (Σ p_i G_i)²"
    ratio = number(name, ratio, remedy)
    if not (math.isfinite(ratio) and ratio >= 0):
        raise InputError(f"{name} must be finite and at least 0, got {ratio:g}; {remedy}")
    return ratio


def stand_in(grad_norms: FloatArray) -> FloatArray:
    """Replace zeros by the smallest positive norm, or by 1 where all are zero.

    >>> stand_in(np.array([0.0, 3.0, 2.0]))
    array([2., 3., 2.])
    """
    zero = grad_norms == 0
    if not zero.any():
        return grad_norms
    smallest = 1.0 if zero.all() else float(grad_norms[~zero].min())
    return np.where(zero, smallest, grad_norms)
