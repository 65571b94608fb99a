"""What the simulator asks of a model; parameters are one flat vector."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedpace.profile import FloatArray


class Model(Protocol):
    """Loss and gradient; the gradient of several clients at once."""

    @property
    def size(self) -> int:
        """The number of parameters, P."""

    def initial(self, rng: np.random.Generator) -> FloatArray:
        """Return the parameters that training starts from, of shape (P,)."""

    def prepared(self, x: FloatArray) -> FloatArray:
        """Return all inputs in the form that the methods below take; called once."""

    def gradients(
        self, parameters: FloatArray, x: FloatArray, y: NDArray[np.int64], out: FloatArray
    ) -> None:
        """Write the mean gradient of m batches, each at its own parameters, to `out`.

        `parameters` and `out` are (m, P), `x` is (m, batch, …), `y` is (m, batch).
        """

    def evaluate(
        self, parameters: FloatArray, x: FloatArray, y: NDArray[np.int64]
    ) -> tuple[FloatArray, NDArray[np.bool_]]:
        """Return each sample's loss at `parameters`, and whether it is classified right."""
