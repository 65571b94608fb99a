"""Clustered sampling draws as often as K draws with replacement do, with less variance."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpace import Profile, WithReplacement, variance_term
from fedpace.checks import FloatArray
from fedpace.conformance import check_design
from fedpace.samplers.rivals.clustered import Clustered, clustered, clustered_optimal_mean
from fedpace.sampling.schemes import needs_counts_only
from tests.sampling.fleets import random_fleet


def bins_by_hand(q: FloatArray, k: int) -> list[dict[int, float]]:
    """Pour q into k bins, one client after the other."""
    bins: list[dict[int, float]] = [{}]
    room = 1.0
    for client in np.argsort(-q, kind="stable").tolist():
        left = k * q[client]
        while left > 1e-12:
            part = min(left, room)
            bins[-1][client] = part
            left, room = left - part, room - part
            if room < 1e-12 and len(bins) < k:
                bins.append({})
                room = 1.0
    return bins


def test_the_first_clients_fill_bins_of_their_own() -> None:
    q = np.array([0.1, 0.6, 0.3])
    assert [sorted(each) for each in bins_by_hand(q, 2)] == [[1], [0, 1, 2]]
    draws = [Clustered(q, 2, q).draw(np.random.default_rng(seed)) for seed in range(200)]
    assert {tuple(draw.clients.tolist()) for draw in draws} == {(0, 1), (1,), (1, 2)}
    assert all(abs(draw.weights.sum() - 1) < 1e-12 for draw in draws)


@given(st.integers(2, 6), st.integers(1, 4), st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_mean_and_variance_and_time_by_enumeration(n: int, k: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    q, p = rng.dirichlet(np.ones(n)) * 0.9 + 0.1 / n, rng.dirichlet(np.ones(n)) * 0.9 + 0.1 / n
    q /= q.sum()
    p /= p.sum()
    values, times = rng.normal(size=n), rng.exponential(size=n) + 0.1
    bins = bins_by_hand(q, k)
    mean, square, slowest, weights = 0.0, 0.0, 0.0, np.zeros(n)
    for choice in itertools.product(*(each.items() for each in bins)):
        chance = float(np.prod([part for _, part in choice]))
        got = sum(p[i] / (k * q[i]) * values[i] for i, _ in choice)
        mean, square = mean + chance * got, square + chance * got**2
        slowest += chance * max(times[i] for i, _ in choice)
        for i, _ in choice:
            weights[i] += chance * p[i] / (k * q[i])
    np.testing.assert_allclose(weights, p, atol=1e-9)
    np.testing.assert_allclose(mean, p @ values, atol=1e-9)
    multinomial = (np.sum(p**2 / q * values**2) - (p @ values) ** 2) / k
    assert square - mean**2 <= multinomial + 1e-9
    design = Clustered(q, k, p)
    np.testing.assert_allclose(design.expected_round_time(times), slowest, rtol=1e-7)


@pytest.mark.parametrize("scheme", [clustered, clustered_optimal_mean])
def test_keeps_what_every_design_promises(scheme: object) -> None:
    check_design(scheme)  # type: ignore[arg-type]


def test_the_variance_term_and_the_largest_weight_are_those_of_the_draws_with_replacement() -> None:
    profile = Profile(*random_fleet(7, 0))
    design = clustered_optimal_mean(profile, 3, max_weight=2.0)
    assert isinstance(design, Clustered)
    assert design.solution is not None
    inner = WithReplacement(design.q, 3, profile.weights)
    assert design.largest_weight == inner.largest_weight <= 2.0 + 1e-9
    expected = variance_term(design.q, profile.weights, profile.grad_norms)
    assert design.variance_term(profile) == expected


def test_data_sizes_alone_are_enough_for_the_paper_s_own() -> None:
    assert needs_counts_only(clustered)
    assert not needs_counts_only(clustered_optimal_mean)
