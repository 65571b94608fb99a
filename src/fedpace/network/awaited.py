"""Whom to wait for before a run begins, and for how long."""

from __future__ import annotations

import time
from collections.abc import Callable

# A device that prepares for so much longer than the slowest of the others is not waited for.
PREPARING_OVER_SLOWEST = 10.0


class Awaited:
    """Know how long each of n clients has kept the server waiting for the present job.

    Only the first time counts that a client leaves or begins to prepare: one that comes and goes,
    or that never answers, holds nobody up for longer than others.

    >>> now = 0.0
    >>> awaited = Awaited(2, clock=lambda: now)
    >>> awaited.is_over(0, there=False, grace=5.0)
    False
    >>> now = 6.0
    >>> awaited.came(0)  # it prepares
    >>> awaited.is_over(0, there=True, grace=5.0), awaited.is_over(1, there=False, grace=5.0)
    (False, True)
    """

    def __init__(self, n: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._gone = dict.fromkeys(range(n), clock())  # when each was last there
        self._left = dict(self._gone)
        self._came: dict[int, float] = {}
        self._longest = 0.0

    def begin(self, there: set[int]) -> None:
        """Begin anew with a job, which those who are there get now."""
        self._left = {client: when for client, when in self._gone.items() if client not in there}
        self._came = dict.fromkeys(there, self._clock())
        self._longest = 0.0

    def came(self, client: int) -> None:
        """Know that a client is there, and gets the job."""
        self._came.setdefault(client, self._clock())

    def left(self, client: int) -> None:
        """Know that a client is gone."""
        self._gone[client] = self._clock()
        self._left.setdefault(client, self._gone[client])

    def prepared(self, client: int) -> None:
        """Know that a client is ready."""
        self._longest = max(self._longest, self._clock() - self._came[client])

    def is_over(self, client: int, *, there: bool, grace: float) -> bool:
        """Return whether a client that is not ready has been waited for long enough."""
        if not there:
            return self._clock() - self._left[client] >= grace
        most = max(grace, PREPARING_OVER_SLOWEST * self._longest)
        return self._clock() - self._came[client] >= most
