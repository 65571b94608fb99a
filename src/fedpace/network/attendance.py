"""Wait until enough devices can be asked."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TypeVar

from fedpace.errors import TooFewClientsError, listed
from fedpace.network.device_server import DeviceServer
from fedpace.remote.waiting import REMINDER, Clock, waited_for

# Seconds that everyone is given to join, or to come back, before training begins without.
GRACE = 30.0
# Seconds between looks, should nobody say that something changed.
LOOK = 0.2
T = TypeVar("T")


@dataclass
class Attendance:
    """Know when enough devices can be asked, and sum up how long was waited for them.

    The arguments are those of `Devices`.
    """

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
        away = not server.preparing and server.away_for(self.grace)
        return ready == len(server.names) or (ready >= self.least and away) or None

    def _enough(self, at_work: Collection[int]) -> list[int] | None:
        free = [client for client in self.server.free if client not in at_work]
        return free if free and len(free) + len(at_work) >= self.least else None

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
