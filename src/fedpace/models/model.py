"""What the simulator asks of a model; parameters are one flat vector."""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedpace.checks import FloatArray

# In the precision that the model trains in.
AnyFloats: TypeAlias = NDArray[np.floating[Any]]
# Classes, or what else is to be predicted.
Labels: TypeAlias = NDArray[Any]


class Model(Protocol):
    """Loss and gradient; the gradient of several clients at once.

    A model with entries that no gradient moves, such as the running means of batch normalisation,
    also has `trained`, a mask of length P that is false for these: there `gradients` writes the
    new value. One whose clients take steps of their own kind has `stepped(parameters, x, y, rate)`,
    which changes `parameters` in place; `gradients` is then not asked.
    """

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

    def gradients(self, parameters: AnyFloats, x: AnyFloats, y: Labels, out: AnyFloats) -> None:
        """Write the mean gradient of m batches, each at its own parameters, to `out`.

        `parameters` and `out` are (m, P) in the model's precision, `x` is (m, batch, …) and `y`
        (m, batch, …).
        """

    def losses(self, parameters: FloatArray, x: AnyFloats, y: Labels) -> AnyFloats:
        """Return each sample's loss at `parameters`."""

    def correct(self, parameters: FloatArray, x: AnyFloats, y: Labels) -> NDArray[Any]:
        """Return whether each sample is classified right at `parameters`.

        Or another measure: a number per sample, whose mean is reported in the accuracy's place.
        """
