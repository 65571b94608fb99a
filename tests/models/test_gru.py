"""The GRU against its formula, and its gradient against differences."""

from typing import Any

import numpy as np
import pytest

from fedpace.models.networks import Gru


def sequences(rng: np.random.Generator, *shape: int) -> Any:
    return rng.integers(0, 5, shape)


def sigma(x: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-x)))


def by_hand(model: Gru, parameters: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """Return the scores after each token of a sequence."""
    v, h = model.tokens, model.units
    first, second = 3 * v * h, 3 * v * h + 3 * h * h
    inputs = parameters[:first].reshape(v, 3 * h)
    across = parameters[first:second].reshape(h, 3 * h)
    outputs = parameters[second:].reshape(h + 1, v)
    state, scores = np.zeros(h), []
    for token in tokens:
        (a, b, c), (u, w, x) = np.split(inputs[token], 3), np.split(across, 3, axis=1)
        r, z = sigma(a + state @ u), sigma(b + state @ w)
        state = (1 - z) * np.tanh(c + r * (state @ x)) + z * state
        scores.append(state @ outputs[:-1] + outputs[-1])
    return np.array(scores)


@pytest.fixture
def model() -> Gru:
    return Gru(tokens=5, units=3, dtype=np.float64)


def test_losses_and_accuracy_are_those_of_the_formula(model: Gru) -> None:
    rng = np.random.default_rng(0)
    parameters = 3 * model.initial(rng)
    x, y = sequences(rng, 4, 6), sequences(rng, 4, 6)
    scores = np.array([by_hand(model, parameters, each) for each in x])
    chosen = np.take_along_axis(scores, y[..., None], 2)[..., 0]
    expected = (np.log(np.exp(scores).sum(axis=2)) - chosen).mean(axis=1)
    np.testing.assert_allclose(model.losses(parameters, x, y), expected)
    right = (scores.argmax(axis=2) == y).mean(axis=1)
    np.testing.assert_allclose(model.correct(parameters, x, y), right)


def test_gradients_of_several_clients_are_those_of_differences(model: Gru) -> None:
    rng = np.random.default_rng(1)
    parameters = np.array([3 * model.initial(rng) for _ in range(2)])
    x, y = sequences(rng, 2, 3, 6), sequences(rng, 2, 3, 6)
    found = np.full_like(parameters, np.nan)
    model.gradients(parameters, x, y, found)
    for each, gradient, inputs, wanted in zip(parameters, found, x, y, strict=True):
        differences = [
            model.losses(each + 1e-6 * along, inputs, wanted).mean()
            - model.losses(each - 1e-6 * along, inputs, wanted).mean()
            for along in np.eye(model.size)
        ]
        np.testing.assert_allclose(gradient, np.array(differences) / 2e-6, atol=1e-8)


def test_large_numbers_do_not_overflow(model: Gru) -> None:
    x: Any = np.zeros((2, 3), dtype=np.int64)
    assert np.isfinite(model.losses(np.full(model.size, 1e4), x, x)).all()
