"""Multinomial logistic regression in NumPy."""

import numpy as np
from numpy.typing import NDArray

FEATURES, CLASSES = 60, 10
Floats = NDArray[np.float64]
Labels = NDArray[np.int64]


def initial() -> list[Floats]:
    """Return weights and intercepts."""
    return [np.zeros((FEATURES, CLASSES)), np.zeros(CLASSES)]


def gradients(weights: list[Floats], x: Floats, y: Labels) -> list[Floats]:
    """Return the gradient of the mean cross-entropy."""
    residual = np.exp(_log_chances(weights, x))
    residual[np.arange(len(y)), y] -= 1
    return [x.T @ residual / len(y), residual.mean(axis=0)]


def loss_and_accuracy(weights: list[Floats], x: Floats, y: Labels) -> tuple[float, float]:
    """Return the mean cross-entropy, and the share of samples that are right."""
    chances = _log_chances(weights, x)
    right = chances.argmax(axis=1) == y
    return float(-chances[np.arange(len(y)), y].mean()), float(right.mean())


def _log_chances(weights: list[Floats], x: Floats) -> Floats:
    scores = x @ weights[0] + weights[1]
    scores -= scores.max(axis=1, keepdims=True)
    chances: Floats = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    return chances
