"""Arrays that no gradient moves, such as BatchNorm's running means and variances."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpace.checks import FloatArray
from fedpace.rounds.backend import Reply
from fedpace.rounds.memory import residuals
from fedpace.rounds.seen import Seen
from fedpace.rounds.server import Server
from fedpace.sampling.design import Draw


@dataclass(frozen=True, eq=False)
class Buffered:
    """Let buffers become w + Σ weights_i (w_i − w) / max(1, Σ weights); the rest is another's.

    The weights sum to 1 on average only. Where they sum to more, w + Σ weights_i (w_i − w) may lie
    beyond all w_i: a step for a parameter, but a variance may become negative and the model NaN.
    Divided by their sum, a buffer stays between w and what the clients sent. That is no longer
    unbiased; a running mean forgets the error, as it does the past. The `inner` server makes the
    entries that are `trained`. Without a barrier a parameter takes the update as it was made, but a
    buffer the way from where it is now.

    >>> from fedpace.rounds.server import Average
    >>> one = np.array([1.0])
    >>> reply = Reply(np.array([0]), np.array([[4.0, -0.9]]), one, one)
    >>> draw = Draw(np.array([0]), np.array([3.0]))
    >>> server = Buffered(Average(), np.array([True, False]))
    >>> server.apply(None, np.ones(2), draw, reply)[0].round(6)
    array([13. ,  0.1])

    With weight 3 a variance of 1 becomes 1 + 3 · (−0.3) = 0.1, not 1 − 2.7.
    """

    inner: Server
    trained: NDArray[np.bool_]

    informed = True

    def __getattr__(self, name: str) -> Any:
        """Return how the inner server weighs updates, where it does."""
        if name in ("weigh", "oldest"):
            return getattr(self.inner, name)
        raise AttributeError(name)

    def residuals(self, state: Any, seen: Seen) -> FloatArray:
        """Return what the inner server weights."""
        return residuals(self.inner, state, seen)

    def init(self, parameters: FloatArray) -> Any:
        """Return the inner server's state."""
        return self.inner.init(parameters)

    def apply(
        self,
        state: Any,
        parameters: FloatArray,
        draw: Draw,
        reply: Reply,
        *,
        seen: Seen | None = None,
    ) -> tuple[FloatArray, Any]:
        """Return the inner server's model, but for the buffers."""
        more = {"seen": seen} if getattr(self.inner, "informed", False) else {}
        after, state = self.inner.apply(state, parameters, draw, reply, **more)
        buffers = ~self.trained
        if buffers.any():  # what Adam, say, would make of a variance is no variance
            updates = _moves(parameters, reply, seen, buffers) / max(1.0, draw.weights.sum())
            after = np.where(buffers, parameters, after)
            after[buffers] += draw.weights @ updates
        return after, state


def buffered(server: Server, backend: Any) -> Server:
    """Return the server, which leaves alone what the backend says that no gradient moves."""
    trained = getattr(backend, "trained_entries", None)
    return server if trained is None else Buffered(server, trained)


def _moves(
    parameters: FloatArray, reply: Reply, seen: Seen | None, buffers: NDArray[np.bool_]
) -> FloatArray:
    """Return w_i − w; without a barrier w is newer than what the client began with."""
    moves: FloatArray = reply.updates[:, buffers]
    if seen is not None and seen.started is not None:
        moves = moves + [model[buffers] for model in seen.models] - parameters[buffers]
    return moves
