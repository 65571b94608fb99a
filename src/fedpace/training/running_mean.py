"""The running mean of the models of asynchronous training, which is handed out beside the latest.

Steps of few updates leave noise in the latest model; in the mean most of it is gone.
"""

from __future__ import annotations

import math
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from fedpace.checks import FloatArray
from fedpace.training.backend import NO_VALUES
from fedpace.training.updates import blocks

# The mean forgets over 2C updates, or over those of this many clients.
MEMORY, FEW = 2, 5
# Models with more numbers are kept in single precision.
LARGE = 2**20
# How far above the first loss, in units of it, is far (`BaseSampler.returns_to_best`): with steps
# as the sampler plans them, and with steps by the learning rate, whose first ones may be wild.
FAR, FARTHER = 0.1, 1.0


class RunningMean(TypedDict):
    """The mean over `updates` updates, and whether it is handed out, or else the latest model.

    `compared` counts the updates since both were evaluated. `best` is the model with the `least`
    loss, where it is kept.
    """

    mean: NDArray[np.floating[Any]]
    updates: float
    handed_out: bool
    compared: int
    best: NDArray[np.floating[Any]]
    least: float


def begin_mean() -> RunningMean:
    """Return the state before the first step."""
    return RunningMean(
        mean=NO_VALUES, updates=0.0, handed_out=False, compared=0, best=NO_VALUES, least=math.inf
    )


def add_model(state: RunningMean, model: FloatArray, updates: int, at_once: int) -> RunningMean:
    """Return the state after a step of so many updates; the mean is changed in place.

    With steps of all the updates that the mean is over, it is the latest model, and is not kept.

    >>> state = begin_mean()
    >>> for value in (1.0, 2.0, 6.0):
    ...     state = add_model(state, np.array([value]), updates=1, at_once=10)
    >>> state["mean"]
    array([3.])
    """
    after = RunningMean(**{**state, "compared": state["compared"] + updates})
    most = MEMORY * max(at_once, FEW)
    if updates >= most:
        after["mean"], after["updates"], after["handed_out"] = NO_VALUES, 0.0, False
        return after
    if not state["mean"].size:
        after["mean"], after["updates"] = kept_model(model), float(updates)
        return after
    after["updates"] = min(state["updates"] + updates, most)
    mean, part = after["mean"], updates / after["updates"]
    with np.errstate(over="ignore", invalid="ignore"):
        for piece in blocks(1, mean.size):
            mean[piece] += part * (model[piece] - mean[piece])
        if not math.isfinite(mean @ mean):  # a model that was not finite would stay in it
            mean[:] = model
    return after


def kept_model(model: FloatArray) -> NDArray[np.floating[Any]]:
    """Return a copy to keep, of a large model in single precision."""
    return model.astype(np.float32 if model.size > LARGE else np.float64)


def restart_mean(state: RunningMean) -> RunningMean:
    """Return the state after going back to the best model."""
    return RunningMean(**{**state, "mean": state["best"].copy(), "updates": 1.0, "compared": 0})
