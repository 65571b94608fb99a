"""When clients are there: always, by chance, by the time of day, or as a file says."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedpace.checks import FloatArray, IntArray
from fedpace.errors import InputError, nearest
from fedpace.seeds import Seeds
from fedpace.times.intervals import Intervals, read_intervals
from fedpace.times.round_times import Presence, RoundTimes, usual_at

ALWAYS = "always"
KINDS = {ALWAYS: "", "markov": "ON:OFF", "daily": "SHARE:PERIOD", "file": "PATH"}
# Seconds of a day, and the standard deviation of when clients' days begin, as a share of it.
DAY, SPREAD = 86400.0, 0.125
# Of a time of the clock.
ROUNDING = 1e-12


class Availability(Protocol):
    """Who is there, at a time of the clock."""

    def there(self, seconds: float) -> NDArray[np.bool_]:
        """Return one truth value per client."""

    def stays(self, seconds: float, clients: IntArray) -> FloatArray:
        """Return for how long clients who are there stay; 0 for those who are not."""

    def next_change(self, seconds: float) -> float:
        """Return when somebody comes, after a time at which nobody is there."""


@dataclass(frozen=True, eq=False)
class ComingAndGoing:
    """Times of clients that are not always there; one that leaves while it works brings nothing.

    Parameters
    ----------
    times : RoundTimes
        How long they take.
    availability : Availability
        When they are there.
    """

    times: RoundTimes
    availability: Availability

    @property
    def usual(self) -> FloatArray:
        """The usual times."""
        return self.times.usual

    def usual_at(self, seconds: float) -> FloatArray:
        """Return the usual times of a moment."""
        return usual_at(self.times, seconds)

    def at(self, seconds: float, clients: IntArray, *, round_index: int) -> FloatArray:
        """Return how long these clients take, if they stay."""
        return self.times.at(seconds, clients, round_index=round_index)

    def present(self, seconds: float) -> Presence:
        """Return who is there, or who comes first, and after how long."""
        there = self.availability.there(seconds)
        if there.any():
            return Presence(there)
        later = self.availability.next_change(seconds)
        while not (there := self.availability.there(later)).any():  # rounded to just before
            later += ROUNDING * max(later, 1.0)
        return Presence(there, later - seconds)

    def leaves(self, seconds: float, clients: IntArray) -> FloatArray:
        """Return after how many seconds each of these clients leaves."""
        return self.availability.stays(seconds, clients)


@dataclass(frozen=True, eq=False)
class Daily:
    """Every client is there for the same share of a day, from an hour of its own on.

    Clients' days begin at normal times around 0, with a standard deviation of an eighth of the
    day: at some hours most are there, at others few or none.

    >>> daily = Daily(np.array([0.0, 0.25]), share=0.5, period=100.0)
    >>> daily.there(10.0), daily.stays(30.0, np.array([0, 1])), daily.next_change(80.0)
    (array([ True, False]), array([20., 45.]), 100.0)
    """

    begins: FloatArray
    share: float
    period: float

    def there(self, seconds: float) -> NDArray[np.bool_]:
        """Return who is there."""
        return self._since(seconds, self.begins) < self.share

    def stays(self, seconds: float, clients: IntArray) -> FloatArray:
        """Return for how long they stay."""
        since = self._since(seconds, self.begins[clients])
        left: FloatArray = np.maximum(self.share - since, 0.0) * self.period
        return left

    def next_change(self, seconds: float) -> float:
        """Return when the first comes."""
        wait = 1 - float(self._since(seconds, self.begins).max())
        return seconds + wait * self.period

    def _since(self, seconds: float, begins: FloatArray) -> FloatArray:
        """Return the part of a day since clients whose days begin then last came."""
        return np.asarray((seconds / self.period - begins) % 1.0)


class Markov:
    """Each client comes and goes by chance: exponential times of both, independent of all else.

    How long its j-th spell lasts depends on the seed, the client and j alone: not on when it is
    asked, so that a run that is resumed finds the same.

    Parameters
    ----------
    n : int
        Clients.
    on, off : float > 0
        The mean seconds of being there, and of being away.
    seeds : Seeds
        Of the run.
    """

    def __init__(self, n: int, on: float, off: float, seeds: Seeds) -> None:
        self._means = np.array([off, on])
        self._seed = int(seeds.stream("available").integers(2**63))
        self._clients = np.arange(n, dtype=np.uint64)
        self._begin()

    def there(self, seconds: float) -> NDArray[np.bool_]:
        """Return who is there."""
        self._go_to(seconds)
        on: NDArray[np.bool_] = self._on.copy()
        return on

    def stays(self, seconds: float, clients: IntArray) -> FloatArray:
        """Return for how long they stay."""
        self._go_to(seconds)
        left: FloatArray = np.where(self._on[clients], self._ends[clients] - seconds, 0.0)
        return left

    def next_change(self, seconds: float) -> float:
        """Return when the first comes."""
        self._go_to(seconds)
        return float(self._ends.min())

    def _begin(self) -> None:
        share = self._means[1] / self._means.sum()
        self._spell = np.zeros(self._clients.size, dtype=np.uint64)
        self._on = self._uniform(self._clients, self._spell) < share
        self._spell += np.uint64(1)
        self._now = 0.0
        self._ends = self._lengths(np.arange(self._clients.size))

    def _go_to(self, seconds: float) -> None:
        if seconds < self._now:
            self._begin()
        self._now = seconds
        while (over := np.flatnonzero(self._ends <= seconds)).size:
            self._on[over] = ~self._on[over]
            self._spell[over] += np.uint64(1)
            self._ends[over] += self._lengths(over)

    def _lengths(self, clients: IntArray) -> FloatArray:
        uniform = self._uniform(self._clients[clients], self._spell[clients])
        lengths: FloatArray = -np.log1p(-uniform) * self._means[self._on[clients].astype(int)]
        return lengths

    def _uniform(self, clients: NDArray[np.uint64], spells: NDArray[np.uint64]) -> FloatArray:
        """Return a number in [0, 1) for each client and spell: SplitMix64, which can be asked."""
        with np.errstate(over="ignore"):
            z = np.uint64(self._seed) + clients * np.uint64(0x9E3779B97F4A7C15)
            z = _mixed(z) + spells * np.uint64(0xD1B54A32D192ED03)
            uniform: FloatArray = (_mixed(z) >> np.uint64(11)).astype(np.float64) / 2.0**53
            return uniform


def _mixed(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(z ^ (z >> np.uint64(31)))


def with_availability(spec: str, times: RoundTimes, seeds: Seeds) -> RoundTimes:
    """Return times of clients that come and go as a text says.

    always; markov:ON:OFF, mean seconds of being there and of being away; daily:SHARE:PERIOD, the
    share of a day of PERIOD seconds, 86,400 where it is left out; file:PATH with the columns
    client, start and end.

    >>> from fedpace.times.round_times import Steady
    >>> times = with_availability("daily:0.25:60", Steady(np.ones(4)), Seeds(0))
    >>> bool(times.present(0.0).clients.any())
    True
    """
    name, _, rest = spec.partition(":")
    if name not in KINDS:
        got = f"'{spec}'; {nearest(name, KINDS)}"
        raise InputError(f"availability must be a known kind, got {got}")
    if name == ALWAYS and not rest:
        return times
    return ComingAndGoing(times, _availability(spec, times.usual.size, seeds))


def check_availability(spec: str, n: int) -> None:
    """Say what is wrong with a text, or with the file that it names, before anything is run."""
    if spec != ALWAYS:
        with_availability(spec, _Alike(n), Seeds(0))


class _Alike:
    """Clients of whom only the number is known."""

    def __init__(self, n: int) -> None:
        self.usual = np.ones(n)

    def at(self, seconds: float, clients: IntArray, *, round_index: int) -> FloatArray:  # noqa: ARG002
        return self.usual[clients]

    def present(self, seconds: float) -> Presence:  # noqa: ARG002
        return Presence()


def _availability(spec: str, n: int, seeds: Seeds) -> Availability:
    name, _, rest = spec.partition(":")
    if name == "file":
        return Intervals.of(read_intervals(Path(rest), n), n)
    try:
        values = [float(each) for each in rest.split(":")]
    except ValueError:
        values = []
    if name == "daily" and len(values) == 1:
        values.append(DAY)
    fine = len(values) == 2 and all(0 < value < np.inf for value in values)
    if not fine or (name == "daily" and values[0] >= 1):
        remedy = "write always, markov:600:300, daily:0.5:86400 or file:PATH"
        raise InputError(f"availability must be {name}:{KINDS[name]}, got '{spec}'; {remedy}")
    if name == "markov":
        return Markov(n, values[0], values[1], seeds)
    begins = (SPREAD * seeds.stream("available").standard_normal(n)) % 1.0
    return Daily(begins, values[0], values[1])
