"""The roster, a number and a sample count for each client's name, and how to wait for clients."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeVar

import numpy as np

from fedpace.checks import FloatArray, IntArray
from fedpace.errors import InputError, TooFewClientsError

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


# Wait for a device at most three times as long as it usually takes.
PATIENCE = 3.0
# But at least 2 s: short times vary by larger factors.
SHORTEST = 2.0
# At most this times the median client: a device cannot prolong the wait by answering ever later.
LONGEST_OVER_MEDIAN = 30.0
# For a device that never answered: times the largest estimate, or seconds without any estimate.
UNKNOWN_OVER_LARGEST = 10.0
UNKNOWN = 60.0
# The estimate is the median of the last answers.
MEMORY = 5


class Deadlines:
    """Learn how long each client takes, and how long to wait for a draw.

    The wait is `given`, or three times the largest estimated time among the drawn, at least 2 s
    and at most thirty times the median client's. If a drawn client was never measured, it is
    ten times the largest estimate of all, at most thirty times the median or 60 s, whichever is
    longer, and 60 s without any estimate; `unknown` replaces these 60 s. More clients may join.

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

    def __init__(self, n: int, given: float | None = None, *, unknown: float | None = None) -> None:
        if given is not None and not given > 0:
            raise InputError(f"deadline must be positive, got {given}; give seconds, or none")
        self._given, self._unknown = given, UNKNOWN if unknown is None else unknown
        self._latest: dict[int, deque[float]] = {}
        self._estimates: FloatArray = np.full(n, np.nan)

    @property
    def estimates(self) -> FloatArray:
        """Seconds that each client takes; NaN if it was never measured."""
        return self._estimates.copy()

    def observe(self, client: int, seconds: float) -> None:
        """Learn from an answer; late ones count too."""
        self._know(client)
        self._latest.setdefault(client, deque(maxlen=MEMORY)).append(seconds)
        self._estimates[client] = np.median(self._latest[client])

    def wait(self, clients: IntArray) -> float:
        """Return how many seconds to wait for these clients."""
        if self._given is not None:
            return self._given
        self._know(int(clients.max(initial=-1)))
        known = self._estimates[~np.isnan(self._estimates)]
        if not known.size:
            return self._unknown
        drawn = self._estimates[clients]
        longest = LONGEST_OVER_MEDIAN * float(np.median(known))
        seconds = min(PATIENCE * float(np.nanmax(drawn, initial=0.0)), longest)
        if np.isnan(drawn).any():
            unknown = UNKNOWN_OVER_LARGEST * float(known.max())
            seconds = max(seconds, min(unknown, max(longest, self._unknown)))
        return max(seconds, SHORTEST)

    def _know(self, client: int) -> None:
        more = client + 1 - self._estimates.size
        if more > 0:
            self._estimates = np.append(self._estimates, np.full(more, np.nan))
