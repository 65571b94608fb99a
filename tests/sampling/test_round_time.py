import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpace import InputError, expected_round_time, mean_round_time
from fedpace.checks import FloatArray
from fedpace.sampling.bound import (
    round_time_gradient,
    sorted_marginal_times,
    sorted_round_time,
)
from tests.sampling.fleets import columns, distributions, powers_of_ten, random_fleet

seeds = st.integers(0, 10**6)
many = st.sampled_from([10**4, 10**6, 10**9])


def random_point(n: int, seed: int) -> tuple[FloatArray, FloatArray]:
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.ones(n)), np.sort(rng.exponential(size=n) + 0.01)


@st.composite
def clients(draw: st.DrawFn) -> tuple[FloatArray, FloatArray]:
    """Draw q, with zeros, and times, with ties, in ascending order of time."""
    n = draw(st.integers(1, 6))
    times = draw(columns(n, powers_of_ten(-3, 0) | st.integers(1, 3).map(float)))
    return draw(distributions(n, zeros=True)), np.sort(times)


@given(st.integers(1, 4), st.integers(1, 5), seeds)
def test_matches_enumeration_of_all_draws(n: int, k: int, seed: int) -> None:
    q, times = random_point(n, seed)
    expected = sum(
        np.prod(q[list(draw)]) * times[list(draw)].max()
        for draw in itertools.product(range(n), repeat=k)
    )
    assert expected_round_time(q, times, k) == pytest.approx(expected, rel=1e-12)


@given(st.integers(1, 30), st.integers(1, 50), seeds)
def test_matches_theorem_2_in_exact_arithmetic(n: int, k: int, seed: int) -> None:
    q, times = random_point(n, seed)
    exact = [Fraction(x) for x in q]
    total = sum(exact)
    below, expected = Fraction(0), Fraction(0)
    for share, time in zip(exact, times, strict=True):
        upto = below + share / total
        expected += (upto**k - below**k) * Fraction(time)
        below = upto
    assert expected_round_time(q, times, k) == pytest.approx(float(expected), rel=1e-12)


@given(st.integers(1, 20), seeds)
def test_one_draw_takes_the_mean_time(n: int, seed: int) -> None:
    q, times = random_point(n, seed)
    assert expected_round_time(q, times, 1) == pytest.approx(mean_round_time(q, times), rel=1e-13)


@given(st.integers(2, 20), st.integers(1, 100), seeds)
def test_neither_the_order_nor_the_unit_of_time_matters(n: int, k: int, seed: int) -> None:
    q, times = random_point(n, seed)
    order = np.random.default_rng(seed).permutation(n)
    value = expected_round_time(q, times, k)
    assert expected_round_time(q[order], times[order], k) == pytest.approx(value, rel=1e-13)
    assert expected_round_time(q, 60 * times, k) == pytest.approx(60 * value, rel=1e-13)


def test_equal_times_are_the_round_time_whatever_q() -> None:
    assert expected_round_time([0.1, 0.2, 0.7], [3.0, 3.0, 3.0], 17) == 3.0


def test_ties_may_be_split_in_any_way() -> None:
    first = expected_round_time([0.1, 0.3, 0.6], [2.0, 2.0, 5.0], 4)
    assert expected_round_time([0.35, 0.05, 0.6], [2.0, 2.0, 5.0], 4) == pytest.approx(first)


def test_a_client_that_is_never_drawn_does_not_count() -> None:
    assert expected_round_time([0.0, 0.5, 0.5, 0.0], [0.1, 1.0, 3.0, 99.0], 2) == 2.5


@pytest.mark.parametrize("k", [10**4, 10**9])
def test_many_draws_keep_their_digits_near_certainty(k: int) -> None:
    # One slow client with q = 1e-12: the chance to meet it is 1 − (1 − q)^K ≈ K q.
    q = np.array([1 - 1e-12, 1e-12])
    expected = 1 + 1e6 * -np.expm1(k * np.log1p(-1e-12))
    assert expected_round_time(q, [1.0, 1e6 + 1], k) == pytest.approx(expected, rel=1e-9)


