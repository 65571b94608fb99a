"""Parameters that no gradient moves, such as BatchNorm's running means and variances."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpace.checks import FloatArray, IntArray
from fedpace.training.backend import BaseBackend
from fedpace.training.server import BaseServer
from fedpace.training.updates import RoundUpdates


@dataclass(frozen=True, eq=False)
class AverageBuffers(BaseServer):
    """Set buffers to w + Σ weights_i (w_i − w) / max(1, Σ weights); another server does the rest.

    The weights sum to 1 on average only. Where they sum to more, w + Σ weights_i (w_i − w) may lie
    beyond all w_i: a step for a parameter, but a variance may become negative and the model NaN.
    Divided by their sum, a buffer stays between w and what the clients sent. That is no longer
    unbiased; a running mean forgets the error, as it does the past. The `inner` server makes the
    entries that are `trained`. In asynchronous training a parameter takes the update as it was
    made, but a buffer moves from its current value.

    >>> from fedpace.sampling.design import Draw
    >>> from fedpace.training.backend import Reply
    >>> one = np.array([1.0])
    >>> reply = Reply(np.array([0]), np.array([[4.0, -0.9]]), one, one)
    >>> updates = RoundUpdates(np.ones(2), 1.0, Draw(np.array([0]), np.array([3.0])), reply, one)
    >>> AverageBuffers(BaseServer(), np.array([True, False])).step(None, updates)[0].round(6)
    array([13. ,  0.1])

    With weight 3 a variance of 1 becomes 1 + 3 · (−0.3) = 0.1, not 1 − 2.7.
    """

    inner: BaseServer
    trained: NDArray[np.bool_]
    _buffers: IntArray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "oldest", self.inner.oldest)
        object.__setattr__(self, "needs_rounds", self.inner.needs_rounds)
        object.__setattr__(self, "_buffers", np.flatnonzero(~self.trained))

    def init(self, parameters: FloatArray) -> Any:
        """Return the inner server's state."""
        return self.inner.init(parameters)

    def weigh(self, updates: RoundUpdates) -> FloatArray:
        """Return the inner server's weights."""
        return self.inner.weigh(updates)

    def residual_norms(self, state: Any, updates: RoundUpdates) -> FloatArray:
        """Return the lengths of what the inner server weights."""
        return self.inner.residual_norms(state, updates)

    def step(self, state: Any, updates: RoundUpdates) -> tuple[FloatArray, Any]:
        """Return the inner server's model, but for the buffers."""
        after, state = self.inner.step(state, updates)
        buffers, weights = self._buffers, updates.draw.weights
        if buffers.size:  # Adam, for one, would not keep a variance positive
            moves = _moves(updates, buffers) / max(1.0, weights.sum())
            after = after.copy() if after is updates.parameters else after
            after[buffers] = updates.parameters[buffers] + weights @ moves
        return after, state


def keep_buffers(server: BaseServer, backend: BaseBackend) -> BaseServer:
    """Return the server, which averages what the backend marks as not trained."""
    trained = backend.trained_entries
    return server if trained is None else AverageBuffers(server, trained)


def _moves(updates: RoundUpdates, buffers: IntArray) -> FloatArray:
    """Return w_i − w; in asynchronous training w is newer than the client's start."""
    moves = updates.reply.updates[:, buffers].astype(np.float64)
    if updates.started is not None:
        moves = moves + [model[buffers] for model in updates.models] - updates.parameters[buffers]
    return moves
