"""What the server knows of its fleet: the hinge between measuring and sampling."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpace.errors import InputError

FloatArray: TypeAlias = NDArray[np.float64]
IntArray: TypeAlias = NDArray[np.int64]

# Weights that were written to a file with a few digits still sum to 1 within this.
SUM_TOLERANCE = 1e-6
# Products of three columns and their squares stay within float64 up to this span.
WIDEST_SPAN = 1e30
# Squares of larger numbers, or of the inverse of smaller ones, leave float64.
LARGEST = 1e100
# No round draws more often; and K stays exact in float64.
LARGEST_COUNT = 10**12


@dataclass(frozen=True, eq=False)
class Profile:
    """Hold what a scheme needs to know of N clients, checked once.

    Parameters
    ----------
    weights : array of N, > 0, sums to 1
        p_i, the share of client i in the global loss, n_i / Σ n.
    times : array of N, seconds, > 0
        t_i, how long a round of client i lasts, computation and communication.
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
        t = positive_column("times", times)
        norms = column("grad_norms", grad_norms)
        one_per_client("times", t, p)
        one_per_client("grad_norms", norms, p)
        refuse_first("grad_norms", norms, norms < 0, "be at least 0", "report a norm, not a slope")
        refuse_wide("grad_norms", norms)
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

        A gradient norm of exactly 0 says that the client had nothing to teach when it was
        measured; it may have later. With a_i = 0 the optimum would never draw it and its
        weight p_i / (K q_i) would be infinite. So it counts as a client with the smallest
        positive norm: never more than any client that was seen to teach something.
        """
        return self.weights * stand_in(self.grad_norms)

    def _checked_ratio(self, ratio: float | None) -> float:
        least_variance = float(self.importance.sum()) ** 2
        if ratio is None:
            return least_variance
        try:
            ratio = float(ratio)
        except (TypeError, ValueError, OverflowError) as error:
            raise InputError(
                f"beta_over_alpha must be a number, got {ratio!r:.60}; {error}"
            ) from None
        if not (math.isfinite(ratio) and ratio >= 0):
            raise InputError(
                f"beta_over_alpha must be finite and at least 0, got {ratio:g}; "
                "leave it out for the default (Σ p_i G_i)²"
            )
        if ratio > WIDEST_SPAN * least_variance:
            raise InputError(
                f"beta_over_alpha must be at most {WIDEST_SPAN:g} times (Σ p_i G_i)² = "
                f"{least_variance:.3g}, got {ratio:g}; check the unit of grad_norms"
            )
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


def shares(weights: ArrayLike) -> FloatArray:
    """Return weights p_i as a vector that cannot be changed and sums to 1 to all digits."""
    p = positive_column("weights", weights)
    total = float(p.sum())
    if abs(total - 1) > SUM_TOLERANCE:
        raise InputError(
            f"weights must sum to 1, got a sum of {total:.9g}; "
            "divide by the sum, or give sample counts to Profile.from_samples"
        )
    p /= total
    p.setflags(write=False)
    return p


def one_per_client(name: str, array: FloatArray, weights: FloatArray) -> FloatArray:
    """Return `array`, or say that it is not as long as the weights."""
    if array.size != weights.size:
        raise InputError(
            f"{name} must have one entry per client, got {array.size} for "
            f"{weights.size} weights; give arrays of equal length"
        )
    return array


def column(name: str, values: ArrayLike) -> FloatArray:
    """Return a fresh float64 vector of finite numbers, or say which entry is not one."""
    try:
        if np.iscomplexobj(values):
            raise TypeError("complex numbers have no order")
        array = np.array(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{name} must be numbers, got {values!r:.60}; {error}") from None
    if array.ndim != 1 or array.size == 0:
        raise InputError(
            f"{name} must be a vector with one entry per client, got shape {array.shape}; "
            "give at least one client"
        )
    refuse_first(name, array, ~np.isfinite(array), "be finite", "measure it, or drop the client")
    return array


def positive_column(name: str, values: ArrayLike) -> FloatArray:
    """Return a fresh float64 vector of positive finite numbers of a span that can be computed."""
    array = column(name, values)
    refuse_first(name, array, array <= 0, "be positive", "measure it, or drop the client")
    refuse_wide(name, array)
    return array


def probabilities(q: ArrayLike, n: int) -> FloatArray:
    """Return q as a vector of n probabilities, or say what is wrong with it."""
    array = column("q", q)
    if array.size != n:
        raise InputError(
            f"q must have one entry per client, got {array.size} for {n} clients; "
            "give arrays of equal length"
        )
    refuse_first("q", array, array < 0, "be at least 0", "give probabilities")
    if abs(total := float(array.sum()) - 1) > SUM_TOLERANCE:
        raise InputError(f"q must sum to 1, got a sum of {1 + total:.9g}; divide by the sum")
    return array


def positive_count(
    name: str, value: object, remedy: str = "give the clients per round", most: int = LARGEST_COUNT
) -> int:
    """Return an integer from 1 to `most`.

    >>> positive_count("k", 10)
    10
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        count = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise InputError(f"{name} must be an integer, got {value!r}; give 1 or more") from None
    if count < 1:
        raise InputError(f"{name} must be at least 1, got {count}; {remedy}")
    if count > most:
        raise InputError(f"{name} must be at most {most:,}, got {count}; {remedy}")
    return count


def refuse_first(
    name: str, array: FloatArray, bad: NDArray[np.bool_], condition: str, remedy: str
) -> None:
    """Raise for the first client marked as bad, if there is one."""
    if bad.any():
        client = int(np.argmax(bad))
        raise InputError(
            f"{name} must {condition}, got {array[client]:g} for client {client}; {remedy}"
        )


def refuse_wide(name: str, array: FloatArray) -> None:
    """Raise where positive entries are too large, too small or too far apart for float64."""
    positive = array > 0
    smallest = int(np.argmin(np.where(positive, array, np.inf)))
    largest = int(np.argmax(array))
    low, high = float(array[smallest]), float(array[largest])
    if high <= 0:
        return
    if low < 1 / LARGEST or high > LARGEST:
        client, value = (largest, high) if high > LARGEST else (smallest, low)
        raise InputError(
            f"{name} must lie between {1 / LARGEST:g} and {LARGEST:g}, got {value:g} "
            f"for client {client}; check the unit"
        )
    if low < high / WIDEST_SPAN:
        raise InputError(
            f"{name} must lie within a factor of {WIDEST_SPAN:g} of each other, got {low:g} "
            f"for client {smallest} and {high:g} for client {largest}; check the units"
        )
