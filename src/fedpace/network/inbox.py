"""Answers that are still to come, and the clock until they do."""

from __future__ import annotations

import time
from collections.abc import Collection
from queue import SimpleQueue

from fedpace.network.connection import Response


class Inbox:
    """Wait for what comes of questions; another thread puts it in.

    Attributes
    ----------
    at_work : set of int
        The clients whose responses were not taken yet.
    """

    def __init__(self) -> None:
        self.at_work: set[int] = set()
        self._came: SimpleQueue[Response] = SimpleQueue()
        self._sizes: list[int] = []  # of what was asked since nobody was at work
        self._since = 0.0

    def expect(self, clients: Collection[int]) -> None:
        """Know that these clients are asked now, together."""
        if not self.at_work:
            self._sizes, self._since = [], time.monotonic()
        self.at_work.update(clients)
        self._sizes.append(len(clients))

    def put(self, response: Response) -> None:
        """Put a response in."""
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