@given(st.integers(1, 20), st.integers(1, 200), seeds)
def test_rises_with_k_between_mean_and_slowest(n: int, k: int, seed: int) -> None:
    q, times = random_point(n, seed)
    value, more = (expected_round_time(q, times, each) for each in (k, k + 1))
    assert value <= more * (1 + 1e-14)
    assert mean_round_time(q, times) * (1 - 1e-13) <= value <= times[-1] * (1 + 1e-14)


@given(st.integers(2, 15), st.integers(1, 30), seeds)
def test_gradient_matches_finite_differences_along_the_simplex(n: int, k: int, seed: int) -> None:
    q, times = random_point(n, seed)
    q = 0.5 * q + 0.5 / n
    step = np.random.default_rng(seed + 1).normal(size=n)
    step = 1e-5 * (step - step.mean()) / np.abs(step).max()
    change = expected_round_time(q + step, times, k) - expected_round_time(q - step, times, k)
    assert 2 * step @ round_time_gradient(q, times, k) == pytest.approx(change, rel=1e-4, abs=1e-9)


@given(st.integers(1, 15), st.integers(1, 60), seeds)
def test_the_tangent_plane_touches_at_q_and_lies_above_elsewhere(n: int, k: int, seed: int) -> None:
    q, times = random_point(n, seed)
    cost = sorted_marginal_times(q, times, k)
    tau = cost.first + cost.excess
    assert tau @ q == pytest.approx(cost.round_time, rel=1e-11)
    assert cost.round_time == pytest.approx(sorted_round_time(q, times, k), rel=1e-13)
    assert np.all(tau >= times * (1 - 1e-11))
    for other in np.random.default_rng(seed).dirichlet(np.ones(n), size=5):
        assert tau @ other >= sorted_round_time(other, times, k) * (1 - 1e-11)


@given(st.integers(2, 10), st.integers(1, 40), seeds)
def test_marginal_times_match_the_direct_formula_in_exact_arithmetic(
    n: int, k: int, seed: int
) -> None:
    q, times = random_point(n, seed)
    exact = [Fraction(x) for x in q]
    total = sum(exact)
    cdf = list(itertools.accumulate(x / total for x in exact))
    t = [Fraction(x) for x in times]
    gradient = [
        -k * sum(cdf[i] ** (k - 1) * (t[i + 1] - t[i]) for i in range(j, n - 1)) for j in range(n)
    ]
    value = t[-1] - sum(cdf[i] ** k * (t[i + 1] - t[i]) for i in range(n - 1))
    level = value - sum(g * x / total for g, x in zip(gradient, exact, strict=True))
    cost = sorted_marginal_times(q, times, k)
    expected = [float(level + g) for g in gradient]
    assert cost.first + cost.excess == pytest.approx(expected, rel=1e-10)


def test_q_and_times_of_different_length_are_refused() -> None:
    with pytest.raises(InputError, match=r"q must have one entry per client, got 2 for 3 clients"):
        expected_round_time([0.5, 0.5], [1.0, 2.0, 3.0], 2)


