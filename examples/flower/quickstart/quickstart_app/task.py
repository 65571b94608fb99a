"""The data, which every client makes itself, and a logistic regression."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
FEATURES = 5


def initial() -> list[Floats]:
    """Return weights and intercept."""
    return [np.zeros(FEATURES), np.zeros(1)]


def load_data(partition: int) -> tuple[Floats, NDArray[np.int64]]:
    """Return what a client holds."""
    rng = np.random.default_rng(partition)
    x = rng.normal(size=(40 + 20 * partition, FEATURES))
    return x, (x[:, 0] - 2 * x[:, 1] + 0.3 > 0).astype(np.int64)


def chances(weights: list[Floats], x: Floats) -> Floats:
    """Return the probability that y is 1."""
    return 1 / (1 + np.exp(-(x @ weights[0] + weights[1])))


def trained(
    weights: list[Floats], x: Floats, y: NDArray[np.int64], rate: float, steps: int
) -> list[Floats]:
    """Return the weights after some steps of gradient descent."""
    for _ in range(steps):
        off = chances(weights, x) - y
        slopes = [x.T @ off / len(y), off.mean(keepdims=True)]
        weights = [w - rate * slope for w, slope in zip(weights, slopes, strict=True)]
    return weights


def test(weights: list[Floats], x: Floats, y: NDArray[np.int64]) -> tuple[float, float]:
    """Return the mean cross-entropy and the share of samples that are right."""
    found = np.clip(chances(weights, x), 1e-12, 1 - 1e-12)
    loss = -np.where(y == 1, np.log(found), np.log(1 - found)).mean()
    return float(loss), float(((found > 0.5) == y).mean())
