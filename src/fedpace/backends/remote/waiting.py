"""Wait for clients, with messages and a time limit."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from fedpace.errors import TooFewClientsError

T = TypeVar("T")
# Seconds between messages.
REMINDER = 10.0


class Clock(NamedTuple):
    """The time, and how to sleep; tests replace both."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


WALL = Clock()


def wait_until(
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
    """Call `look` until it returns something other than None, and return that.

    Parameters
    ----------
    look : callable
        Returns the result, or None while there is none.
    patience, pause, quiet : float, seconds
        Longest wait, pause between two looks, and time before the first message.
    missing, remedy : callable, str
        What is missing, for messages and the error, and what to do about it.
    say : callable of a str
        Gets a message every ten seconds.
    clock : Clock
        The time; its `sleep` may return early when something changes.

    Raises
    ------
    TooFewClientsError
        After `patience` seconds without a result.
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
