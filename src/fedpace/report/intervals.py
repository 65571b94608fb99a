"""Means and ratios over seeds, with their 95 % intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

from fedpace.checks import FloatArray

CONFIDENCE = 0.95
BySeed = dict[int, float]


class Interval(NamedTuple):
    """A value with its 95 % interval over `seeds` runs; the ends are NaN for fewer than two.

    `bound` is "≥" where runs that never got there would make the value larger, "≤" where they
    would make it smaller, "≈" where they pull either way, and empty where there are none.
    """

    value: float = math.nan
    low: float = math.nan
    high: float = math.nan
    seeds: int = 0
    bound: str = ""


def mean_interval(values: Iterable[float]) -> Interval:
    """Return the mean of the finite values with Student's interval of the mean.

    >>> mean_interval([1.0, 3.0, math.inf])._replace(low=0, high=0)
    Interval(value=2.0, low=0, high=0, seeds=2, bound='≥')
    """
    every = np.array(list(values), dtype=np.float64)
    finite = every[np.isfinite(every)]
    if finite.size == 0:
        return Interval()
    mean, half = float(finite.mean()), _half_width(finite)
    bound = "≥" if finite.size < every.size else ""
    return Interval(mean, mean - half, mean + half, finite.size, bound)


def time_interval(values: Iterable[float]) -> Interval:
    """Return the mean of times with an interval that cannot go below zero.

    It is Student's by the delta method on the logarithm: mean · exp(± t s / (√n mean)).

    >>> found = time_interval([1.0, 1000.0])
    >>> found.value, found.low > 0
    (500.5, True)
    """
    plain = mean_interval(values)
    if not plain.value > 0:
        return plain
    factor = math.exp((plain.high - plain.value) / plain.value)
    return plain._replace(low=plain.value / factor, high=plain.value * factor)


def ratio_interval(numerators: BySeed, denominators: BySeed) -> Interval:
    """Return the ratio of two means over the seeds that both have, with an interval.

    R = Σ a_s / Σ b_s over the seeds s in which both arrived. Both share the data, device times
    and initial model of a seed, so a_s and b_s are paired: the interval is that of the delta
    method, from the spread of a_s − R b_s, with Student's factor. It is taken on log R: it stays
    positive, and the inverse ratio has the inverse interval. A bootstrap over seeds does as well
    for fifty seeds, but is far too narrow for three.

    >>> ratio_interval({0: 2.0, 1: 4.0}, {0: 1.0, 1: 2.0})
    Interval(value=2.0, low=2.0, high=2.0, seeds=2, bound='')
    """
    seeds = sorted(numerators.keys() & denominators.keys())
    pairs = np.array([(numerators[seed], denominators[seed]) for seed in seeds]).reshape(-1, 2)
    arrived = np.isfinite(pairs)
    both = pairs[arrived.all(axis=1)]
    if len(both) == 0 or both.sum(axis=0).min() <= 0:
        return Interval()
    top, bottom = both.mean(axis=0)
    ratio = float(top / bottom)
    factor = math.exp(_half_width((both[:, 0] - ratio * both[:, 1]) / top))
    above, below = np.all(arrived, axis=0).tolist()
    bound = "" if above and below else "≥" if below else "≤" if above else "≈"
    return Interval(ratio, ratio / factor, ratio * factor, len(both), bound)


def inverse(ratio: Interval) -> Interval:
    """Return the inverse of a ratio: 2 for half the time, with the inverse interval.

    >>> inverse(Interval(0.5, 0.25, 1.0, 3, "≥"))
    Interval(value=2.0, low=1.0, high=4.0, seeds=3, bound='≤')
    """
    bounds = {"≥": "≤", "≤": "≥"}
    value, low, high = (
        1 / each if each > 0 else math.nan for each in (ratio.value, ratio.high, ratio.low)
    )
    return Interval(value, low, high, ratio.seeds, bounds.get(ratio.bound, ratio.bound))


def seeds_needed(ratio: Interval, *, most: int = 1_000) -> int | None:
    """Return how many more seeds would show that a ratio like this one is not 1.

    The standard deviation s of log R per seed follows from the interval; the result is n' − n for
    the smallest n' ≥ n with t(n' − 1) s / √n' < |log R|. None if more than `most` would be needed.

    >>> seeds_needed(Interval(1.5, 1.5 / 2, 1.5 * 2, seeds=3))
    2
    """
    if not ratio.seeds > 1 or not math.isfinite(ratio.high) or ratio.value in (0.0, 1.0):
        return None
    shift = abs(math.log(ratio.value))
    spread = (
        math.log(ratio.high / ratio.value) * math.sqrt(ratio.seeds) / student_factor(ratio.seeds)
    )
    for more in range(most + 1):
        n = ratio.seeds + more
        if student_factor(n) * spread / math.sqrt(n) < shift:
            return more
    return None


def student_factor(n: int) -> float:
    """Return the quantile of Student's t for the 95 % interval of a mean of n values."""
    return float(stdtrit(n - 1, (1 + CONFIDENCE) / 2))


def _half_width(values: FloatArray) -> float:
    """Return t · s/√n, and NaN for a single value."""
    if values.size < 2:
        return math.nan
    factor = student_factor(values.size)
    return factor * float(values.std(ddof=1)) / math.sqrt(values.size)
