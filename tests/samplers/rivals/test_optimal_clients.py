"""Optimal client sampling against its formula, a general solver, and the clock."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpace.checks import FloatArray
from fedpace.samplers.rivals.candidates import (
    OptimalClients,
    approximate_inclusion,
    optimal_inclusion,
)
from fedpace.sampling.design import Draw
from fedpace.seeds import Seeds
from fedpace.times.round_times import Steady
from fedpace.training.backend import Reply
from fedpace.training.stopping import Stop, constant
from fedpace.training.train import train
from tests.training.fakes import LARGER, small_simulator


def test_by_hand() -> None:
    # m = 2 of n = 4: with l = 4, places 2 and u_4 · 2 = 18 > Σ = 12; with l = 3, 1 · 1 ≤ 3.
    np.testing.assert_allclose(
        optimal_inclusion(np.array([9.0, 1, 1, 1]), 2), [1, 1 / 3, 1 / 3, 1 / 3]
    )
    np.testing.assert_allclose(optimal_inclusion(np.array([1.0, 2, 3]), 1), [1 / 6, 1 / 3, 1 / 2])
    np.testing.assert_allclose(optimal_inclusion(np.zeros(4), 2), 0.5)
    np.testing.assert_allclose(approximate_inclusion(np.zeros(4), 2), 0.5)
    assert optimal_inclusion(np.array([1.0, 5.0]), 3).tolist() == [1, 1]


def bisected(norms: FloatArray, m: int) -> FloatArray:
    """Minimise Σ u²/π for Σ π = m, π ≤ 1: π = min(1, u/λ), by bisection on λ."""
    low, high = 1e-12, 1e6
    for _ in range(200):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if np.minimum(1, norms / middle).sum() > m else (low, middle)
    return np.minimum(1, norms / low)


@given(st.lists(st.floats(0.01, 100), min_size=2, max_size=9), st.integers(1, 8))
@settings(max_examples=100, deadline=None)
def test_both_are_what_a_general_solver_finds(values: list[float], m: int) -> None:
    norms = np.array(values)
    m = min(m, norms.size - 1)
    exact = optimal_inclusion(norms, m)
    assert exact.sum() == pytest.approx(m)
    np.testing.assert_allclose(exact, bisected(norms, m), atol=1e-6)
    near = approximate_inclusion(norms, m)
    assert near.sum() <= m + 1e-9
    assert (near <= 1).all()


def test_who_sends_is_weighted_so_that_the_mean_is_everyone_s() -> None:
    rng = np.random.default_rng(0)
    p = np.array([0.5, 0.2, 0.2, 0.1])
    reply = Reply(np.arange(4), rng.normal(size=(4, 3)), np.ones(4), np.ones(4))
    draws = 4000
    for approximate in (False, True):
        sampler = OptimalClients(2, approximate=approximate)
        sums, squares = np.zeros(4), np.zeros(4)
        for _ in range(draws):
            sent = sampler.choose(None, Draw(np.arange(4), p), reply, rng)
            weights = np.zeros(4)
            weights[sent.clients] = sent.weights
            sums, squares = sums + weights, squares + weights**2
        mean = sums / draws
        error = np.sqrt((squares / draws - mean**2) / draws)
        assert (np.abs(mean - p) <= 5 * error + 1e-12).all()


def test_all_compute_and_only_uploads_are_saved() -> None:
    backend = small_simulator(times=Steady(LARGER))
    how: dict[str, Any] = {"schedule": constant(0.1), "stop": Stop(rounds=6), "seeds": Seeds(2)}
    outcome = train(backend, OptimalClients(2), **how)
    sent = [each.clients.size for each in outcome.history.rows[1:]]
    assert 0 < min(sent) < 6
    for each in outcome.history.rows[1:]:
        assert each.round_seconds == LARGER.max()
        assert each.device_seconds == pytest.approx(LARGER.sum())
        others = LARGER.sum() - LARGER[each.clients].sum()
        assert each.wasted_seconds == pytest.approx(others)
        assert each.traffic_up == 4 * backend.model.size * each.clients.size
        assert each.traffic_down == 4 * backend.model.size * 6
        assert not each.missing.size


def test_an_update_that_is_no_number_is_not_sent() -> None:
    updates = np.array([[1.0], [np.nan]])
    reply = Reply(np.arange(2), updates, np.ones(2), np.ones(2))
    draw = Draw(np.arange(2), np.full(2, 0.5))
    sent = OptimalClients(1).choose(None, draw, reply, np.random.default_rng(0))
    assert sent.clients.tolist() == [0]
