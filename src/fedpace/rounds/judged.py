"""How a model does on the samples of each of some clients."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedpace.checks import FloatArray, IntArray
from fedpace.data.shards import Shards
from fedpace.models.model import Model


class Judged(NamedTuple):
    """One entry per client: its samples, their losses' mean and mean square, and share right.

    A client without samples has NaN.
    """

    counts: IntArray
    mean: FloatArray
    square: FloatArray
    accuracies: FloatArray

    @property
    def root_mean_square(self) -> FloatArray:
        """The root mean square of the losses."""
        root: FloatArray = np.sqrt(self.square)
        return root


def judged(
    model: Model, parameters: FloatArray, shards: Shards, rows: IntArray, counts: IntArray
) -> Judged:
    """Judge a model on these rows; `counts` of them belong to each client, one after the other."""
    x, y = model.prepared_whole(shards.x[rows]), shards.y[rows]
    losses = model.losses(parameters, x, y).astype(np.float64)
    right = model.correct(parameters, x, y).astype(np.float64)
    owner = np.repeat(np.arange(counts.size), counts)

    def mean(values: NDArray[np.float64]) -> FloatArray:
        sums = np.bincount(owner, values, counts.size)
        means: FloatArray = np.divide(
            sums, counts, out=np.full(counts.size, np.nan), where=counts > 0
        )
        return means

    return Judged(counts, mean(losses), mean(losses**2), mean(right))
