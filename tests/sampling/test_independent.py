"""Independent draws: every figure against all subsets of clients, counted one by one."""

from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpace import InputError, Profile
from fedpace.checks import FloatArray
from fedpace.conformance import check_design
from fedpace.sampling.design import Among
from fedpace.sampling.independent import Independent, clip_to_sum, sorted_slowest
from tests.sampling.fleets import powers_of_ten

ROWS = st.lists(st.floats(0.05, 1) | st.just(1.0), min_size=1, max_size=5)


@st.composite
def designs(draw: st.DrawFn) -> Independent:
    inclusion = np.array(draw(ROWS))
    if inclusion.sum() < 1:
        inclusion /= inclusion.sum()
    weights = np.random.default_rng(draw(st.integers(0, 99))).exponential(size=inclusion.size)
    return Independent(inclusion, weights / weights.sum())


class Case(NamedTuple):
    """A set of clients, one truth value each, and its probability."""

    drawn: FloatArray
    chance: float


def subsets(inclusion: FloatArray) -> Iterator[Case]:
    for each in product([0.0, 1.0], repeat=inclusion.size):
        drawn = np.array(each)
        yield Case(drawn, float(np.prod(np.where(drawn > 0, inclusion, 1 - inclusion))))


def cases(design: Independent) -> list[Case]:
    """All draws with a client, and their probabilities."""
    some = [case for case in subsets(design.inclusion) if case.drawn.any()]
    total = sum(case.chance for case in some)
    return [Case(case.drawn, case.chance / total) for case in some]


def weights_of(design: Independent, drawn: FloatArray) -> FloatArray:
    """The weights of a draw, taken from a draw with this outcome."""

    class Fixed:
        def random(self, size: int) -> FloatArray:
            return np.where(drawn > 0, 0.0, 1.0)

    generator: Any = Fixed()
    draw = design.draw(generator)
    weights = np.zeros(design.n)
    weights[draw.clients] = draw.weights
    return weights


@settings(max_examples=40)
@given(designs(), st.integers(0, 99))
def test_every_figure_is_that_of_all_draws(design: Independent, seed: int) -> None:
    found = cases(design)
    chances = np.array([case.chance for case in found])
    weights = np.array([weights_of(design, case.drawn) for case in found])
    np.testing.assert_allclose(chances @ weights, design.weights, rtol=1e-9)
    assert design.largest_weight == pytest.approx(weights.max(), rel=1e-9)
    rng = np.random.default_rng(seed)
    times = rng.exponential(size=design.n) + 0.01
    slowest = np.where(weights > 0, times, 0).max(axis=1)
    assert design.expected_round_time(times) == pytest.approx(chances @ slowest, rel=1e-9)
    updates = rng.normal(size=(design.n, 3))
    moment = chances @ ((weights @ updates) ** 2).sum(axis=1)
    assert design.second_moment(updates) == pytest.approx(moment, rel=1e-9)


@settings(max_examples=40)
@given(designs(), st.integers(0, 99))
def test_the_variance_term_is_that_of_orthogonal_updates(design: Independent, seed: int) -> None:
    norms = np.random.default_rng(seed).lognormal(size=design.n)
    profile = Profile(design.weights, np.ones(design.n), norms)
    mean = float(np.sum((design.weights * norms) ** 2))
    expected = design.k * (design.second_moment(np.diag(norms)) - mean) + mean
    assert design.variance_term(profile) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@settings(max_examples=40)
@given(ROWS, st.integers(0, 99))
def test_derivatives_of_the_slowest_are_differences_of_all_draws(
    inclusion: list[float], seed: int
) -> None:
    pi = np.array(inclusion)
    times = np.sort(np.random.default_rng(seed).exponential(size=pi.size) + 0.01)

    def slowest(q: FloatArray) -> tuple[float, float]:
        every = list(subsets(q))
        mean = sum(case.chance * float((times * case.drawn).max()) for case in every)
        return mean, sum(case.chance for case in every if case.drawn.any())

    found = sorted_slowest(pi, times)
    assert (found.mean, found.somebody) == pytest.approx(slowest(pi), rel=1e-9)
    for client in range(pi.size):  # both are linear in each probability
        there, absent = pi.copy(), pi.copy()
        there[client], absent[client] = 1.0, 0.0
        slopes = np.subtract(slowest(there), slowest(absent))
        assert found.gradient[client] == pytest.approx(slopes[0], abs=1e-9)
        assert found.nonempty[client] == pytest.approx(slopes[1], abs=1e-9)


def test_every_design_promise_is_kept() -> None:
    def independent(profile: Profile, k: int) -> Independent:
        floors = np.full(profile.n, 0.05)
        inclusion = clip_to_sum(profile.weights, floors, min(k, profile.n)).values
        return Independent(inclusion, profile.weights, k=k)

    check_design(independent)


@given(designs(), st.data())
def test_among_those_present_k_take_part_and_no_weight_grows(
    design: Independent, data: st.DataObject
) -> None:
    present = np.array(data.draw(st.lists(st.booleans(), min_size=design.n, max_size=design.n)))
    present[data.draw(st.integers(0, design.n - 1))] = True
    among = design.among(present)
    assert isinstance(among, Among)
    inner = among.design
    assert isinstance(inner, Independent)
    there = int(present.sum())
    assert inner.inclusion.sum() == pytest.approx(min(design.k, there), rel=1e-9)
    before = float((design.weights / design.inclusion).max())
    after = inner.weights / inner.inclusion
    # A client that always takes part cannot weigh less than its share.
    least = np.where(inner.inclusion < 1, max(before, 1 / min(design.k, there)), inner.weights)
    assert np.all(after <= least * (1 + 1e-9))


@given(
    st.lists(powers_of_ten(-9, 9) | st.just(np.inf), min_size=2, max_size=9),
    st.floats(0.05, 0.95),
    st.sampled_from([None, 0.0, 0.3, 1.0]),
)
def test_a_common_factor_gives_the_sum(
    shape: list[float], part: float, floor: float | None
) -> None:
    b = np.array(shape)
    infinite = int(np.isinf(b).sum())
    total = infinite + part * (b.size - infinite)
    if infinite == b.size:
        return
    floors = None if floor is None else np.full(b.size, floor * part)
    values, scale = clip_to_sum(b, floors, total)
    assert values.sum() == pytest.approx(total, rel=1e-9)
    if scale > 0:
        expected = np.clip(scale * b, 0 if floors is None else floors, 1)
        np.testing.assert_allclose(values, expected, rtol=1e-9)


def test_bad_arguments_are_refused_in_one_line() -> None:
    half = [0.5, 0.5]
    with pytest.raises(InputError, match=r"inclusion must be at most 1, got 1\.5 for client 0; "):
        Independent([1.5, 0.5], half)
    with pytest.raises(InputError, match=r"inclusion must sum to at least 1, got 0\.7; raise"):
        Independent([0.5, 0.2], half)
    with pytest.raises(InputError, match=r"inclusion must be positive, got 0 for client 1; "):
        Independent([1.0, 0.0], half)
    with pytest.raises(InputError, match="k must be at least 1, got 0"):
        Independent([1.0, 0.5], half, k=0)
