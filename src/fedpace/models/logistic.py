"""Multinomial logistic regression in NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpace.checks import FloatArray, IntArray
from fedpace.models.model import AnyFloats, BaseModel, Labels

# OpenBLAS makes no copies for products of up to this many numbers, which saves a third of the
# time. Blocks shorter than this would cost more in calls than that saves.
SMALL, SHORTEST = 10**6, 512


@dataclass(frozen=True)
class Logistic(BaseModel):
    """Softmax of W x + b with the cross-entropy loss.

    The parameters are the rows of (W b), one row per class: the intercept is the weight of a
    constant feature, which `prepared` appends. `dtype` is the precision of training and
    evaluation.

    >>> model = Logistic(features=2, classes=3)
    >>> model.size
    9
    >>> x = model.prepared_whole(np.ones((1, 2)))
    >>> start = model.initial(np.random.default_rng(0))
    >>> model.losses(start, x, np.array([0])).round(6)  # log 3
    array([1.098612])
    """

    features: int
    classes: int
    dtype: type[np.floating[Any]] = np.float64

    @property
    def size(self) -> int:
        """The number of parameters."""
        return self.classes * (self.features + 1)

    def initial(self, rng: np.random.Generator) -> FloatArray:  # noqa: ARG002
        """Return zeros, as in the paper; `rng` is not used."""
        return np.zeros(self.size)

    def prepared(self, x: AnyFloats) -> AnyFloats:
        """Append the constant feature."""
        rows: AnyFloats = np.ones((len(x), self.features + 1), dtype=self.dtype)
        rows[:, :-1] = x
        return rows

    def prepared_whole(self, x: AnyFloats) -> AnyFloats:
        """Append the constant feature and lay out feature by sample.

        The product with few classes takes half the time that it takes on rows.
        """
        columns: AnyFloats = np.ones((self.features + 1, len(x)), dtype=self.dtype)
        columns[:-1] = x.T
        return columns

    def gradients(self, parameters: AnyFloats, x: AnyFloats, y: Labels, out: AnyFloats) -> None:
        """Write (softmax(W x) − onehot(y)) xᵀ / batch for each of m clients."""
        m, batch = y.shape
        shape = (m, self.classes, self.features + 1)
        # Class by client by sample in memory: sums over classes run over long rows.
        scores = np.empty((self.classes, m * batch), dtype=x.dtype)
        by_client = scores.reshape(self.classes, m, batch).transpose(1, 0, 2)
        np.matmul(parameters.reshape(shape), x.transpose(0, 2, 1), out=by_client)
        scores -= scores.max(axis=0)
        np.exp(scores, out=scores)
        total = scores.sum(axis=0)
        total *= batch
        scores /= total
        scores.reshape(-1)[_own_class(y.reshape(-1))] -= 1 / batch
        np.matmul(by_client, x, out=out.reshape(shape))

    def losses(self, parameters: FloatArray, x: AnyFloats, y: Labels) -> AnyFloats:
        """Return −log softmax(W x)[y]."""
        scores = self._scores(parameters, x)
        chosen = scores.reshape(-1).take(_own_class(y))
        top = scores.max(axis=0)
        scores -= top
        np.exp(scores, out=scores)
        loss: AnyFloats = np.log(scores.sum(axis=0))
        loss += top - chosen  # the difference first: both may be large
        return loss

    def correct(self, parameters: FloatArray, x: AnyFloats, y: Labels) -> NDArray[np.bool_]:
        """Return whether y has the largest score; ties go to the first class."""
        scores = self._scores(parameters, x)
        largest = scores == scores.max(axis=0)
        if (largest.sum(axis=0) != 1).any():  # ties, or a score that is no number
            return np.asarray(scores.argmax(axis=0) == y)
        # Looking up takes a third of the time of argmax over the first axis.
        return np.asarray(largest.reshape(-1).take(_own_class(y)))

    def _scores(self, parameters: FloatArray, x: AnyFloats) -> AnyFloats:
        matrix = parameters.reshape(self.classes, self.features + 1).astype(self.dtype)
        block = SMALL // matrix.size
        if block < SHORTEST:
            return np.asarray(matrix @ x)
        scores: AnyFloats = np.empty((self.classes, x.shape[1]), dtype=np.result_type(matrix, x))
        for first in range(0, x.shape[1], block):
            part = slice(first, first + block)
            np.matmul(matrix, x[:, part], out=scores[:, part])
        return scores


def _own_class(y: IntArray) -> IntArray:
    """Return where the score of each sample's own class is, in all scores laid out flat."""
    return y * y.size + _places(y.size)


@lru_cache(maxsize=256)
def _places(count: int) -> IntArray:
    return np.arange(count)
