"""Arrays that no gradient moves, such as BatchNorm's running means and variances."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedpace.checks import FloatArray
from fedpace.rounds.backend import Reply
from fedpace.rounds.loop import completed
from fedpace.rounds.state import State
from fedpace.sampling.design import Draw


def weights_in(state: State, draw: Draw, reply: Reply, *, n: int) -> FloatArray:
    """Return the weights that the loop will give to the replies, made up for those missing."""
    # The loop's own rule, asked with a model of no parameters.
    nothing = reply._replace(updates=np.empty((reply.clients.size, 0)))
    return completed(state._replace(parameters=np.empty(0)), draw, nothing, n=n)[1]


def with_averaged_buffers(reply: Reply, weights: FloatArray, trained: NDArray[np.bool_]) -> Reply:
    """Let buffers become w + Σ weights_i (w_i − w) / max(1, Σ weights).

    The weights sum to 1 on average only. Where they sum to more, w + Σ weights_i (w_i − w) may lie
    beyond all w_i: a step for a parameter, but a variance may become negative and the model NaN.
    Divided by their sum, a buffer stays between w and what the clients sent. That is no longer
    unbiased; a running mean forgets the error, as it does the past.

    The updates are changed in place: they are as large as all models together.

    >>> one = np.array([1.0])
    >>> reply = Reply(np.array([0]), np.array([[4.0, -0.9]]), one, one)
    >>> with_averaged_buffers(reply, np.array([3.0]), np.array([True, False])).updates
    array([[ 4. , -0.3]])

    With weight 3 a variance of 1 becomes 1 + 3 · (−0.3) = 0.1, not 1 − 2.7.
    """
    total = float(weights.sum())
    if total > 1 and not trained.all():
        reply.updates[:, ~trained] /= total
    return reply
