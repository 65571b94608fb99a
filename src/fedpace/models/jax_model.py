"""A JAX loss over a pytree of parameters as a `BaseModel`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpace.checks import AnyFloats, FloatArray, Labels
from fedpace.errors import InputError, needs
from fedpace.models.model import BaseModel

with needs("JAX models need jax", "jax"):
    import jax
from jax import numpy as jnp
from jax.flatten_util import ravel_pytree


class JaxModel(BaseModel):
    """Train a pytree of parameters by the gradient of a loss, all clients of a round at once.

    Parameters
    ----------
    start : pytree, or a function of a key that returns one
        The parameters that training starts from, in float32.
    loss : function (parameters, x, y) → scalar
        The mean loss of a batch.
    correct : function (parameters, x, y) → array, optional
        What is measured on the samples held out: one truth value or number per sample.

    Examples
    --------
    >>> model = JaxModel({"w": jnp.zeros(2)}, lambda p, x, y: ((x @ p["w"] - y) ** 2).mean())
    >>> model.losses(np.ones(2), np.eye(2, dtype=np.float32), np.array([1.0, 3.0]))
    array([0., 4.], dtype=float32)
    """

    size: int
    dtype = np.float32

    def __init__(
        self,
        start: Any,
        loss: Callable[[Any, Any, Any], Any],
        correct: Callable[[Any, Any, Any], Any] | None = None,
    ) -> None:
        self._start = start
        vector, self._tree = ravel_pytree(self._make_start(0))
        if not vector.size or not jnp.issubdtype(vector.dtype, jnp.floating):
            got = f"{vector.size} of type {vector.dtype}"
            raise InputError(f"start must hold floats, got {got}; give the model's parameters")
        self.size = int(vector.size)
        self._correct = correct

        def mean_loss(vector: Any, x: Any, y: Any) -> Any:
            value = loss(self._tree(vector), x, y)
            if jnp.ndim(value) != 0:
                raise InputError(
                    f"loss must return one number, got shape {jnp.shape(value)}; take its mean"
                )
            return value

        def of_sample(vector: Any, x: Any, y: Any) -> Any:
            return mean_loss(vector, x[None], y[None])

        self._gradients = jax.jit(jax.vmap(jax.grad(mean_loss)))
        self._losses = jax.jit(jax.vmap(of_sample, in_axes=(None, 0, 0)))

    def initial(self, rng: np.random.Generator) -> FloatArray:
        """Return the start as one vector, drawn from a key of `rng` where it is a function."""
        vector, _ = ravel_pytree(self._make_start(int(rng.integers(2**31))))
        return np.asarray(vector, dtype=np.float64)

    def gradients(self, parameters: AnyFloats, x: AnyFloats, y: Labels, out: AnyFloats) -> None:
        """Write the gradient of each of m clients' mean loss."""
        if len(parameters):
            out[:] = self._gradients(parameters, x, y)

    def losses(self, parameters: FloatArray, x: AnyFloats, y: Labels) -> AnyFloats:
        """Return each sample's loss."""
        return np.asarray(self._losses(jnp.asarray(parameters, jnp.float32), x, y))

    def correct(self, parameters: FloatArray, x: AnyFloats, y: Labels) -> NDArray[Any]:
        """Return the measure of each sample, NaN where there is none."""
        if self._correct is None:
            return np.full(len(y), np.nan)
        tree = self._tree(jnp.asarray(parameters, jnp.float32))
        return np.asarray(self._correct(tree, x, y))

    def arrays(self, parameters: FloatArray) -> dict[str, NDArray[Any]]:
        """Return the leaves of the pytree, named by their paths."""
        tree = self._tree(jnp.asarray(parameters, jnp.float32))
        leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
        return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}

    def pytree(self, parameters: FloatArray) -> Any:
        """Return the parameters in the form of the start."""
        return self._tree(jnp.asarray(parameters, jnp.float32))

    def _make_start(self, seed: int) -> Any:
        return self._start(jax.random.key(seed)) if callable(self._start) else self._start
