"""All samples in two arrays, with the offsets of the clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedpace.checks import AnyFloats, IntArray, Labels
from fedpace.errors import InputError


@dataclass(frozen=True, eq=False)
class Shards:
    """The samples of all clients, client after client.

    Parameters
    ----------
    x : array of (M, …)
        Inputs, a sample each.
    y : array of (M,) or (M, …)
        Targets: classes, integers from 0, or numbers.
    offsets : array of N + 1
        Client i holds the rows offsets[i] to offsets[i + 1].

    Examples
    --------
    >>> shards = Shards(np.eye(3), np.array([0, 1, 1]), np.array([0, 2, 3]))
    >>> shards.n, shards.sizes
    (2, array([2, 1]))
    >>> shards.common_labels
    array([0, 1])
    >>> shards.client(1).y
    array([1])
    """

    x: AnyFloats
    y: Labels
    offsets: IntArray

    def __post_init__(self) -> None:
        if self.x.ndim < 2 or self.y.ndim < 1 or len(self.y) != len(self.x):
            raise InputError(
                f"y must hold one label per row of x, got shapes {self.x.shape} and "
                f"{self.y.shape}; give x as (samples, features)"
            )
        ends = (self.offsets[0], self.offsets[-1]) if self.offsets.size > 1 else None
        if ends != (0, len(self.y)) or bool((np.diff(self.offsets) < 0).any()):
            raise InputError(
                f"offsets must rise from 0 to the number of samples, {len(self.y)}; "
                "use Shards.from_clients to have them computed"
            )

    @classmethod
    def from_clients(cls, xs: Sequence[AnyFloats], ys: Sequence[Labels]) -> Shards:
        """Join one pair of arrays per client; integer labels become int64."""
        offsets = np.cumsum([0, *(len(y) for y in ys)], dtype=np.int64)
        y = np.concatenate(ys)
        return cls(np.concatenate(xs), y.astype(np.int64) if y.dtype.kind in "iub" else y, offsets)

    @property
    def n(self) -> int:
        """The number of clients."""
        return self.offsets.size - 1

    @property
    def sizes(self) -> IntArray:
        """Samples per client."""
        return np.diff(self.offsets)

    @property
    def classes(self) -> int:
        """The number of classes."""
        if self.y.dtype.kind != "i" or self.y.ndim != 1:
            got = f"{self.y.dtype} of shape {self.y.shape}"
            remedy = "use y.astype(int), or a loss for numbers"
            raise InputError(f"y must be classes, integers from 0, got {got}; {remedy}")
        return int(self.y.max()) + 1

    @property
    def common_labels(self) -> IntArray:
        """The most common class of each client; the first of several, 0 for none."""
        clients = np.repeat(np.arange(self.n), self.sizes)
        counts = np.bincount(clients * self.classes + self.y, minlength=self.n * self.classes)
        labels: IntArray = counts.reshape(self.n, self.classes).argmax(axis=1)
        return labels

    def client(self, i: int) -> Shards:
        """Return client i's samples as shards of one client, without copying."""
        rows = slice(self.offsets[i], self.offsets[i + 1])
        y = self.y[rows]
        return Shards(self.x[rows], y, np.array([0, len(y)]))


class Split(NamedTuple):
    """The samples for training, and those held back for testing."""

    train: Shards
    test: Shards


def hold_out(xs: Sequence[AnyFloats], ys: Sequence[Labels], sizes: IntArray) -> Split:
    """Give each client its first `sizes` samples for training and the rest for testing."""
    clients = list(zip(xs, ys, sizes, strict=True))
    train = Shards.from_clients([x[:n] for x, _, n in clients], [y[:n] for _, y, n in clients])
    test = Shards.from_clients([x[n:] for x, _, n in clients], [y[n:] for _, y, n in clients])
    return Split(train, test)
