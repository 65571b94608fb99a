"""All samples in two arrays, and where each client's begin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedpace.errors import InputError


@dataclass(frozen=True, eq=False)
class Shards:
    """Hold the samples of all clients, client after client.

    Parameters
    ----------
    x : array of (M, features)
        Inputs.
    y : array of M, integers from 0
        Classes.
    offsets : array of N + 1
        Client i holds the rows offsets[i] to offsets[i + 1].

    Examples
    --------
    >>> shards = Shards(np.eye(3), np.array([0, 1, 1]), np.array([0, 2, 3]))
    >>> shards.n, shards.sizes
    (2, array([2, 1]))
    >>> shards.client(1).y
    array([1])
    """

    x: NDArray[np.floating[Any]]
    y: NDArray[np.int64]
    offsets: NDArray[np.int64]

    def __post_init__(self) -> None:
        if self.x.ndim != 2 or self.y.shape != (len(self.x),):
            raise InputError(
                f"y must hold one class per row of x, got shapes {self.x.shape} and "
                f"{self.y.shape}; give x as (samples, features)"
            )
        starts_and_ends = self.offsets.size > 1 and (
            self.offsets[0] == 0 and self.offsets[-1] == len(self.y)
        )
        if not starts_and_ends or bool((np.diff(self.offsets) < 0).any()):
            raise InputError(
                f"offsets must rise from 0 to the number of samples, {len(self.y)}; "
                "use Shards.from_clients to have them computed"
            )

    @classmethod
    def from_clients(
        cls, xs: Sequence[NDArray[np.floating[Any]]], ys: Sequence[NDArray[np.int64]]
    ) -> Shards:
        """Join one pair of arrays per client."""
        offsets = np.cumsum([0, *(len(y) for y in ys)], dtype=np.int64)
        return cls(np.concatenate(xs), np.concatenate(ys).astype(np.int64), offsets)

    @property
    def n(self) -> int:
        """The number of clients."""
        return self.offsets.size - 1

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Samples per client."""
        return np.diff(self.offsets)

    @property
    def classes(self) -> int:
        """The number of classes."""
        return int(self.y.max()) + 1

    def client(self, i: int) -> Shards:
        """Return client i's samples as shards of one client, without copying."""
        rows = slice(self.offsets[i], self.offsets[i + 1])
        y = self.y[rows]
        return Shards(self.x[rows], y, np.array([0, len(y)]))


class Split(NamedTuple):
    """What clients train on, and what each of them holds back for testing."""

    train: Shards
    test: Shards


def hold_out(
    xs: Sequence[NDArray[np.floating[Any]]],
    ys: Sequence[NDArray[np.int64]],
    sizes: NDArray[np.int64],
) -> Split:
    """Give each client its first `sizes` samples for training and the rest for testing."""
    train = Shards.from_clients(
        [x[:size] for x, size in zip(xs, sizes, strict=True)],
        [y[:size] for y, size in zip(ys, sizes, strict=True)],
    )
    test = Shards.from_clients(
        [x[size:] for x, size in zip(xs, sizes, strict=True)],
        [y[size:] for y, size in zip(ys, sizes, strict=True)],
    )
    return Split(train, test)
