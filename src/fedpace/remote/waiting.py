"""Wait for clients, with a message and a limit."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from fedpace.errors import TooFewClientsError

T = TypeVar("T")
# Seconds between messages about what is waited for.
REMINDER = 10.0


class Clock(NamedTuple):
    """What time it is, and how to wait; tests bring a clock that does not."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


WALL = Clock()


def waited_for(
    look: Callable[[], T | None],
    *,
    patience: float,
    pause: float,
    missing: Callable[[], str],
    remedy: str,
    say: Callable[[str], None],
    quiet: float = 0.0,
    clock: Clock = WALL,
) -> T:
    """Look until there is something to see, and return it.

    Parameters
    ----------
    look : callable
        Returns what is waited for, or None while it is not there.
    patience, pause, quiet : float, seconds
        How long to wait for it, between two looks, and before the first message.
    missing, remedy : callable, str
        What is missing, for messages and for the error, and what to do about it.
    say : callable of a str
        Told what is waited for, and again every ten seconds.
    clock : Clock
        The time; its `sleep` may return early when something changes.

    Raises
    ------
    TooFewClientsError
        If it is not there after `patience` seconds.
    """
    began = clock.now()
    reminded = quiet - REMINDER
    while (seen := look()) is None:
        waited = clock.now() - began
        if waited >= patience:
            raise TooFewClientsError(f"{missing()} after {patience:g} s; {remedy}")
        if waited - reminded >= REMINDER:
            reminded = waited
            say(f"waiting for clients: {missing()}")
        clock.sleep(pause)
    return seen
