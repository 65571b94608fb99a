"""Uniform sampling as the paper's published code does it."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpace import InputError, Profile
from fedpace.sampling.design import Published
from fedpace.sampling.schemes import SCHEMES, VARIANTS

WEIGHTS = np.array([0.4, 0.3, 0.2, 0.1])


@given(
    times=st.lists(st.floats(0.1, 100), min_size=1, max_size=7),
    k=st.integers(1, 9),
)
def test_expected_round_time_matches_enumeration_of_all_subsets(times: list[float], k: int) -> None:
    n = len(times)
    design = Published(k, np.full(n, 1 / n))
    subsets = list(combinations(times, min(k, n)))
    expected = sum(max(subset) for subset in subsets) / len(subsets)
    assert design.expected_round_time(times) == pytest.approx(expected, rel=1e-10)


def test_the_fleet_of_a_hundred_thousand_is_as_quick_as_it_is_exact() -> None:
    times = np.linspace(1, 2, 100_000)
    design = Published(100, np.full(100_000, 1e-5))
    # The slowest of K of a ladder of n steps stands at K (n + 1)/(K + 1) on average.
    step = 1 / 99_999
    expected = 1 + step * (100 * 100_001 / 101 - 1)
    assert design.expected_round_time(times) == pytest.approx(expected, rel=1e-9)


def test_everyone_is_drawn_where_k_is_the_whole_fleet_or_more() -> None:
    for k in (4, 9):
        design = Published(k, WEIGHTS)
        draw = design.draw(np.random.default_rng(0))
        assert draw.clients.tolist() == [0, 1, 2, 3]
        assert design.expected_round_time([1, 2, 3, 9]) == 9


def test_updates_are_averaged_plainly_and_rates_scaled_by_n_times_the_share() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        draw = Published(3, WEIGHTS).draw(rng)
        assert draw.clients.tolist() == sorted(set(draw.clients.tolist()))
        np.testing.assert_allclose(draw.weights, [1 / 3] * 3)
        assert draw.rates is not None
        np.testing.assert_allclose(draw.rates, 4 * WEIGHTS[draw.clients])


def test_every_subset_is_as_likely_as_any_other() -> None:
    rng, design, count = np.random.default_rng(3), Published(2, WEIGHTS), 6000
    seen = dict.fromkeys(combinations(range(4), 2), 0)
    for _ in range(count):
        first, second = design.draw(rng).clients.tolist()
        seen[first, second] += 1
    for times in seen.values():
        assert abs(times - count / 6) < 5 * np.sqrt(count * 1 / 6 * 5 / 6)


def test_to_first_order_a_round_is_unbiased_for_full_participation() -> None:
    # An update is proportional to the rate to first order: weight times rate must average to p.
    subsets = list(combinations(range(4), 2))
    effect = np.zeros(4)
    for subset in subsets:
        effect[list(subset)] += 1 / 2 * 4 * WEIGHTS[list(subset)] / len(subsets)
    np.testing.assert_allclose(effect, WEIGHTS)


def test_the_variance_term_is_that_of_uniform_sampling() -> None:
    profile = Profile(WEIGHTS, [1, 2, 3, 4], [2, 1, 1, 3])
    expected = SCHEMES["uniform"](profile, 2).variance_term(profile)
    assert Published(2, WEIGHTS).variance_term(profile) == pytest.approx(expected)


def test_the_largest_weight_is_n_p_over_k() -> None:
    assert Published(2, WEIGHTS).largest_weight == pytest.approx(4 * 0.4 / 2)


def test_it_goes_by_its_own_name_and_is_not_among_the_schemes_compared() -> None:
    profile = Profile(WEIGHTS, [1, 2, 3, 4], [2, 1, 1, 3])
    design = VARIANTS["uniform-published"](profile, 3)
    assert isinstance(design, Published)
    assert design.k == 3
    assert "uniform-published" not in SCHEMES


@pytest.mark.parametrize("k", [0, -1, 1.5, True])
def test_refuses_k_that_is_no_count(k: int) -> None:
    with pytest.raises(InputError, match="k must be"):
        Published(k, WEIGHTS)


def test_refuses_weights_that_are_not_positive() -> None:
    with pytest.raises(InputError, match=r"weights must be positive, got 0 for client 1; "):
        Published(1, [1.0, 0.0])
