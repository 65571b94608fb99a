"""Suite for designs: their properties, checked by draws."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedpace.checks import FloatArray
from fedpace.profile import Profile
from fedpace.sampling.design import Design, Draw

# Draws for each mean: enough to detect a weight that is wrong by a tenth.
ROUNDS = 2000
# Draws of two generators in the same state.
REPEATS = 20
# Standard errors that a mean may be off by; one in 2 million is off by more.
ERRORS = 5
# With fewer weights than this, the largest weight bounds their spread.
FEW = 30
# Tolerance of a mean without any spread.
ROUNDING = 1e-9


def check_design(
    make: Callable[[Profile, int], Design], *, exact_time: bool = True, seed: int = 0
) -> None:
    """Raise AssertionError unless designs have the properties that `Design` promises.

    On a few small fleets, with all clients present or some: clients are distinct, ascending and
    present; weights are positive and p_i on average; no weight exceeds K times `largest_weight`;
    the expected round time is that of the draws; the variance term is at least 0; clients keep
    their numbers; and the draw depends on the generator only. Means are compared within five
    standard errors of 2000 draws.

    Parameters
    ----------
    make, seed : callable, int
        Makes a design from a profile and K, such as a scheme does, and the seed of the draws.
    exact_time : bool
        Whether `expected_round_time` is exact. Otherwise it must only lie between the times of
        the fastest and the slowest client present.

    Examples
    --------
    >>> from fedpace import SCHEMES
    >>> check_design(SCHEMES["uniform"])
    """
    rng = np.random.default_rng(seed)
    for profile, k in _fleets():
        design = make(profile, k)
        for present, those in _attendances(design, profile.n):
            _Trial(those, profile, k, present, exact_time).check(rng)


def _fleets() -> Iterator[tuple[Profile, int]]:
    """Yield one client, six with ties, and twelve without; with a K each."""
    yield Profile([1.0], [2.0], [1.0]), 2
    alike = Profile(np.arange(1, 7) / 21, [1, 1, 2, 2, 4, 4], [1, 2, 1, 3, 1, 2])
    yield alike, 1
    yield alike, 4
    rank = np.arange(1, 13)
    yield Profile.from_samples(60 / rank, 1 + (5 * rank) % 12, 1 + rank % 3), 3


def _attendances(design: Design, n: int) -> Iterator[tuple[NDArray[np.bool_], Design]]:
    """Yield the clients present, and the design among them."""
    number = np.arange(n)
    even, third = number % 2 == 0, number % 3 == 0
    yield np.ones(n, np.bool_), design
    yield even, design.among(even)
    yield even, design.among(np.append(even, [True, True]))  # two joined after the design
    yield number == n - 1, design.among(number == n - 1)
    yield even & third, design.among(even).among(third)


class _Trial(NamedTuple):
    """A design and its fleet."""

    design: Design
    profile: Profile
    k: int
    present: NDArray[np.bool_]
    exact_time: bool

    def check(self, rng: np.random.Generator) -> None:
        """Check its properties, then its draws."""
        self._check_figures()
        self._check_repeats(int(rng.integers(2**32)))
        draws = [self.design.draw(rng) for _ in range(ROUNDS)]
        for draw in draws:
            self._check_draw(draw)
        self._check_weights(draws)
        if self.exact_time:
            self._check_time(draws)

    def _check_figures(self) -> None:
        n, times = self.profile.n, self.profile.times[self.present]
        time = self.design.expected_round_time(self.profile.times)
        variance = self.design.variance_term(self.profile)
        if self.design.n != n:
            raise self._broken(f"n must be {n}, got {self.design.n}")
        if not times.min() * (1 - ROUNDING) <= time <= times.max() * (1 + ROUNDING):
            raise self._broken(
                f"expected_round_time must lie between {times.min():g} and {times.max():g}, "
                f"got {time:g}"
            )
        if not (np.isfinite(variance) and variance >= 0):
            raise self._broken(f"variance_term must be finite and at least 0, got {variance:g}")

    def _check_repeats(self, seed: int) -> None:
        one, other = (np.random.default_rng(seed) for _ in range(2))
        for _ in range(REPEATS):
            a, b = self.design.draw(one), self.design.draw(other)
            same = np.array_equal(a.clients, b.clients) and np.array_equal(a.weights, b.weights)
            if same and a.tier == b.tier:
                continue
            raise self._broken("draws with the same generator must be the same, got two different")

    def _check_draw(self, draw: Draw) -> None:
        clients, weights = draw.clients, draw.weights
        if not (clients.size and (clients[1:] > clients[:-1]).all()):
            raise self._broken(f"clients must be distinct and ascending, got {clients}")
        if clients[0] < 0 or clients[-1] >= self.profile.n or not self.present[clients].all():
            raise self._broken(f"clients must be among those present, got {clients}")
        if not (weights.shape == clients.shape and (np.isfinite(weights) & (weights > 0)).all()):
            raise self._broken(f"weights must be positive and finite, one each, got {weights}")
        if weights.max() > (most := self.k * self.design.largest_weight) * (1 + ROUNDING):
            raise self._broken(
                f"weights must be at most K times largest_weight = {most:g}, got {weights.max():g}"
            )

    def _check_weights(self, draws: list[Draw]) -> None:
        weights = np.zeros((ROUNDS, self.profile.n))
        for row, draw in zip(weights, draws, strict=True):
            row[draw.clients] = draw.weights
        shares = np.where(self.present, self.profile.weights, 0.0)
        shares /= shares.sum()
        mean, error = weights.mean(axis=0), _error(weights)
        few = (weights > 0).sum(axis=0) < FEW
        # A weight of mean p that never exceeds w has a variance of at most p w.
        bound = np.sqrt(shares * self.design.largest_weight / ROUNDS)
        error[few] = np.maximum(error, bound)[few]
        excess = np.abs(mean - shares) - ERRORS * error
        if excess.max() > ROUNDING:
            worst = int(np.argmax(excess))
            raise self._broken(
                f"the weights of client {worst} must be {shares[worst]:.4g} on average, got "
                f"{mean[worst]:.4g} with a standard error of {error[worst]:.2g}: draws are biased"
            )

    def _check_time(self, draws: list[Draw]) -> None:
        slowest = np.array([self.profile.times[draw.clients].max() for draw in draws])
        mean, error = float(slowest.mean()), float(_error(slowest))
        said = self.design.expected_round_time(self.profile.times)
        if abs(mean - said) > ERRORS * error + ROUNDING * mean:
            raise self._broken(
                f"expected_round_time must be the mean time of the slowest drawn, {mean:.4g} with "
                f"a standard error of {error:.2g}, got {said:.4g}"
            )

    def _broken(self, sentence: str) -> AssertionError:
        there = np.flatnonzero(self.present).tolist()
        return AssertionError(f"{sentence} (N = {self.profile.n}, K = {self.k}, present: {there})")


def _error(values: FloatArray) -> FloatArray:
    """Return the standard error of the mean over the first axis."""
    error: FloatArray = np.std(values, axis=0, ddof=1) / np.sqrt(len(values))
    return error
