"""Wait for devices, with a message and a limit."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from fedpace.errors import InputError, TooFewClientsError, listed
from fedpace.network.server import DeviceServer

# Seconds that everyone is given to join, or to come back, before training begins without.
GRACE = 30.0
# Seconds between messages about what is waited for.
REMINDER = 10.0
# Seconds between looks, should nobody say that something changed.
LOOK = 0.2


class Attendance:
    """Know when enough devices can be asked.

    Parameters
    ----------
    server : DeviceServer
        Whom they join.
    least : int ≥ 1, optional
        So many are enough; None: half of them, rounded up.
    patience, grace : float ≥ 0
        Seconds to wait for those, and for others since they left, or since the server began.
    say : callable of a str, optional
        Told what is waited for.
    """

    def __init__(
        self,
        server: DeviceServer,
        least: int | None = None,
        *,
        patience: float,
        grace: float = GRACE,
        say: Callable[[str], None] | None = None,
    ) -> None:
        n = len(server.names)
        self._least = math.ceil(n / 2) if least is None else least
        if not 1 <= self._least <= n:
            raise InputError(f"least must be from 1 to {n}, the number of devices, got {least}")
        self._server = server
        self._patience, self._grace = patience, grace
        self._say = say or (lambda _: None)

    def wait_for_all(self) -> None:
        """Wait until all are ready, or enough are and no other is about to be."""
        start = reminded = time.monotonic()
        while len(free := self._server.free) < len(self._server.names):
            waited = time.monotonic() - start
            settled = not self._server.preparing and self._server.away_for(self._grace)
            if len(free) >= self._least and (settled or waited >= self._patience):
                return
            reminded = self._wait(free, len(self._server.names), waited, reminded)

    def wait_for_least(self) -> list[int]:
        """Return who can be asked, as soon as they are enough."""
        start, reminded = time.monotonic(), -math.inf
        while len(free := self._server.free) < self._least:
            reminded = self._wait(free, self._least, time.monotonic() - start, reminded)
        return free

    def _wait(self, free: list[int], wanted: int, waited: float, reminded: float) -> float:
        """Wait for a change; return when a message was last given."""
        if waited >= self._patience:
            raise TooFewClientsError(
                f"at least {self._least} devices must be there, got {len(free)} after "
                f"{self._patience:g} s; start them, and run the same command again to go on"
            )
        now = time.monotonic()
        if now - reminded >= REMINDER:
            reminded = now
            self._tell(free, wanted)
        self._server.wait(LOOK)
        return reminded

    def _tell(self, free: list[int], wanted: int) -> None:
        names = self._server.names
        missing = listed([name for i, name in enumerate(names) if i not in free], most=5)
        self._say(f"waiting for devices: {len(free)} of {wanted} are ready, without {missing}")
