"""FedAvg one client, one step, one sample and one number at a time: slow, and easy to believe.

Parameters are a flat list, class after class: the weights of a class, then its intercept.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

Samples = tuple[list[list[float]], list[int]]


class Participant(NamedTuple):
    """A drawn client, and what its update weighs."""

    client: int
    weight: float


class Local(NamedTuple):
    """A client's model after its local steps, and the squared norm of each step's gradient."""

    parameters: list[float]
    squares: list[float]


def weight(times_drawn: int, p: float, q: float, k: int) -> float:
    """Return m p / (K q)."""
    return times_drawn * p / (k * q)


def chances(parameters: Sequence[float], x: Sequence[float], classes: int) -> list[float]:
    """Return softmax(W x + b)."""
    width = len(x) + 1
    scores = []
    for c in range(classes):
        score = parameters[c * width + len(x)]
        for j, feature in enumerate(x):
            score += parameters[c * width + j] * feature
        scores.append(score)
    exponentials = [math.exp(score) for score in scores]
    return [each / sum(exponentials) for each in exponentials]


def loss(parameters: Sequence[float], clients: Sequence[Samples], classes: int) -> float:
    """Return F(w) = Σ p_i F_i(w), F_i the mean of −log softmax(W x + b)[y]."""
    total = sum(len(ys) for _, ys in clients)
    result = 0.0
    for xs, ys in clients:
        mean = 0.0
        for x, y in zip(xs, ys, strict=True):
            mean -= math.log(chances(parameters, x, classes)[y]) / len(ys)
        result += len(ys) / total * mean
    return result


def local_sgd(
    parameters: Sequence[float],
    samples: Samples,
    steps: Sequence[Sequence[int]],
    *,
    classes: int,
    rate: float,
    weight_decay: float,
    clip: float | None,
) -> Local:
    """Run one local step per batch; a batch is a list of the client's own sample numbers."""
    xs, ys = samples
    width = len(xs[0]) + 1
    w = list(parameters)
    squares = []
    for batch in steps:
        gradient = [0.0] * len(w)
        for row in batch:
            x = [*xs[row], 1.0]
            for c, chance in enumerate(chances(w, xs[row], classes)):
                error = chance - (1.0 if c == ys[row] else 0.0)
                for j in range(width):
                    gradient[c * width + j] += error * x[j] / len(batch)
        square = sum(entry * entry for entry in gradient)
        squares.append(square)
        factor = 1.0
        if clip is not None and math.sqrt(square) > clip:
            factor = clip / math.sqrt(square)
        for j in range(len(w)):
            w[j] -= rate * (factor * gradient[j] + weight_decay * w[j])
    return Local(w, squares)


def fedavg(
    parameters: Sequence[float],
    clients: Sequence[Samples],
    rounds: Sequence[Sequence[Participant]],
    *,
    batches: Callable[[int, int], Sequence[Sequence[int]]],
    schedule: Callable[[int], float],
    classes: int,
    weight_decay: float = 0.0,
    clip: float | None = None,
) -> list[list[float]]:
    """Return the model after each round: w ← w + Σ weight_i (w_i − w)."""
    w = list(parameters)
    models = []
    for r, participants in enumerate(rounds):
        change = [0.0] * len(w)
        for participant in participants:
            local = local_sgd(
                w,
                clients[participant.client],
                batches(r, participant.client),
                classes=classes,
                rate=schedule(r),
                weight_decay=weight_decay,
                clip=clip,
            )
            for j in range(len(w)):
                change[j] += participant.weight * (local.parameters[j] - w[j])
        w = [old + step for old, step in zip(w, change, strict=True)]
        models.append(w)
    return models
