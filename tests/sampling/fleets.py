"""Fleets, probabilities and caps to test with: ordinary, extreme, and of round numbers."""

from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st

from fedpace import Profile
from fedpace.profile import FloatArray

# Probabilities that are multiples of this are exact in float64, and so are their sums.
DYADIC = 2.0**-20


class Fleet(NamedTuple):
    """What a solver takes, in the order in which it takes it."""

    weights: FloatArray
    times: FloatArray
    grad_norms: FloatArray
    c: float

    @property
    def n(self) -> int:
        return self.weights.size

    @property
    def importance(self) -> FloatArray:
        """a_i = p_i G_i, where G_i = 0 counts as the smallest positive G, or as 1 without any."""
        positive = self.grad_norms[self.grad_norms > 0]
        least = positive.min() if positive.size else 1.0
        return self.weights * np.where(self.grad_norms > 0, self.grad_norms, least)

    @property
    def profile(self) -> Profile:
        return Profile(*self)

    def permuted(self, order: list[int]) -> "Fleet":
        return Fleet(self.weights[order], self.times[order], self.grad_norms[order], self.c)


def random_fleet(n: int, ratio: float, seed: int) -> Fleet:
    """Draw a typical fleet: t ~ Exp(1), log-normal G, uneven p, and c = ratio · S_0."""
    rng = np.random.default_rng(seed)
    weights = 1 + rng.pareto(1.5, size=n)
    weights /= weights.sum()
    times = rng.exponential(size=n)
    grad_norms = rng.lognormal(size=n)
    return Fleet(weights, times, grad_norms, ratio * float(weights @ grad_norms) ** 2)


def powers_of_ten(low: float, high: float) -> st.SearchStrategy[float]:
    """Numbers whose logarithm is spread evenly."""
    return st.floats(low, high).map(lambda exponent: float(10**exponent))


def columns(n: int, values: st.SearchStrategy[float]) -> st.SearchStrategy[FloatArray]:
    return st.lists(values, min_size=n, max_size=n).map(lambda column: np.array(column, float))


@st.composite
def fleets(
    draw: st.DrawFn,
    *,
    n: st.SearchStrategy[int] | None = None,
    decades: float = 1.0,
    ratios: st.SearchStrategy[float] | None = None,
) -> Fleet:
    """Draw fleets without zero gradients whose columns span `decades` powers of ten each.

    A third of them is of small whole numbers, with ties; `ratios` are c in units of S_0.
    """
    size = draw(st.integers(1, 8) if n is None else n)
    whole = st.integers(1, 5).map(float)
    smooth = powers_of_ten(-decades / 2, decades / 2)
    values = whole if draw(st.integers(0, 2)) == 0 else smooth
    weights, times, grad_norms = (draw(columns(size, values)) for _ in range(3))
    if draw(st.integers(0, 5)) == 0:
        times[:] = times[0]
    weights /= weights.sum()
    ratio = draw(st.just(0.0) | powers_of_ten(-2, 2) if ratios is None else ratios)
    return Fleet(weights, times, grad_norms, ratio * float(weights @ grad_norms) ** 2)


@st.composite
def extreme_fleets(draw: st.DrawFn) -> Fleet:
    """Draw fleets that strain float64: lone fast clients, nine decades of p, G = 0, any c."""
    size = draw(st.sampled_from([1, 2, 2, 3, 5, 20]))
    times = draw(columns(size, powers_of_ten(-6, 6) | st.sampled_from([1e-6, 1.0, 1.0])))
    weights = draw(columns(size, powers_of_ten(-9, 0)))
    grad_norms = draw(columns(size, powers_of_ten(-3, 3) | st.just(0.0)))
    fleet = Fleet(weights / weights.sum(), times, grad_norms, 0.0)
    ratio = draw(st.sampled_from([0.0, 1e-12, 1.0, 1e12]) | powers_of_ten(-12, 12))
    return fleet._replace(c=ratio * float(fleet.importance.sum()) ** 2)


@st.composite
def distributions(draw: st.DrawFn, n: int, *, zeros: bool = False) -> FloatArray:
    """Draw probabilities that are multiples of 2⁻²⁰: their sums are exact, and 1 in total."""
    whole = round(1 / DYADIC)
    spare = whole if zeros else whole - n
    cuts = sorted(draw(st.lists(st.integers(0, spare), min_size=n - 1, max_size=n - 1)))
    counts = np.diff([0, *cuts, spare]) + (0 if zeros else 1)
    return counts * DYADIC


def caps(k: int) -> st.SearchStrategy[float]:
    """Caps on the aggregation weight, from barely feasible to hardly felt."""
    return (powers_of_ten(0.001, 2) | st.integers(2, 16).map(lambda i: i / 2)).map(
        lambda times_k: times_k / k
    )
