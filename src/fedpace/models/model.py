"""What the simulator asks of a model; parameters are one flat vector."""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedpace.checks import FloatArray, IntArray

# In the precision that the model trains in.
AnyFloats: TypeAlias = NDArray[np.floating[Any]]


class Model(Protocol):
    """Loss and gradient; the gradient of several clients at once."""

    @property
    def size(self) -> int:
        """The number of parameters, P."""

    @property
    def dtype(self) -> type[np.floating[Any]]:
        """The precision that clients train in; the server adds up in float64."""

    def initial(self, rng: np.random.Generator) -> FloatArray:
        """Return the parameters that training starts from, of shape (P,)."""

    def prepared(self, x: AnyFloats) -> AnyFloats:
        """Return all inputs, a row each, in the form that `gradients` takes; called once."""

    def prepared_whole(self, x: AnyFloats) -> AnyFloats:
        """Return all inputs in the form that `losses` and `correct` take; called once."""

    def gradients(self, parameters: AnyFloats, x: AnyFloats, y: IntArray, out: AnyFloats) -> None:
        """Write the mean gradient of m batches, each at its own parameters, to `out`.

        `parameters` and `out` are (m, P) in the model's precision, `x` is (m, batch, …) and `y`
        (m, batch).
        """

    def losses(self, parameters: FloatArray, x: AnyFloats, y: IntArray) -> AnyFloats:
        """Return each sample's loss at `parameters`."""

    def correct(self, parameters: FloatArray, x: AnyFloats, y: IntArray) -> NDArray[np.bool_]:
        """Return whether each sample is classified right at `parameters`."""
