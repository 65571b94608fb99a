"""The data, which every client makes itself, and the model."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FEATURES, CLASSES = 20, 5
Floats = NDArray[np.float64]


def samples(partition: int) -> tuple[Floats, NDArray[np.int64]]:
    """Return what a client holds: few clients hold much, and each knows two classes only."""
    rng = np.random.default_rng((1, partition))
    centres = np.random.default_rng(0).normal(size=(CLASSES, FEATURES))
    size = int(60 + 400 / (1 + partition))
    y = rng.choice(rng.choice(CLASSES, 2, replace=False), size=size)
    return centres[y] + rng.normal(size=(size, FEATURES)), y


def initial() -> list[Floats]:
    """Return weights and intercepts."""
    return [np.zeros((FEATURES, CLASSES)), np.zeros(CLASSES)]


def probabilities(weights: list[Floats], x: Floats) -> Floats:
    """Return the probability of each class."""
    scores = x @ weights[0] + weights[1]
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    return scores / scores.sum(axis=1, keepdims=True)


def loss_and_accuracy(
    weights: list[Floats], x: Floats, y: NDArray[np.int64]
) -> tuple[float, float]:
    """Return the mean cross-entropy and the share of samples that are right."""
    chances = probabilities(weights, x)
    loss = -np.log(np.maximum(chances[np.arange(len(y)), y], 1e-300)).mean()
    return float(loss), float((chances.argmax(axis=1) == y).mean())


def gradients(weights: list[Floats], x: Floats, y: NDArray[np.int64]) -> list[Floats]:
    """Return the gradient of the mean cross-entropy."""
    residual = probabilities(weights, x)
    residual[np.arange(len(y)), y] -= 1
    return [x.T @ residual / len(y), residual.mean(axis=0)]
