"""Optimisers of clients, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from fedpace.errors import InputError, nearest
from fedpace.models.model import AnyFloats

# Returns the step of each client from its gradient, (m, P); it has state.
Descent: TypeAlias = Callable[[AnyFloats], AnyFloats]

SGD = "sgd"
NAMES = (SGD, "momentum:BETA", "adam")


def optimiser_named(name: str) -> Descent | None:
    """Return a new optimiser; None for plain SGD, whose step is the gradient.

    >>> step = optimiser_named("momentum:0.5")
    >>> [float(step(np.ones((1, 1)))[0, 0]) for _ in range(3)]
    [1.0, 1.5, 1.75]
    """
    kind, colon, value = name.partition(":")
    if name == SGD:
        return None
    if name == "adam":
        return _Adam()
    try:
        beta = float(value) if colon else 0.9
    except ValueError:
        beta = np.nan
    if kind == "momentum" and 0 <= beta < 1:
        return _Momentum(beta)
    known = "write momentum:0.9" if kind == "momentum" else nearest(kind, NAMES)
    raise InputError(f"optimiser must be {', '.join(NAMES)}, got '{name}'; {known}")


class _Momentum:
    """v ← β v + g; the step is v, as in PyTorch."""

    def __init__(self, beta: float) -> None:
        self._beta = beta
        self._velocity: AnyFloats | None = None

    def __call__(self, gradient: AnyFloats) -> AnyFloats:
        before = self._velocity
        self._velocity = gradient.copy() if before is None else self._beta * before + gradient
        return self._velocity


class _Adam:
    """m / (√v + ε), both corrected for their start at zero [Kingma15]."""

    def __init__(self, first: float = 0.9, second: float = 0.999, least: float = 1e-8) -> None:
        self._first, self._second, self._least = first, second, least
        self._mean: AnyFloats | None = None
        self._square: AnyFloats | None = None
        self._steps = 0

    def __call__(self, gradient: AnyFloats) -> AnyFloats:
        self._steps += 1
        if self._mean is None or self._square is None:
            self._mean, self._square = np.zeros_like(gradient), np.zeros_like(gradient)
        self._mean += (1 - self._first) * (gradient - self._mean)
        self._square += (1 - self._second) * (gradient**2 - self._square)
        mean = self._mean / (1 - self._first**self._steps)
        deviation = np.sqrt(self._square / (1 - self._second**self._steps))
        step: AnyFloats = mean / (deviation + self._least)
        return step
