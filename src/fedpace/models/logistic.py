"""Multinomial logistic regression in NumPy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedpace.profile import FloatArray


@dataclass(frozen=True)
class Logistic:
    """Softmax of W x + b with the cross-entropy loss.

    The parameters are the rows of (W b), one row per class: the intercept is the weight of a
    constant feature, which `prepared` appends. Scores are laid out class by sample, so that sums
    over classes run over long contiguous rows.

    >>> model = Logistic(features=2, classes=3)
    >>> model.size
    9
    >>> x = model.prepared(np.ones((1, 2)))
    >>> loss, right = model.evaluate(model.initial(np.random.default_rng(0)), x, np.array([0]))
    >>> loss.round(6), right  # log 3; ties go to the first class
    (array([1.098612]), array([ True]))
    """

    features: int
    classes: int

    @property
    def size(self) -> int:
        """The number of parameters."""
        return self.classes * (self.features + 1)

    def initial(self, rng: np.random.Generator) -> FloatArray:  # noqa: ARG002
        """Return zeros, as in the paper; `rng` is not used."""
        return np.zeros(self.size)

    def prepared(self, x: FloatArray) -> FloatArray:
        """Append the constant feature."""
        return np.concatenate([x, np.ones((len(x), 1))], axis=1)

    def gradients(
        self, parameters: FloatArray, x: FloatArray, y: NDArray[np.int64], out: FloatArray
    ) -> None:
        """Write (softmax(W x) − onehot(y)) xᵀ / batch for each of m clients."""
        m, batch = y.shape
        shape = (m, self.classes, self.features + 1)
        scores = np.matmul(parameters.reshape(shape), x.transpose(0, 2, 1))
        scores -= scores.max(axis=1, keepdims=True)
        np.exp(scores, out=scores)
        total = scores.sum(axis=1, keepdims=True)
        total *= batch
        scores /= total
        row = np.arange(m)[:, None] * self.classes + y
        scores.reshape(-1)[row * batch + np.arange(batch)] -= 1 / batch
        np.matmul(scores, x, out=out.reshape(shape))

    def evaluate(
        self, parameters: FloatArray, x: FloatArray, y: NDArray[np.int64]
    ) -> tuple[FloatArray, NDArray[np.bool_]]:
        """Return −log softmax(W x)[y], and whether y has the largest score."""
        scores = parameters.reshape(self.classes, self.features + 1) @ x.T
        chosen = scores[y, np.arange(y.size)]
        top = scores.max(axis=0)
        right = scores.argmax(axis=0) == y
        scores -= top
        np.exp(scores, out=scores)
        loss = np.log(scores.sum(axis=0))
        loss += top - chosen  # the difference first: both may be large
        return loss, right
