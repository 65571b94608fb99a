"""The suite accepts whatever keeps its promises, and says which one another breaks."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray

from fedpace import SCHEMES, Design, Draw, Profile
from fedpace.conformance import check_design
from tests.sampling.own_design import Halves, halves


@dataclass(frozen=True, eq=False)
class Altered:
    """Another design, with some of its answers altered."""

    inner: Design
    draws: Callable[[Draw], Draw] = lambda draw: draw
    time: Callable[[float], float] = lambda time: time
    n: int = -1
    largest_weight: float = -1.0
    variance: float = 1.0

    def draw(self, rng: np.random.Generator) -> Draw:
        return self.draws(self.inner.draw(rng))

    def expected_round_time(self, times: ArrayLike) -> float:
        return self.time(self.inner.expected_round_time(times))

    def variance_term(self, profile: Profile) -> float:
        return self.variance * self.inner.variance_term(profile)

    def among(self, present: NDArray[np.bool_]) -> "Altered":
        inner = self.inner.among(present)
        return replace(self, inner=inner, largest_weight=inner.largest_weight)


def altered(**changes: Any) -> Callable[[Profile, int], Design]:
    """Return a scheme: weighted sampling, altered."""

    def make(profile: Profile, k: int) -> Design:
        inner = SCHEMES["weighted"](profile, k)
        given = {"n": inner.n, "largest_weight": inner.largest_weight}
        return Altered(inner, **{**given, **changes})

    return make


def twice(draw: Draw) -> Draw:
    return Draw(np.repeat(draw.clients, 2), np.repeat(draw.weights / 2, 2))


def without_the_last(draw: Draw) -> Draw:
    """Leave the last one out, where there are two or more."""
    kept = slice(-1) if draw.clients.size > 1 else slice(None)
    return Draw(draw.clients[kept], draw.weights[kept])


@pytest.mark.parametrize("make", [altered(), halves])
def test_whatever_keeps_its_promises_passes(make: Callable[[Profile, int], Design]) -> None:
    check_design(make, seed=1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"draws": lambda draw: draw._replace(weights=1.2 * draw.weights)}, "at most K times"),
        ({"draws": without_the_last}, "weights of client . must be .* on average, .* are biased"),
        ({"draws": twice}, r"clients must be distinct and ascending, got \[0 0\]"),
        ({"draws": lambda draw: Draw(draw.clients[::-1], draw.weights)}, "distinct and ascending"),
        (
            {"draws": lambda draw: Draw(draw.clients[:0], draw.weights[:0])},
            "distinct and ascending",
        ),
        ({"draws": lambda draw: draw._replace(clients=draw.clients + 1)}, "among those present"),
        ({"draws": lambda draw: draw._replace(clients=draw.clients - 1)}, "among those present"),
        ({"draws": lambda draw: draw._replace(weights=0 * draw.weights)}, "be positive and finite"),
        ({"draws": lambda draw: draw._replace(weights=np.inf * draw.weights)}, "and finite"),
        ({"draws": lambda draw: draw._replace(weights=draw.weights[1:])}, "finite, one each"),
        ({"time": lambda time: 0.5 * time}, "expected_round_time must lie between 2 and 2, got 1"),
        ({"time": lambda time: min(1.1 * time, 2.0)}, "expected_round_time must be the mean time"),
        ({"n": 1}, r"n must be 6, got 1 \(N = 6, K = 1, present: \[0, 1, 2, 3, 4, 5\]\)"),
        ({"variance": -1.0}, "variance_term must be finite and at least 0, got -1"),
        ({"variance": np.nan}, "variance_term must be finite and at least 0, got nan"),
    ],
)
def test_a_promise_that_is_broken_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_design(altered(**changes))


def test_a_bias_of_a_twentieth_is_seen() -> None:
    draws = altered(
        draws=lambda draw: draw._replace(weights=1.05 * draw.weights), largest_weight=9.0
    )
    with pytest.raises(AssertionError, match=r"must be 1 on average, got 1\.05 .*biased"):
        check_design(draws)


class Lame(Halves):
    """Toss no coin."""

    def draw(self, rng: np.random.Generator) -> Draw:
        clients = self.sides[0]
        return Draw(clients, self.shares[clients] / self.shares[clients].sum())


class Deaf(Halves):
    """Take no notice of who is away."""

    def among(self, present: NDArray[np.bool_]) -> Halves:
        return self


class Moody(Halves):
    """Toss a coin of its own."""

    own = np.random.default_rng(0)

    def draw(self, rng: np.random.Generator) -> Draw:
        return super().draw(self.own)


class Wary(Halves):
    """Expect the worst."""

    def expected_round_time(self, times: ArrayLike) -> float:
        return float(np.asarray(times)[self.present].max())

    def among(self, present: NDArray[np.bool_]) -> Halves:
        return Wary(self.weights, self.present & present[: self.n])


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Lame, "draws are biased"),
        (Deaf, r"(clients must be among those present, got \[1 3 5\]|must lie between)"),
        (Moody, "draws with the same generator must be the same"),
        (Wary, "expected_round_time must be the mean time of the slowest drawn"),
    ],
)
def test_a_design_of_ones_own_is_told_what_is_wrong(kind: type[Halves], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_design(lambda profile, _: kind(profile.weights, np.ones(profile.n, np.bool_)))


def test_a_time_that_is_not_meant_to_be_exact_need_not_be() -> None:
    check_design(
        lambda profile, _: Wary(profile.weights, np.ones(profile.n, np.bool_)), exact_time=False
    )
