"""A loss and its gradient in plain NumPy as a `BaseModel`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedpace.checks import AnyFloats, FloatArray, Labels
from fedpace.errors import InputError
from fedpace.models.model import BaseModel

# What a user's functions get: one array, or several by name.
Parameters: TypeAlias = NDArray[Any] | Mapping[str, NDArray[Any]]
Function: TypeAlias = Callable[[Any, AnyFloats, Labels], Any]


class NumpyModel(BaseModel):
    """Train parameters of your own shape by your own functions, in NumPy.

    Parameters
    ----------
    start : array, dict of arrays, or a function of a Generator that returns one of these
        The parameters that training starts from; your functions get them in this form.
    gradient : function (parameters, x, y) → the same form
        Of the mean loss of a batch.
    losses : function (parameters, x, y) → array
        One loss per sample.
    correct : function (parameters, x, y) → array, optional
        What is measured on the samples held out: one truth value or number per sample.
    dtype : float32 or float64
        The precision that clients train in.

    Examples
    --------
    >>> model = NumpyModel(
    ...     start=np.zeros(2),
    ...     gradient=lambda w, x, y: 2 * x.T @ (x @ w - y) / len(y),
    ...     losses=lambda w, x, y: (x @ w - y) ** 2,
    ... )
    >>> model.losses(np.array([1.0, 1.0]), np.eye(2), np.array([1.0, 3.0]))
    array([0., 4.])
    """

    size: int

    def __init__(
        self,
        start: Parameters | Callable[[np.random.Generator], Parameters],
        gradient: Function,
        losses: Function,
        correct: Function | None = None,
        *,
        dtype: type[np.floating[Any]] = np.float64,
    ) -> None:
        self._start, self._gradient, self._losses, self._correct = start, gradient, losses, correct
        self.dtype = dtype
        first = self._make_start(np.random.default_rng(0))
        named = dict(first) if isinstance(first, Mapping) else {"": first}
        self._shapes = {name: np.shape(value) for name, value in named.items()}
        self._one = not isinstance(first, Mapping)
        self.size = sum(int(np.prod(shape)) for shape in self._shapes.values())

    def initial(self, rng: np.random.Generator) -> FloatArray:
        """Return the start as one vector."""
        return self._flat("start", self._make_start(rng))

    def gradients(self, parameters: AnyFloats, x: AnyFloats, y: Labels, out: AnyFloats) -> None:
        """Write the gradient of each of m clients, one after the other."""
        for i in range(len(parameters)):
            out[i] = self._flat("gradient", self._gradient(self._shape(parameters[i]), x[i], y[i]))

    def losses(self, parameters: FloatArray, x: AnyFloats, y: Labels) -> AnyFloats:
        """Return each sample's loss."""
        return _one_per_sample("losses", self._losses(self._shape(parameters), x, y), len(y))

    def correct(self, parameters: FloatArray, x: AnyFloats, y: Labels) -> NDArray[Any]:
        """Return the measure of each sample, NaN where there is none."""
        if self._correct is None:
            return np.full(len(y), np.nan)
        return _one_per_sample("correct", self._correct(self._shape(parameters), x, y), len(y))

    def arrays(self, parameters: FloatArray) -> dict[str, NDArray[Any]]:
        """Return the parameters by name; one array is called "parameters"."""
        shaped = self._shape(parameters)
        return {"parameters": shaped} if self._one else dict(shaped)

    def _make_start(self, rng: np.random.Generator) -> Parameters:
        return self._start(rng) if callable(self._start) else self._start

    def _shape(self, vector: AnyFloats) -> Any:
        sizes = [int(np.prod(shape)) for shape in self._shapes.values()]
        parts = np.split(vector, np.cumsum(sizes)[:-1])
        shapes = self._shapes.items()
        named = {name: part.reshape(s) for (name, s), part in zip(shapes, parts, strict=True)}
        return named[""] if self._one else named

    def _flat(self, what: str, value: Parameters) -> FloatArray:
        named = dict(value) if isinstance(value, Mapping) else {"": value}
        shapes = {name: np.shape(each) for name, each in named.items()}
        if shapes != self._shapes:
            raise InputError(
                f"{what} must have the shapes of the start, {self._shapes}, got {shapes}; "
                "return one array for each of the parameters"
            )
        parts = [np.asarray(named[name], dtype=np.float64).ravel() for name in self._shapes]
        return np.concatenate(parts)


def _one_per_sample(what: str, values: Any, samples: int) -> NDArray[Any]:
    array = np.asarray(values)
    if array.shape != (samples,):
        raise InputError(
            f"{what} must return one value per sample, got shape {array.shape} for {samples} "
            "samples; take no mean"
        )
    return array
