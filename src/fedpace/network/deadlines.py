"""How long to wait for a round."""

from __future__ import annotations

from collections import deque

import numpy as np

from fedpace.checks import FloatArray, IntArray
from fedpace.errors import InputError

# A device that takes three times as long as it usually does is not waited for.
PATIENCE = 3.0
# Short times vary by more than a factor: a scheduler's whim, a packet sent again.
SHORTEST = 2.0
# A device cannot stretch the wait without end by answering ever later.
LONGEST_OVER_MEDIAN = 30.0
# One that never answered yet may be slower than all known, or the first of all: so many times the
# largest estimate, or so many seconds.
UNKNOWN_OVER_LARGEST = 10.0
UNKNOWN = 60.0
# The estimate is the median of the latest so many.
MEMORY = 5


class Deadlines:
    """Learn how long each client takes, and say how long to wait for a draw.

    The wait is `given`, or three times the largest estimated time among the drawn, at least 2 s
    and at most thirty times the median client's. Where a drawn client was never measured, it is
    ten times the largest estimate of all, at most thirty times the median or 60 s, whichever is
    longer, and 60 s where there is no estimate.

    >>> deadlines = Deadlines(2)
    >>> deadlines.wait(np.array([0]))
    60.0
    >>> deadlines.observe(0, 4.0)
    >>> deadlines.wait(np.array([0])), deadlines.wait(np.array([0, 1]))
    (12.0, 40.0)
    >>> deadlines.observe(0, 30.0)  # the median of 4 and 30 is 17
    >>> deadlines.wait(np.array([1]))
    170.0
    """

    def __init__(self, n: int, given: float | None = None) -> None:
        if given is not None and not given > 0:
            raise InputError(f"deadline must be positive, got {given}; give seconds, or none")
        self._given = given
        self._latest: list[deque[float]] = [deque(maxlen=MEMORY) for _ in range(n)]
        self._estimates: FloatArray = np.full(n, np.nan)

    @property
    def estimates(self) -> FloatArray:
        """The seconds that each client takes; NaN where it was never measured."""
        return self._estimates.copy()

    def observe(self, client: int, seconds: float) -> None:
        """Learn from an answer, late ones included."""
        self._latest[client].append(seconds)
        self._estimates[client] = np.median(self._latest[client])

    def wait(self, clients: IntArray) -> float:
        """Return how many seconds to wait for these clients."""
        if self._given is not None:
            return self._given
        known = self._estimates[~np.isnan(self._estimates)]
        if not known.size:
            return UNKNOWN
        drawn = self._estimates[clients]
        longest = LONGEST_OVER_MEDIAN * float(np.median(known))
        seconds = min(PATIENCE * float(np.nanmax(drawn, initial=0.0)), longest)
        if np.isnan(drawn).any():
            unknown = UNKNOWN_OVER_LARGEST * float(known.max())
            seconds = max(seconds, min(unknown, max(longest, UNKNOWN)))
        return max(seconds, SHORTEST)
