"""Waiting for devices: how long for a round, for answers to come, and for enough to be there."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TypeVar

import numpy as np

from fedpace.checks import FloatArray, IntArray
from fedpace.errors import InputError, TooFewClientsError, listed
from fedpace.network.connection import Response
from fedpace.network.device_server import DeviceServer
from fedpace.remote.waiting import REMINDER, Clock, waited_for

# A device that takes three times as long as it usually does is not waited for.
PATIENCE = 3.0
# Short times vary by more than a factor: a scheduler's whim, a packet sent again.
SHORTEST = 2.0
# A device cannot stretch the wait without end by answering ever later.
LONGEST_OVER_MEDIAN = 30.0
# For one that never answered: times the largest estimate of all, or seconds where there is none.
UNKNOWN_OVER_LARGEST = 10.0
UNKNOWN = 60.0
# Answers whose median is the estimate.
MEMORY = 5
# Seconds that everyone is given to join, or to come back, before training begins without.
GRACE = 30.0
# Seconds between looks, should nobody say that something changed.
LOOK = 0.2
T = TypeVar("T")


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


class Inbox:
    """Wait for what comes of questions; `at_work` are the clients who still owe it.

    Another thread puts it in; `awaited` are those of whom nothing has come yet.
    """

    def __init__(self) -> None:
        self.at_work: set[int] = set()
        self.awaited: set[int] = set()
        self._came: SimpleQueue[Response] = SimpleQueue()
        self._sizes: list[int] = []  # of what was asked since nobody was at work
        self._since = 0.0

    def expect(self, clients: Collection[int]) -> None:
        """Know that these clients are asked now, together."""
        if not self.at_work:
            self._sizes, self._since = [], time.monotonic()
        self.at_work.update(clients)
        self.awaited.update(clients)
        self._sizes.append(len(clients))

    def put(self, response: Response) -> None:
        """Put a response in."""
        self.awaited.discard(response.client)
        self._came.put(response)

    def take(self, count: int | None = None) -> tuple[list[Response], float | None]:
        """Wait for the next `count` responses, or for all; return them by client.

        With them the seconds since responses were last taken, or since somebody was asked; None
        where all who were asked together are taken together: their own seconds say it.
        """
        count = len(self.at_work) if count is None else min(count, len(self.at_work))
        # By client, so that the numbers do not depend on who came first.
        taken = sorted((self._came.get() for _ in range(count)), key=lambda each: each.client)
        self.at_work.difference_update(each.client for each in taken)
        before, self._since = self._since, time.monotonic()
        return taken, None if self._sizes == [count] or not taken else self._since - before


@dataclass
class Attendance:
    """Wait for devices that can be asked, and sum up how long; the arguments are `Devices`'s."""

    server: DeviceServer
    least: int
    patience: float
    grace: float
    say: Callable[[str], None]
    waited: float = 0.0

    def wait_for_all(self) -> None:
        """Wait until all are ready, or enough are and no other is about to be."""
        try:
            self._wait(self._settled, quiet=REMINDER)
        except TooFewClientsError:
            if len(self.server.free) < self.least:
                raise

    def wait_for_least(self, at_work: Collection[int]) -> list[int]:
        """Return who can be asked, as soon as they are enough together with those at work."""
        return self._wait(lambda: self._enough(at_work))

    def _settled(self) -> bool | None:
        ready, server = len(self.server.free), self.server
        if ready < self.least:
            return None
        return ready == len(server.names) or not server.waited_for(self.grace) or None

    def _enough(self, at_work: Collection[int]) -> list[int] | None:
        free = self.server.free  # among them may be some whose answers were not looked at yet
        return free if free and len({*free, *at_work}) >= self.least else None

    def _wait(self, look: Callable[[], T | None], *, quiet: float = 0.0) -> T:
        return waited_for(
            look,
            patience=self.patience,
            pause=LOOK,
            missing=self._missing,
            remedy="start them, and run the same command again to go on",
            say=self.say,
            quiet=quiet,
            clock=Clock(sleep=self._pause),
        )

    def _pause(self, seconds: float) -> None:
        began = time.monotonic()
        self.server.wait(seconds)
        self.waited += time.monotonic() - began

    def _missing(self) -> str:
        names, free = self.server.names, self.server.free
        missing = listed([name for i, name in enumerate(names) if i not in free], most=5)
        return (
            f"at least {self.least} of {len(names)} devices must be ready, "
            f"got {len(free)} (not {missing})"
        )
