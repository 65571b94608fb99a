"""Fleets, probabilities and caps to test with: ordinary, extreme, and of whole numbers."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st

from fedpace.checks import FloatArray

# Probabilities that are multiples of this are exact in float64, and so are their sums.
DYADIC = 2.0**-20


class Fleet(NamedTuple):
    """The three columns that a solver takes, in the order in which it takes them."""

    weights: FloatArray
    times: FloatArray
    grad_norms: FloatArray

    @property
    def importance(self) -> FloatArray:
        """a_i = p_i G_i, where G_i = 0 counts as the smallest positive G, or as 1 without any."""
        positive = self.grad_norms[self.grad_norms > 0]
        least = positive.min() if positive.size else 1.0
        return self.weights * np.where(self.grad_norms > 0, self.grad_norms, least)

    @property
    def least_variance(self) -> float:
        """S_0 = (Σ a)²."""
        return float(self.importance.sum()) ** 2

    def permuted(self, order: list[int]) -> Fleet:
        """The same clients in another order."""
        return Fleet(*(column[order] for column in self))


def random_fleet(n: int, seed: int) -> Fleet:
    """Draw a typical fleet: t ~ Exp(1), log-normal G, p from a power law."""
    rng = np.random.default_rng(seed)
    weights = 1 + rng.pareto(1.5, size=n)
    return Fleet(weights / weights.sum(), 0.01 + rng.exponential(size=n), rng.lognormal(size=n))


# The first two are small enough for a grid.
EXAMPLES = [random_fleet(n, seed) for seed, n in enumerate((2, 3, 5, 10, 20))]


def powers_of_ten(low: float, high: float) -> st.SearchStrategy[float]:
    """Numbers whose logarithm is spread evenly."""
    return st.floats(low, high).map(lambda exponent: float(10**exponent))


# c, mostly in units of S_0, from Corollary 2 to "the fastest only".
ratios = st.sampled_from([0.0, 1e-12, 1.0, 1e12]) | powers_of_ten(-3, 3) | powers_of_ten(-12, 12)


def columns(n: int, values: st.SearchStrategy[float]) -> st.SearchStrategy[FloatArray]:
    return st.lists(values, min_size=n, max_size=n).map(lambda column: np.array(column, float))


@st.composite
def fleets(draw: st.DrawFn, fewest: int = 1, most: int = 8, decades: float = 2.0) -> Fleet:
    """Draw fleets with G > 0 whose columns span `decades` powers of ten; some of whole numbers.

    Whole numbers make ties: equal times, equal importance, floors that are met exactly.
    """
    n = draw(st.integers(fewest, most))
    whole, smooth = st.integers(1, 5).map(float), powers_of_ten(-decades / 2, decades / 2)
    values = draw(st.sampled_from([whole, smooth, smooth]))
    weights, times, grad_norms = (draw(columns(n, values)) for _ in range(3))
    return Fleet(weights / weights.sum(), times, grad_norms)


@st.composite
def extreme_fleets(draw: st.DrawFn) -> Fleet:
    """Draw fleets that strain float64: lone fast clients, equal times, nine decades of p, G = 0."""
    n = draw(st.sampled_from([1, 2, 3, 5, 20]))
    fast = st.sampled_from([1e-6, 1.0, 1.0])
    times = draw(st.sampled_from([powers_of_ten(-6, 6), fast, st.just(2.0)]))
    norms = draw(st.sampled_from([powers_of_ten(-3, 3), powers_of_ten(-3, 3) | st.just(0.0)]))
    weights = draw(columns(n, powers_of_ten(-9, 0)))
    if draw(st.integers(0, 9)) == 0:
        norms = st.just(0.0)
    return Fleet(weights / weights.sum(), draw(columns(n, times)), draw(columns(n, norms)))


@st.composite
def widest_fleets(draw: st.DrawFn) -> Fleet:
    """Draw fleets as far apart as a profile allows, some with times that differ by rounding.

    More clients than the exact solver has groups in one of them, so it merges some.
    """
    n = draw(st.sampled_from([2, 3, 5, 20, 2100]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    spans = [draw(st.sampled_from([0.0, 3.0, 14.0])) for _ in range(3)]
    weights, times, grad_norms = (10.0 ** rng.uniform(-span, span, n) for span in spans)
    if draw(st.booleans()):
        times = np.round(times, 1) + times.min()
    times *= 1 + draw(st.sampled_from([0.0, 1e-15])) * rng.integers(0, 3, n)
    return Fleet(weights / weights.sum(), times, grad_norms)


@st.composite
def distributions(draw: st.DrawFn, n: int, zeros: bool = False) -> FloatArray:
    """Draw probabilities that are multiples of 2⁻²⁰: their sums are exact, and 1 in total."""
    whole = round(1 / DYADIC)
    spare = whole if zeros else whole - n
    cuts = sorted(draw(st.lists(st.integers(0, spare), min_size=n - 1, max_size=n - 1)))
    return (np.diff([0, *cuts, spare]) + (0 if zeros else 1)) * DYADIC


def caps(k: int) -> st.SearchStrategy[float]:
    """Caps on the aggregation weight, from barely feasible to hardly felt; some of them round."""
    halves = st.integers(2, 16).map(lambda i: i / 2)
    return (powers_of_ten(-6, 2).map(lambda x: 1 + x) | halves).map(lambda x: x / k)


def simplex_grid(n: int, points: int) -> FloatArray:
    """Return rows of positive probabilities that are multiples of 1/points, for N = 2 or 3."""
    inner = np.arange(1, points)
    if n == 2:
        return np.stack([inner, points - inner], axis=1) / points
    first, second = (axis.ravel() for axis in np.meshgrid(inner, inner))
    rows = np.stack([first, second, points - first - second], axis=1)
    return np.asarray(rows[rows[:, 2] > 0] / points, dtype=np.float64)
