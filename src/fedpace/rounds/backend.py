"""Where local training happens, and what comes back."""

from typing import NamedTuple, Protocol

from fedpace.profile import FloatArray, IntArray
from fedpace.sampling.design import Draw


class Reply(NamedTuple):
    """What this round's clients sent back, one entry per client.

    `updates` are w_i − w, of shape (m, P); `grad_norms` the root mean square norm of the
    stochastic gradients over the local steps, which is what G_i bounds.
    """

    clients: IntArray
    updates: FloatArray
    seconds: FloatArray
    grad_norms: FloatArray


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
    def usual_times(self) -> FloatArray:
        """t_i as known before training, in seconds."""

    def initial(self) -> FloatArray:
        """Return the parameters that training starts from."""

    def run(
        self, parameters: FloatArray, draw: Draw, *, round_index: int, learning_rate: float
    ) -> Reply:
        """Let the drawn clients train from `parameters`."""

    def evaluate(self, parameters: FloatArray) -> Evaluation:
        """Return the global loss and the test accuracy."""
