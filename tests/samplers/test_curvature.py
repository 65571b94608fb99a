"""Curvature and length are measured from replies, in bounded memory."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpace.checks import FloatArray
from fedpace.samplers.curvature import (
    LARGE,
    REMEMBERED,
    SKETCH,
    Curvature,
    Sketch,
    compare_updates,
    empty_curvature,
    measured_ratio,
    update_length,
)
from fedpace.sampling.design import Draw
from fedpace.training.backend import Reply
from fedpace.training.updates import RoundUpdates

RATE = 0.1


def seen(
    clients: list[int], updates: FloatArray, model: FloatArray, *, n: int = 4, rate: float = RATE
) -> RoundUpdates:
    numbers, ones = np.array(clients), np.ones(len(clients))
    draw, reply = Draw(numbers, 0.5 * ones), Reply(numbers, updates, ones, ones)
    norms = np.linalg.norm(reply.updates / rate, axis=1)
    return RoundUpdates(model, rate, draw, reply, np.full(n, 1 / n), norms)


class Quadratic:
    """Clients F_i = ½ (w − b_i)ᵀ H (w − b_i), whose updates are −η ∇F_i."""

    def __init__(self, size: int, n: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        turn, _ = np.linalg.qr(rng.normal(size=(size, size)))
        self.values = rng.uniform(0.1, 3.0, size)
        self.hessian = turn @ np.diag(self.values) @ turn.T
        self.optima, self.n = rng.normal(size=(n, size)), n

    def updates(self, model: FloatArray, clients: list[int]) -> FloatArray:
        moved: FloatArray = -RATE * (model - self.optima[clients]) @ self.hessian
        return moved

    def trained(self, rounds: int, seed: int = 0) -> Curvature:
        rng, model, agreement = np.random.default_rng(seed), np.zeros(self.optima.shape[1]), None
        agreement = empty_curvature()
        for _ in range(rounds):
            clients = sorted(rng.choice(self.n, 2, replace=False).tolist())
            updates = self.updates(model, clients)
            agreement = compare_updates(agreement, seen(clients, updates, model, n=self.n))
            agreement = update_length(agreement, np.full(self.n, 1 / self.n))
            model = model + updates.mean(axis=0)
        return agreement


@given(size=st.integers(1, 40), n=st.integers(2, 6), seed=st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_the_curvature_lies_between_the_extreme_eigenvalues(size: int, n: int, seed: int) -> None:
    fleet = Quadratic(size, n, seed)
    agreement = fleet.trained(12)
    assert agreement["pairs"] > 0
    curvature = agreement["bend"] / agreement["moved"]
    assert fleet.values.min() * (1 - 1e-9) <= curvature <= fleet.values.max() * (1 + 1e-9)


def test_c_is_the_length_over_rate_and_curvature() -> None:
    fleet = Quadratic(1, 3, 0)
    agreement = fleet.trained(30)
    expected = agreement["length"] / (RATE * fleet.values[0])
    assert measured_ratio(agreement, RATE).c == pytest.approx(expected)


def test_the_length_is_that_of_the_mean_update() -> None:
    updates = np.array([[1.0, 0.0], [0.0, 1.0]]) * RATE
    agreement = compare_updates(empty_curvature(), seen([0, 1], updates, np.zeros(2), n=2))
    assert update_length(agreement, np.array([0.5, 0.5]))["length"] == pytest.approx(0.5)
    assert update_length(agreement, np.array([0.9, 0.1]))["length"] == pytest.approx(0.82)


def test_the_first_reply_of_a_client_is_compared_with_nothing() -> None:
    agreement = compare_updates(empty_curvature(), seen([0, 1], np.ones((2, 3)), np.ones(3)))
    assert agreement["pairs"] == 0
    assert math.isnan(measured_ratio(agreement, RATE).c)


def test_a_curvature_that_is_not_positive_bears_anything() -> None:
    agreement = empty_curvature()
    for place, update in ((0.0, 1.0), (1.0, 2.0)):  # the gradient grows along the way
        agreement = compare_updates(
            agreement, seen([0], np.array([[update]]), np.array([place]), n=1)
        )
    agreement = update_length(agreement, np.ones(1))
    assert measured_ratio(agreement, RATE) == (math.inf, 1.0)


@pytest.mark.parametrize("size", [257, 5000])
def test_sketches_keep_inner_products_on_average(size: int) -> None:
    rng = np.random.default_rng(1)
    one, other = rng.normal(size=(2, size))
    other += one
    sketch = Sketch(size)
    error = np.linalg.norm(one) * np.linalg.norm(other) / np.sqrt(SKETCH)
    assert abs(sketch(one) @ sketch(other) - one @ other) < 5 * 2**0.5 * error
    # Over many vectors in one sketch: within five standard errors.
    pairs = rng.normal(size=(400, 2, size))
    off = np.array([sketch(a) @ sketch(b) - a @ b for a, b in pairs])
    assert abs(off.mean()) < 5 * off.std(ddof=1) / np.sqrt(off.size)
    assert off.std() < 2 * size / np.sqrt(SKETCH)


@pytest.mark.parametrize("size", [1, 7, SKETCH])
def test_sketches_of_small_models_are_exact(size: int) -> None:
    one, other = np.random.default_rng(0).normal(size=(2, size))
    sketch = Sketch(size)
    assert sketch(one) @ sketch(other) == pytest.approx(one @ other)


def test_of_a_large_model_some_parameters_are_looked_at() -> None:
    size = LARGE + LARGE // 2
    vector = np.random.default_rng(0).normal(size=size)
    sketch = Sketch(size)
    assert sketch(vector) @ sketch(vector) == pytest.approx(size, rel=5 * np.sqrt(2 / SKETCH))


def test_the_same_size_always_has_the_same_sketch() -> None:
    vector = np.arange(1000.0)
    np.testing.assert_array_equal(Sketch(1000)(vector), Sketch(1000)(vector))


def test_memory_is_bounded_and_holds_the_latest() -> None:
    n, agreement = 3 * REMEMBERED, empty_curvature()
    for first in range(0, n, 64):
        clients = list(range(first, first + 64))
        agreement = compare_updates(agreement, seen(clients, np.ones((64, 3)), np.ones(3), n=n))
    np.testing.assert_array_equal(agreement["clients"], np.arange(n - REMEMBERED, n))
    assert agreement["updates"].shape == agreement["models"].shape == (REMEMBERED, SKETCH)


def test_a_client_is_remembered_once_by_its_latest() -> None:
    agreement = empty_curvature()
    for round_index in range(3):
        update = np.full((1, 2), round_index * RATE)
        agreement = compare_updates(agreement, seen([3], update, np.full(2, float(round_index))))
    np.testing.assert_array_equal(agreement["clients"], [3])
    np.testing.assert_allclose(agreement["updates"][0, :2], 2.0)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_reply_that_is_no_number_is_left_out(bad: float) -> None:
    fleet = Quadratic(4, 3, 0)
    agreement = fleet.trained(10)
    updates = np.vstack([np.full(4, bad), fleet.updates(np.ones(4), [1])])
    after = compare_updates(agreement, seen([0, 1], updates, np.ones(4), n=3))
    alone = compare_updates(agreement, seen([1], updates[1:], np.ones(4), n=3))
    assert math.isfinite(after["bend"])
    assert after["bend"] == pytest.approx(alone["bend"])


def test_a_model_that_is_no_number_teaches_nothing() -> None:
    agreement = Quadratic(4, 3, 0).trained(10)
    after = compare_updates(agreement, seen([0, 1], np.ones((2, 4)), np.full(4, math.nan), n=3))
    assert math.isfinite(after["bend"])
    assert after["pairs"] < agreement["pairs"]
