"""All samples of a systematic draw in a row, in which each client has a run of neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedpace.checks import FloatArray, IntArray

# Places on the circle nearer to each other than this, times K, are one: they differ by rounding.
ROUNDING = 1e-13


@dataclass(frozen=True, eq=False)
class Arcs:
    """Hold the samples of systematic draws, and which of them each client is in.

    A draw with the number u in [0, 1) takes the clients in whose part of the cumulated π one of
    u, u + 1, u + 2, … falls. So as u goes round, client i is in from where π_1 + … + π_{i−1} ends
    to where π_i ends, modulo 1: one run of samples, or two where it passes 0.

    Attributes
    ----------
    low, high : arrays of M
        The u that give each sample; M is at most the number of clients, plus one for each tier.
    tier : integers of M
        Whose sample it is, ascending.
    start, end, who : integers
        Client `who` is in samples start, …, end − 1. A client may have two such runs, or none.
    """

    low: FloatArray
    high: FloatArray
    tier: IntArray
    start: IntArray
    end: IntArray
    who: IntArray

    @classmethod
    def of(cls, cumulated: Sequence[FloatArray]) -> Arcs:
        """Return the samples of each tier, given the cumulated π of its clients.

        >>> arcs = Arcs.of([np.array([1.0, 1.5, 2.0]), np.array([1.0])])
        >>> arcs.low, arcs.high, arcs.tier
        (array([0. , 0.5, 0. ]), array([0.5, 1. , 1. ]), array([0, 0, 1]))
        >>> arcs.sums(np.array([1.0, 2.0, 4.0, 8.0])), arcs.largest(np.array([3.0, 5.0, 2.0, 1.0]))
        (array([3., 5., 8.]), array([5., 3., 1.]))
        """
        sizes = np.array([each.size for each in cumulated])
        tiers = np.repeat(np.arange(sizes.size), sizes)
        opening = np.cumsum(sizes) - sizes
        ends = np.concatenate(cumulated)
        near = ROUNDING * max(float(ends.max()), 1.0)
        low, counts, last = _samples(ends % 1.0, tiers, opening, near)
        base = np.cumsum(counts) - counts
        high = np.append(low[1:], 1.0)
        high[base + counts - 1] = 1.0
        first = np.append(0, last[:-1])
        first[opening] = base
        width = np.diff(ends, prepend=0.0)
        width[opening] = ends[opening]
        # Who ends where it began is in all samples, or, with a π of mere rounding, in none.
        whole = (width >= 1 - near) | ((first == last) & (width > 0.5))
        bottom, top = base[tiers], (base + counts)[tiers]
        split = np.flatnonzero(~whole & (first > last))
        end = np.where(whole | (first > last), top, last)
        start = np.concatenate([np.where(whole, bottom, first), bottom[split]])
        end = np.concatenate([end, last[split]])
        who = np.concatenate([np.arange(ends.size), split])
        some = end > start
        number = np.repeat(np.arange(sizes.size), counts)
        return cls(low, high, number, start[some], end[some], who[some])

    def sums(self, values: FloatArray) -> FloatArray:
        """Return the sum of the values of those in each sample."""
        steps = np.zeros(self.low.size + 1)
        np.add.at(steps, self.start, values[self.who])
        np.subtract.at(steps, self.end, values[self.who])
        return np.cumsum(steps[:-1])

    def largest(self, values: FloatArray) -> FloatArray:
        """Return the largest of the values ≥ 0 of those in each sample.

        A run is two overlapping halves whose length is a power of two. Each level of such halves
        is passed on to the next lower, down to single samples.
        """
        levels = np.frexp(self.end - self.start)[1] - 1
        above = np.zeros(self.low.size)
        for level in range(int(levels.max()), -1, -1):
            here = levels == level
            np.maximum.at(above, self.start[here], values[self.who[here]])
            np.maximum.at(above, self.end[here] - 2**level, values[self.who[here]])
            if level:
                half = 2 ** (level - 1)
                below = above.copy()
                np.maximum(below[half:], above[:-half], out=below[half:])
                above = below
        return above

    def expected(self, of_samples: FloatArray) -> FloatArray:
        """Return the mean over the samples of each tier."""
        return totals(self.tier, (self.high - self.low) * of_samples)


def totals(groups: IntArray, values: FloatArray, count: int = 0) -> FloatArray:
    """Return the sum of the values of each group, of which there are at least `count`."""
    return np.asarray(np.bincount(groups, values, count), dtype=np.float64)


def _samples(
    place: FloatArray, tiers: IntArray, opening: IntArray, near: float
) -> tuple[FloatArray, IntArray, IntArray]:
    """Return where each sample begins, how many a tier has, and the sample from each place on.

    A tier has one sample from u = 0 on, and one more from every other place on.
    """
    order = np.lexsort((place, tiers))
    ranked = place[order]
    before = np.append(0.0, ranked[:-1])
    before[opening] = 0.0
    kept = (ranked - before > near) & (ranked < 1 - near)
    at = np.cumsum(kept) + tiers
    counts = np.bincount(tiers[kept], minlength=opening.size) + 1
    low = np.zeros(int(counts.sum()))
    low[at[kept]] = ranked[kept]
    sample = np.empty_like(at)
    sample[order] = at
    round_trip = place >= 1 - near
    sample[round_trip] = (np.cumsum(counts) - counts)[tiers[round_trip]]
    return low, counts, sample
