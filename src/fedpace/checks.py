"""Argument checks: each function returns the value, or raises InputError with a remedy."""

import operator
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpace.errors import InputError

FloatArray: TypeAlias = NDArray[np.float64]
IntArray: TypeAlias = NDArray[np.int64]
# In the precision that a model trains in.
AnyFloats: TypeAlias = NDArray[np.floating[Any]]
# Classes, or whatever else is to be predicted.
Labels: TypeAlias = NDArray[Any]

# Weights that were written to a file with a few digits still sum to 1 within this.
SUM_TOLERANCE = 1e-6
# Products of three columns and their squares stay within float64 up to this span.
WIDEST_SPAN = 1e30
# Squares of larger numbers, or of the inverse of smaller ones, leave float64.
LARGEST = 1e100
# Weights p_i / (K q_i) of a smaller probability leave float64.
RAREST = 1e-290
# No round draws more often; and K stays exact in float64.
LARGEST_COUNT = 10**12


def shares(weights: ArrayLike) -> FloatArray:
    """Return weights p_i as a read-only vector that sums to 1 to all digits."""
    p = positive_column("weights", weights)
    remedy = "divide by the sum, or give sample counts to Profile.from_samples"
    p /= sum_to_one("weights", p, remedy)
    p.setflags(write=False)
    return p


def one_per_client(name: str, array: FloatArray, n: int) -> FloatArray:
    """Return `array` if it has length n."""
    if array.size != n:
        got = f"{array.size} for {n} clients; give arrays of equal length"
        raise InputError(f"{name} must have one entry per client, got {got}")
    return array


def column(name: str, values: ArrayLike) -> FloatArray:
    """Return a new float64 vector of finite numbers."""
    try:
        if (kind := np.asarray(values).dtype).kind in "cmM":
            raise TypeError(f"{kind} is no real number")
        # Signalling NaNs and wider floats warn when they are converted; they are refused below.
        with np.errstate(invalid="ignore", over="ignore"):
            array = np.array(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{name} must be numbers, got {short_repr(values)}; {error}") from None
    if array.ndim != 1 or array.size == 0:
        got = f"shape {array.shape}; give at least one client"
        raise InputError(f"{name} must be a vector with one entry per client, got {got}")
    refuse_first(name, array, ~np.isfinite(array), "be finite", "measure it, or drop the client")
    return array


def positive_column(name: str, values: ArrayLike) -> FloatArray:
    """Return a new float64 vector of positive numbers whose span float64 can handle."""
    array = column(name, values)
    refuse_first(name, array, array <= 0, "be positive", "measure it, or drop the client")
    refuse_wide(name, array)
    return array


def norm_column(grad_norms: ArrayLike, n: int) -> FloatArray:
    """Return a new vector of norms G_i ≥ 0, one per client, whose span float64 can handle."""
    norms = one_per_client("grad_norms", column("grad_norms", grad_norms), n)
    refuse_first("grad_norms", norms, norms < 0, "be at least 0", "report a norm, not a slope")
    refuse_wide("grad_norms", norms)
    return norms


def probabilities(q: ArrayLike, n: int) -> FloatArray:
    """Return q as a vector of n probabilities."""
    array = one_per_client("q", column("q", q), n)
    refuse_first("q", array, array < 0, "be at least 0", "give probabilities")
    sum_to_one("q", array, "divide by the sum")
    rare = (array > 0) & (array < RAREST)
    refuse_first("q", array, rare, f"be 0 or at least {RAREST:g}", "raise it, or cap the weights")
    return array


def positive_probabilities(q: ArrayLike, n: int, never: str) -> FloatArray:
    """Return read-only probabilities, none of them 0; `never` names what 0 would mean."""
    found = probabilities(q, n)
    refuse_first(
        "q",
        found,
        found == 0,
        "be positive",
        f"a client that is never {never} leaves the model biased",
    )
    found.setflags(write=False)
    return found


def sum_to_one(name: str, array: FloatArray, remedy: str) -> float:
    """Return the sum, which is 1 up to rounding."""
    with np.errstate(over="ignore"):  # infinity is no sum of 1
        total = float(array.sum())
    if abs(total - 1) > SUM_TOLERANCE:
        raise InputError(f"{name} must sum to 1, got a sum of {total:.9g}; {remedy}")
    return total


def positive_count(
    name: str, value: object, remedy: str | None = None, most: int = LARGEST_COUNT
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
        raise InputError(
            f"{name} must be an integer, got {short_repr(value)}; give 1 or more"
        ) from None
    if count < 1:
        raise InputError(f"{name} must be at least 1, got {count}; {remedy or 'give 1 or more'}")
    if count > most:
        got = f"{short_repr(count)}; {remedy or 'give fewer'}"
        raise InputError(f"{name} must be at most {most:,}, got {got}")
    return count


def number(name: str, value: Any, remedy: str) -> float:
    """Return a single number, finite or not, as a float.

    >>> number("beta_over_alpha", 2, "leave it out")
    2.0
    """
    try:
        if isinstance(value, str | bytes) or np.ndim(value) or np.iscomplexobj(value):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{name} must be a number, got {short_repr(value)}; {remedy}") from None


def short_repr(value: object) -> str:
    """Return the repr of a value in one line of at most 60 characters."""
    return " ".join(repr(value).split())[:60]


def refuse_first(
    name: str, array: FloatArray | IntArray, bad: NDArray[np.bool_], condition: str, remedy: str
) -> None:
    """Raise InputError for the first client marked as bad, if any."""
    if bad.any():
        client = int(np.argmax(bad))
        got = f"{array[client]:g} for client {client}"
        raise InputError(f"{name} must {condition}, got {got}; {remedy}")


def refuse_wide(
    name: str, array: FloatArray, place: Callable[[int], str] = "client {}".format
) -> None:
    """Raise where positive entries are too large, too small or too far apart for float64.

    `place` describes the position of an entry.
    """
    smallest, largest = int(np.argmin(np.where(array > 0, array, np.inf))), int(np.argmax(array))
    low, high = float(array[smallest]), float(array[largest])
    at_low, at_high = f"{low:g} for {place(smallest)}", f"{high:g} for {place(largest)}"
    if high <= 0:
        return
    if low < 1 / LARGEST or high > LARGEST:
        got = f"{at_high if high > LARGEST else at_low}; check the unit"
        raise InputError(f"{name} must lie between {1 / LARGEST:g} and {LARGEST:g}, got {got}")
    if low < high / WIDEST_SPAN:
        span = f"within a factor of {WIDEST_SPAN:g} of each other"
        raise InputError(f"{name} must lie {span}, got {at_low} and {at_high}; check the units")
