"""Multinomial logistic regression."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpace.checks import AnyFloats, FloatArray
from fedpace.models.model import BaseModel
from fedpace.models.networks import Logistic

UNIT = 2.0**-24  # the largest relative error of one operation in float32


def mean_loss(model: Logistic, parameters: FloatArray, raw: FloatArray, y: np.ndarray) -> float:
    return float(model.losses(parameters, model.prepare_whole(raw), y).mean())


def gradient(model: Logistic, parameters: AnyFloats, raw: FloatArray, y: np.ndarray) -> FloatArray:
    """Return the gradients of m clients whose inputs are (m, batch, features)."""
    out = np.empty((len(y), model.size), dtype=model.dtype)
    x = np.stack([model.prepare(each) for each in raw])
    model.gradients(parameters.astype(model.dtype), x, y, out)
    return out.astype(np.float64)


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
    y = rng.integers(classes, size=(clients, batch))
    exact = gradient(model, parameters, x, y)
    step = 1e-6
    for i in range(clients):
        for j in range(model.size):
            unit = np.eye(model.size)[j] * step
            up = mean_loss(model, parameters[i] + unit, x[i], y[i])
            down = mean_loss(model, parameters[i] - unit, x[i], y[i])
            assert exact[i, j] == pytest.approx((up - down) / (2 * step), abs=1e-8)


def test_the_loss_is_minus_the_logarithm_of_the_softmax() -> None:
    rng = np.random.default_rng(1)
    model = Logistic(features=3, classes=4)
    parameters, raw = rng.normal(size=model.size), rng.normal(size=(20, 3))
    y = rng.integers(4, size=20)
    x = model.prepare_whole(raw)
    loss, right = model.losses(parameters, x, y), model.correct(parameters, x, y)
    table = parameters.reshape(4, 4)
    for i in range(20):
        scores = [float(table[c, :3] @ raw[i] + table[c, 3]) for c in range(4)]
        chance = math.exp(scores[y[i]]) / sum(math.exp(score) for score in scores)
        assert loss[i] == pytest.approx(-math.log(chance), rel=1e-12)
        assert right[i] == (scores[y[i]] == max(scores))


def test_initial_parameters_are_zero_and_every_class_equally_likely() -> None:
    model = Logistic(features=3, classes=5)
    start = model.initial(np.random.default_rng(0))
    x, y = model.prepare_whole(np.ones((2, 3))), np.array([0, 4])
    loss, right = model.losses(start, x, y), model.correct(start, x, y)
    assert start.shape == (model.size,)
    np.testing.assert_allclose(loss, math.log(5))
    assert right.tolist() == [True, False]  # ties go to the first class


def test_huge_scores_neither_overflow_nor_turn_to_nan() -> None:
    model = Logistic(features=1, classes=3)
    parameters = np.array([1e200, 0.0, -1e200, 0.0, 0.0, 0.0])
    raw = np.array([[1.0], [-1.0]])
    x = model.prepare_whole(raw)
    loss = model.losses(parameters, x, np.array([0, 0]))
    right = model.correct(parameters, x, np.array([0, 0]))
    np.testing.assert_array_equal(loss, [0.0, 2e200])
    np.testing.assert_array_equal(right, [True, False])
    slope = gradient(model, parameters[None], raw[None], np.array([[0, 0]]))
    # The first sample is right beyond doubt; the second is class 1 beyond doubt and should be 0.
    np.testing.assert_array_equal(slope, [[0.5, -0.5, -0.5, 0.5, 0, 0]])


def test_adding_the_same_to_all_scores_does_not_change_the_loss() -> None:
    model = Logistic(features=1, classes=2)
    x, y = np.array([[1.0]]), np.array([0])
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
    x, y = rng.normal(size=(4, 6, 3)), rng.integers(3, size=(4, 6))
    together = gradient(model, parameters, x, y)
    for i in range(4):
        alone = gradient(model, parameters[i : i + 1], x[i : i + 1], y[i : i + 1])
        np.testing.assert_allclose(together[i], alone[0], rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_prepared_inputs_have_a_constant_feature_and_the_models_precision(
    dtype: type[np.floating[Any]],
) -> None:
    model: BaseModel = Logistic(features=2, classes=2, dtype=dtype)
    rows = model.prepare(np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]))
    whole = model.prepare_whole(np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]))
    np.testing.assert_array_equal(rows, [[1, 2, 1], [3, 4, 1], [5, 6, 1]])
    np.testing.assert_array_equal(whole, rows.T)
    assert rows.dtype == whole.dtype == model.dtype == dtype


@settings(max_examples=50)
@given(
    batch=st.integers(1, 30),
    features=st.integers(1, 60),
    classes=st.integers(2, 10),
    scale=st.sampled_from([0.01, 1.0, 10.0]),
    seed=st.integers(0, 1000),
)
def test_single_precision_differs_from_double_by_rounding_alone(
    batch: int, features: int, classes: int, scale: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    single, double = Logistic(features, classes, np.float32), Logistic(features, classes)
    # Numbers that both hold exactly, so that nothing but the arithmetic differs.
    parameters = (scale * rng.normal(size=(1, single.size))).astype(np.float32)
    raw = rng.normal(size=(1, batch, features)).astype(np.float32).astype(np.float64)
    y = rng.integers(classes, size=(1, batch))
    # A score is a sum of features + 1 products; its error is at most so many roundings of the sum
    # of their sizes. Losses and chances change at most twice as much as scores do, plus a rounding
    # for each class that is added up.
    products = np.abs(parameters.reshape(classes, -1)).astype(np.float64) @ np.abs(
        double.prepare_whole(raw[0])
    )
    bound = 2 * UNIT * (features + classes + 4) * (1 + products.max())
    got, exact = (
        model.losses(parameters[0].astype(np.float64), model.prepare_whole(raw[0]), y[0])
        for model in (single, double)
    )
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, exact, rtol=0, atol=bound)
    largest = max(1.0, float(np.abs(raw).max()))
    np.testing.assert_allclose(
        gradient(single, parameters, raw, y),
        gradient(double, parameters, raw, y),
        rtol=0,
        atol=(bound + 2 * UNIT * batch) * largest,  # and the mean over the batch
    )


def test_huge_scores_stay_finite_in_single_precision_too() -> None:
    model = Logistic(features=1, classes=3, dtype=np.float32)
    parameters = np.array([1e30, 0.0, -1e30, 0.0, 0.0, 0.0])
    raw = np.array([[1.0], [-1.0]])
    loss = model.losses(parameters, model.prepare_whole(raw), np.array([0, 0]))
    np.testing.assert_allclose(loss, [0.0, 2e30], rtol=4 * UNIT)
    slope = gradient(model, parameters[None], raw[None], np.array([[0, 0]]))
    np.testing.assert_array_equal(slope, [[0.5, -0.5, -0.5, 0.5, 0, 0]])
