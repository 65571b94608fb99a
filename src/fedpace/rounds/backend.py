"""Where local training happens, and what comes back."""

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fedpace.checks import FloatArray, IntArray
from fedpace.sampling.design import Draw

NOBODY: IntArray = np.empty(0, dtype=np.int64)
NOTHING: FloatArray = np.empty(0)


class Reply(NamedTuple):
    """What this round's clients sent back, one entry per client that answered, ascending.

    `updates` are w_i − w, of shape (m, P); `seconds` run from sending to arrival; `grad_norms`
    are the root mean square norms of the stochastic gradients over the local steps, which is what
    G_i bounds. The rest is known where a network lies between, and empty otherwise: `losses`
    F_i(w) of the model that was sent; `computing_seconds` of the `seconds`; bytes that crossed.

    A drawn client that is not among `clients` is missing. `refused` are those of them whose reply
    came but was not accepted. `waited` says how long the round lasted where that is not the
    slowest reply.
    """

    clients: IntArray
    updates: FloatArray
    seconds: FloatArray
    grad_norms: FloatArray
    losses: FloatArray = NOTHING
    computing_seconds: FloatArray = NOTHING
    bytes_down: IntArray = NOBODY
    bytes_up: IntArray = NOBODY
    refused: IntArray = NOBODY
    waited: float | None = None


class Evaluation(NamedTuple):
    """The global loss F(w) = Σ p_i F_i(w), and the accuracy on what clients held back."""

    loss: float
    accuracy: float


class Backend(Protocol):
    """Trains the drawn clients, says how long each took, and evaluates the model."""

    @property
    def weights(self) -> FloatArray:
        """p_i."""

    @property
    def usual_times(self) -> FloatArray | None:
        """t_i as known before training, in seconds; None where they must be measured."""

    def initial(self) -> FloatArray:
        """Return the parameters that training starts from."""

    def present(self) -> NDArray[np.bool_] | None:
        """Return who can be drawn now, or None for everyone; wait while they are too few."""

    def run(
        self, parameters: FloatArray, draw: Draw, *, round_index: int, learning_rate: float
    ) -> Reply:
        """Let the drawn clients train from `parameters`."""

    def evaluate(self, parameters: FloatArray) -> Evaluation:
        """Return the global loss and the test accuracy."""
