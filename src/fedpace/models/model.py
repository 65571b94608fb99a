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

    def losses(self, parameters: FloatArray, x: FloatArray, y: NDArray[np.int64]) -> FloatArray:
        """Return each sample's loss at `parameters`."""

    def correct(
        self, parameters: FloatArray, x: FloatArray, y: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Return whether each sample is classified right at `parameters`."""
