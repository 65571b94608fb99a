"""The samples of a systematic draw, in a row; each client is in a run of neighbours."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedpace.checks import FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class Arcs:
    """Say for `samples` on a circle which of them each client is in.

    Client i is in the samples from first_i up to, not including, last_i; where last_i ≤ first_i,
    in those from first_i to the end and from the start to last_i. One that is `everywhere` is in
    all of them.

    >>> arcs = Arcs(np.array([0, 1]), np.array([2, 1]), np.array([False, True]), samples=3)
    >>> arcs.sums(np.array([1.0, 5.0])), arcs.largest(np.array([9.0, 5.0]))
    (array([6., 6., 5.]), array([9., 9., 5.]))
    """

    first: IntArray
    last: IntArray
    everywhere: NDArray[np.bool_]
    samples: int

    def sums(self, values: FloatArray) -> FloatArray:
        """Return the sum of the values of those in each sample."""
        start, end, who = self._runs()
        steps = np.bincount(start, values[who], self.samples + 1)
        steps -= np.bincount(end, values[who], self.samples + 1)
        sums: FloatArray = np.cumsum(steps[:-1]) + float(values[self.everywhere].sum())
        return sums

    def largest(self, values: FloatArray) -> FloatArray:
        """Return the largest of the values ≥ 0 of those in each sample.

        A run is two overlapping halves whose length is a power of two. Each level of such halves
        is passed on to the next lower, down to single samples.
        """
        start, end, who = self._runs()
        lengths = end - start
        levels = np.frexp(lengths)[1] - 1
        above = np.full(self.samples, float(values[self.everywhere].max(initial=0.0)))
        for level in range(int(levels.max(initial=0)), -1, -1):
            here = levels == level
            np.maximum.at(above, start[here], values[who[here]])
            np.maximum.at(above, end[here] - 2**level, values[who[here]])
            if level:
                half = 2 ** (level - 1)
                below = above.copy()
                np.maximum(below[half:], above[:-half], out=below[half:])
                above = below
        return above

    def _runs(self) -> tuple[IntArray, IntArray, IntArray]:
        """Return where each run starts and ends, and whose it is; runs are not empty."""
        some = np.flatnonzero(~self.everywhere)
        split = some[self.last[some] <= self.first[some]]
        whole = some[self.last[some] > self.first[some]]
        start = np.concatenate([self.first[whole], self.first[split], np.zeros_like(split)])
        end = np.concatenate(
            [self.last[whole], np.full_like(split, self.samples), self.last[split]]
        )
        who = np.concatenate([whole, split, split])
        filled = end > start
        return start[filled], end[filled], who[filled]
