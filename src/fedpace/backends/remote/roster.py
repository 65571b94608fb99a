"""The roster, a number and a sample count for each client's name, and how to wait for clients."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeVar

import numpy as np

from fedpace.checks import FloatArray
from fedpace.errors import TooFewClientsError

# Bound of a self-reported sample count, as a multiple of the mean of the smaller ones. In the
# paper's setups the largest client holds eleven times the mean.
MOST_SAMPLES = 12.0
# The largest eighth of the clients may hold this share of the weight by their own word: colluders
# multiply the bound above. In the paper's setups of 40 honest clients they hold up to 47 %. With a
# robust server the share is smaller, which also binds such clients.
LARGEST_PART, MOST_TOGETHER, MOST_TOGETHER_ROBUST = 8, 0.5, 0.3
# In smaller fleets the largest eighth is a single client.
FEWEST_BOUND_TOGETHER = 2 * LARGEST_PART


class Roster:
    """The clients by name, numbered in the order of arrival, with their sample counts.

    `samples` are earlier self-reported counts. `given` are the operator's: neither learned nor
    bounded. `most` is the bound of all others as a multiple of the mean of the smaller ones, None
    for no bound; `together` is the largest share of the weight for the largest eighth of all.

    >>> roster = Roster(["kitchen", "attic"])
    >>> roster.learn(0, 30), roster.number("cellar")
    (True, 2)
    >>> roster.learn(1, 10), roster.weights
    (True, array([0.5       , 0.16666667, 0.33333333]))

    The third client's count is unknown: it gets the mean of the others. A count far larger than
    the others' weighs as much as twelve times their mean:

    >>> roster = Roster(samples={"kitchen": 30, "attic": 10, "liar": 2**52})
    >>> roster.weights.round(3)
    array([0.107, 0.036, 0.857])
    """

    def __init__(
        self,
        names: Iterable[str] = (),
        samples: Mapping[str, int] | None = None,
        *,
        given: Mapping[str, int] | None = None,
        most: float | None = MOST_SAMPLES,
        together: float = MOST_TOGETHER,
    ) -> None:
        self._most = math.inf if most is None else most
        self._together = 1.0 if most is None else together
        self.names: list[str] = []
        self._numbers: dict[str, int] = {}
        self._samples: dict[int, int] = {}
        self._given = dict(given or {})
        for name in names:
            self.number(name)
        for name, count in (samples or {}).items():
            self.learn(self.number(name), count)

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self._numbers

    def number(self, name: str) -> int:
        """Return a client's number; a name not seen before gets the next."""
        if name not in self._numbers:
            self._numbers[name] = client = len(self.names)
            self.names.append(name)
            if name in self._given:
                self._samples[client] = self._given[name]
        return self._numbers[name]

    def learn(self, client: int, samples: int) -> bool:
        """Note a client's sample count; return whether it is new."""
        if self.names[client] in self._given:
            return False
        news = self._samples.get(client) != samples
        self._samples[client] = samples
        return news

    def count(self, client: int) -> int | None:
        """Return a client's sample count, if known."""
        return self._samples.get(client)

    @property
    def samples(self) -> dict[str, int]:
        """The known counts, by name."""
        # A copy: devices may join meanwhile.
        return {self.names[client]: count for client, count in sorted(self._samples.copy().items())}

    @property
    def counts(self) -> dict[int, float]:
        """The known counts by client; self-reported ones are bounded."""
        known = self._samples.copy()
        counts, total = {}, 0.0
        for below, (client, count) in enumerate(sorted(known.items(), key=lambda each: each[1])):
            most = math.inf
            if below and self.names[client] not in self._given:
                most = self._most * total / below
            counts[client] = min(float(count), most)
            total += counts[client]
        return self._bound_together(counts)

    def _bound_together(self, counts: dict[int, float]) -> dict[int, float]:
        """Lower the largest self-reported counts to one level that keeps to the joint bound."""
        together, largest = self._together, len(counts) // LARGEST_PART
        if len(counts) < FEWEST_BOUND_TOGETHER or together >= 1:
            return counts
        ordered, level = sorted(counts.values(), reverse=True), math.inf
        if math.fsum(ordered[:largest]) > together * math.fsum(ordered):
            for j, below in enumerate(ordered[1:], 1):  # the j largest come to one level
                others, rest = math.fsum(ordered[j:largest]), together * math.fsum(ordered[j:])
                level = (rest - others) / (min(j, largest) - together * j)
                if level >= below:
                    break
        given = self._given
        return {i: x if self.names[i] in given else min(x, level) for i, x in counts.items()}

    @property
    def weights(self) -> FloatArray:
        """p_i = n_i / Σ n; an unknown n_i counts as the mean."""
        known = self.counts
        counts = np.full(len(self), np.mean(list(known.values())) if known else 1.0)
        counts[list(known)] = list(known.values())
        weights: FloatArray = counts / counts.sum()
        return weights


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
