"""Who connects and never calls: gRPC itself tells nobody of certificates that it refuses."""

from __future__ import annotations

import asyncio
import contextlib
import logging

logger = logging.getLogger(__name__)


class Callers:
    """Count the connections of which nothing comes within some seconds, and log their number.

    The line comes once within each such time, however many they are. `came` may be called in any
    thread, `called` in the event loop `loop`.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, within: float) -> None:
        self._loop, self._within = loop, within
        self._latest = self._before = 0  # connections without a call, of this time and the last
        self._looking = False

    def came(self) -> None:
        """Note a connection; its TLS handshake is about to begin."""
        with contextlib.suppress(RuntimeError):  # the server has just closed
            self._loop.call_soon_threadsafe(self._count)

    def called(self) -> None:
        """Note that somebody is through, and calls."""
        if self._before:
            self._before -= 1
        elif self._latest:
            self._latest -= 1

    def _count(self) -> None:
        self._latest += 1
        if not self._looking:
            self._looking = True
            self._loop.call_later(self._within, self._look)

    def _look(self) -> None:
        if self._before:
            logger.warning(
                "connections without a call: %d; certificates that were refused, or strangers; "
                "gRPC writes each reason to standard error",
                self._before,
            )
        self._before, self._latest = self._latest, 0
        self._looking = self._before > 0
        if self._looking:
            self._loop.call_later(self._within, self._look)