@pytest.mark.parametrize(
    ("q", "message"),
    [
        ([0.5, 0.6], "q must sum to 1, got a sum of 1.1"),
        ([1.5, -0.5], "q must be at least 0, got -0.5 for client 1"),
        ([np.nan, 1.0], "q must be finite, got nan for client 0"),
    ],
)
def test_what_is_not_a_probability_vector_is_refused(q: list[float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        expected_round_time(q, [1.0, 2.0], 2)


@pytest.mark.parametrize("k", [0, -3, 1.5, "2", True, None])
def test_k_must_be_a_positive_integer(k: object) -> None:
    with pytest.raises(InputError, match="k must be"):
        expected_round_time([1.0], [1.0], k)  # type: ignore[arg-type]


def test_k_may_be_a_numpy_integer() -> None:
    fleet = random_fleet(4, 0)
    assert expected_round_time(fleet.weights, fleet.times, np.int32(3)) > 0  # type: ignore[arg-type]


@given(clients(), st.integers(1, 40))
def test_zeros_and_ties_match_theorem_2_in_exact_arithmetic(
    fleet: tuple[FloatArray, FloatArray], k: int
) -> None:
    q, times = fleet
    cdf = [Fraction(0), *itertools.accumulate(Fraction(float(x)) for x in q)]
    steps = (after**k - before**k for before, after in itertools.pairwise(cdf))
    exact = sum(step * Fraction(float(t)) for step, t in zip(steps, times, strict=True))
    assert expected_round_time(q, times, k) == pytest.approx(float(exact), rel=1e-13)


@given(clients(), many)
def test_many_draws_match_extended_precision(fleet: tuple[FloatArray, FloatArray], k: int) -> None:
    q, times = fleet
    tail = np.cumsum(q[::-1].astype(np.longdouble))[::-1][1:]
    gaps = np.diff(times.astype(np.longdouble))
    with np.errstate(divide="ignore"):
        expected = times[0] - np.expm1(k * np.log1p(-tail)) @ gaps
    assert expected_round_time(q, times, k) == pytest.approx(float(expected), rel=1e-14)


@given(clients(), st.integers(1, 50))
def test_leaving_out_who_is_never_drawn_changes_nothing(
    fleet: tuple[FloatArray, FloatArray], k: int
) -> None:
    q, times = fleet
    drawn = q > 0
    expected = expected_round_time(q[drawn], times[drawn], k)
    assert expected_round_time(q, times, k) == pytest.approx(expected, rel=1e-13)


@given(clients(), st.integers(2, 20))
def test_gradient_matches_exact_arithmetic(fleet: tuple[FloatArray, FloatArray], k: int) -> None:
    q, times = fleet
    cdf = list(itertools.accumulate(Fraction(float(x)) for x in q))
    gaps = [Fraction(float(b)) - Fraction(float(a)) for a, b in itertools.pairwise(times)]
    terms = [-k * c ** (k - 1) * gap for c, gap in zip(cdf, gaps, strict=False)]
    exact = [float(sum(terms[j:])) for j in range(q.size)]
    assert round_time_gradient(q, times, k) == pytest.approx(
        exact, rel=1e-11, abs=1e-13 * abs(exact[0])
    )


@given(st.integers(1, 20), st.integers(1, 10**6), seeds)
def test_only_probability_of_the_slowest_does_not_shorten_a_round(
    n: int, k: int, seed: int
) -> None:
    q, times = random_point(n, seed)
    order = np.random.default_rng(seed).permutation(n)
    gradient = round_time_gradient(q[order], times[order], k)
    assert gradient[np.argmax(times[order])] == 0
    assert np.all(np.diff(gradient[np.argsort(times[order])]) >= 0)


@pytest.mark.parametrize(("k", "expected"), [(1, [-1.0, 0.0]), (2, [0.0, 0.0]), (3, [0.0, 0.0])])
def test_gradient_is_finite_where_the_fastest_is_never_drawn(k: int, expected: list[float]) -> None:
    assert round_time_gradient([0.0, 1.0], [1.0, 2.0], k).tolist() == expected


@given(st.integers(1, 15), many, seeds)
def test_the_tangent_plane_touches_for_many_draws_too(n: int, k: int, seed: int) -> None:
    q, times = random_point(n, seed)
    cost = sorted_marginal_times(q, times, k)
    assert cost.first + cost.excess @ q == pytest.approx(cost.round_time, rel=1e-11)
    assert np.all(cost.first + cost.excess >= times * (1 - 1e-11))


def test_one_draw_costs_each_client_its_own_time() -> None:
    cost = sorted_marginal_times(np.array([0.25, 0.25, 0.5]), np.array([1.0, 2.0, 5.0]), 1)
    assert (cost.round_time, cost.first, cost.excess.tolist()) == (3.25, 1.0, [0.0, 1.0, 4.0])


def test_gradient_and_mean_refuse_what_the_round_time_refuses() -> None:
    with pytest.raises(InputError, match=r"times must be positive, got 0 for client 1; .*drop"):
        round_time_gradient([0.5, 0.5], [1.0, 0.0], 2)
    with pytest.raises(InputError, match=r"k must be at least 1, got 0; give 1 or more"):
        round_time_gradient([0.5, 0.5], [1.0, 2.0], 0)
    with pytest.raises(InputError, match=r"q must sum to 1, got a sum of 0\.9; divide by the sum"):
        mean_round_time([0.5, 0.4], [1.0, 2.0])
