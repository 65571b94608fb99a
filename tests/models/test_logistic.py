"""Multinomial logistic regression."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpace.models.logistic import Logistic
from fedpace.profile import FloatArray


def mean_loss(model: Logistic, parameters: FloatArray, x: FloatArray, y: np.ndarray) -> float:
    return float(model.losses(parameters, x, y).mean())


def gradient(model: Logistic, parameters: FloatArray, x: FloatArray, y: np.ndarray) -> FloatArray:
    out = np.empty_like(parameters)
    model.gradients(parameters, x, y, out)
    return out


@settings(max_examples=30)
@given(
    clients=st.integers(1, 4),
    batch=st.integers(1, 5),
    features=st.integers(1, 4),
    classes=st.integers(2, 4),
    seed=st.integers(0, 1000),
)
def test_gradients_match_finite_differences_of_the_loss(
    clients: int, batch: int, features: int, classes: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    model = Logistic(features, classes)
    parameters = rng.normal(size=(clients, model.size))
    x = rng.normal(size=(clients, batch, features))
    x = np.stack([model.prepared(each) for each in x])
    y = rng.integers(classes, size=(clients, batch))
    exact = gradient(model, parameters, x, y)
    step = 1e-6
    for i in range(clients):
        for j in range(model.size):
            unit = np.eye(model.size)[j] * step
            up = mean_loss(model, parameters[i] + unit, x[i], y[i])
            down = mean_loss(model, parameters[i] - unit, x[i], y[i])
            assert exact[i, j] == pytest.approx((up - down) / (2 * step), abs=1e-8)


def test_evaluate_is_minus_the_logarithm_of_the_softmax() -> None:
    rng = np.random.default_rng(1)
    model = Logistic(features=3, classes=4)
    parameters, raw = rng.normal(size=model.size), rng.normal(size=(20, 3))
    y = rng.integers(4, size=20)
    loss = model.losses(parameters, model.prepared(raw), y)
    right = model.correct(parameters, model.prepared(raw), y)
    table = parameters.reshape(4, 4)
    for i in range(20):
        scores = [float(table[c, :3] @ raw[i] + table[c, 3]) for c in range(4)]
        chance = math.exp(scores[y[i]]) / sum(math.exp(score) for score in scores)
        assert loss[i] == pytest.approx(-math.log(chance), rel=1e-12)
        assert right[i] == (scores[y[i]] == max(scores))


def test_initial_parameters_are_zero_and_every_class_equally_likely() -> None:
    model = Logistic(features=3, classes=5)
    start = model.initial(np.random.default_rng(0))
    x, y = model.prepared(np.ones((2, 3))), np.array([0, 4])
    loss, right = model.losses(start, x, y), model.correct(start, x, y)
    assert start.shape == (model.size,)
    np.testing.assert_allclose(loss, math.log(5))
    assert right.tolist() == [True, False]  # ties go to the first class


def test_huge_scores_neither_overflow_nor_turn_to_nan() -> None:
    model = Logistic(features=1, classes=3)
    parameters = np.array([1e200, 0.0, -1e200, 0.0, 0.0, 0.0])
    x = model.prepared(np.array([[1.0], [-1.0]]))
    loss = model.losses(parameters, x, np.array([0, 0]))
    right = model.correct(parameters, x, np.array([0, 0]))
    np.testing.assert_array_equal(loss, [0.0, 2e200])
    np.testing.assert_array_equal(right, [True, False])
    slope = gradient(model, parameters[None], x[None], np.array([[0, 0]]))
    # The first sample is right beyond doubt; the second is class 1 beyond doubt and should be 0.
    np.testing.assert_array_equal(slope, [[0.5, -0.5, -0.5, 0.5, 0, 0]])


def test_adding_the_same_to_all_scores_does_not_change_the_loss() -> None:
    model = Logistic(features=1, classes=2)
    x, y = model.prepared(np.array([[1.0]])), np.array([0])
    near = np.array([2.0, 0.0, 0.0, 0.0])
    far = near + np.array([0.0, 2.0**40, 0.0, 2.0**40])  # exact in float64
    expected = math.log1p(math.exp(-2))
    assert mean_loss(model, near, x, y) == pytest.approx(expected, rel=1e-12)
    assert mean_loss(model, far, x, y) == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(
        gradient(model, far[None], x[None], y[None]),
        gradient(model, near[None], x[None], y[None]),
        rtol=1e-12,
    )


def test_what_one_client_holds_does_not_change_the_gradient_of_another() -> None:
    rng = np.random.default_rng(2)
    model = Logistic(features=3, classes=3)
    parameters = rng.normal(size=(4, model.size))
    x, y = rng.normal(size=(4, 6, 4)), rng.integers(3, size=(4, 6))
    together = gradient(model, parameters, x, y)
    for i in range(4):
        alone = gradient(model, parameters[i : i + 1], x[i : i + 1], y[i : i + 1])
        np.testing.assert_allclose(together[i], alone[0], rtol=1e-12, atol=1e-15)
