"""When clients are available: always, at random, by time of day, from a file, or by your code."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedpace.adapt import adapt, optional
from fedpace.checks import FloatArray, IntArray
from fedpace.errors import InputError, nearest
from fedpace.lookup import find
from fedpace.seeds import Seeds
from fedpace.times.round_times import (
    BaseTimes,
    Presence,
    RoundTimes,
    Steady,
    as_times,
)

ALWAYS = "always"
KINDS = {ALWAYS: "", "markov": "ON:OFF", "daily": "SHARE:PERIOD", "file": "PATH"}
# Entry-point group for availability models of other packages.
GROUP = "fedpace.availability"
# Seconds of a day, and the standard deviation of when clients' days begin, as a share of it.
DAY, SPREAD = 86400.0, 0.125
# Relative rounding error of clock times.
ROUNDING = 1e-12


class BaseAvailability:
    """Base class of availability models; define `there` and `next_change`.

    Objects with these methods are accepted without subclassing.
    """

    def there(self, seconds: float) -> NDArray[np.bool_]:
        """Return one truth value per client: whether it is available at `seconds`."""
        raise NotImplementedError(f"{type(self).__name__} must define there")

    def next_change(self, seconds: float) -> float:
        """Return when the next client comes, given that none is available at `seconds`."""
        raise NotImplementedError(f"{type(self).__name__} must define next_change")

    def stays(self, seconds: float, clients: IntArray) -> FloatArray:
        """Return for how long available clients stay, 0 for others; by default forever."""
        return np.where(self.there(seconds)[clients], np.inf, 0.0)


@dataclass(frozen=True, eq=False)
class ComingAndGoing(BaseTimes):
    """Times of clients that come and go; one that leaves while it works returns nothing.

    Parameters
    ----------
    times : BaseTimes
        How long they take.
    availability : BaseAvailability
        When they are available.
    """

    times: BaseTimes
    availability: BaseAvailability

    @property
    def usual(self) -> FloatArray:
        """The usual times."""
        return self.times.usual

    def usual_at(self, seconds: float) -> FloatArray:
        """Return the usual times at `seconds`."""
        return self.times.usual_at(seconds)

    @property
    def computing(self) -> FloatArray | float:
        """The share of the usual times that is computing."""
        return self.times.computing

    def computing_of(self, clients: IntArray, *, round_index: int) -> FloatArray:
        """Return the share of computing in the times of these clients' tasks."""
        return self.times.computing_of(clients, round_index=round_index)

    def at(self, seconds: float, clients: IntArray, *, round_index: int) -> FloatArray:
        """Return how long these clients take, if they stay."""
        return self.times.at(seconds, clients, round_index=round_index)

    def present(self, seconds: float) -> Presence:
        """Return who is available, or who comes first and after how long."""
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
class Daily(BaseAvailability):
    """Every client is available for the same share of a day, from its own hour on.

    Clients' days begin at normal times around 0, with a standard deviation of an eighth of the
    day: at some hours most are available, at others few or none.

    >>> daily = Daily(np.array([0.0, 0.25]), share=0.5, period=100.0)
    >>> daily.there(10.0), daily.stays(30.0, np.array([0, 1])), daily.next_change(80.0)
    (array([ True, False]), array([20., 45.]), 100.0)
    """

    begins: FloatArray
    share: float
    period: float

    def there(self, seconds: float) -> NDArray[np.bool_]:
        """Return who is available."""
        return self._since(seconds, self.begins) < self.share

    def stays(self, seconds: float, clients: IntArray) -> FloatArray:
        """Return for how long these clients stay."""
        since = self._since(seconds, self.begins[clients])
        left: FloatArray = np.maximum(self.share - since, 0.0) * self.period
        return left

    def next_change(self, seconds: float) -> float:
        """Return when the next client comes."""
        wait = 1 - float(self._since(seconds, self.begins).max())
        return seconds + wait * self.period

    def _since(self, seconds: float, begins: FloatArray) -> FloatArray:
        """Return the part of a day since clients whose days begin then last came."""
        return np.asarray((seconds / self.period - begins) % 1.0)


class Markov(BaseAvailability):
    """Each client comes and goes at random, with independent exponential times.

    The length of its j-th spell depends only on the seed, the client and j, so that a resumed run
    has the same spells.

    Parameters
    ----------
    n : int
        Clients.
    on, off : float > 0
        The mean seconds of being available, and of being away.
    seeds : Seeds
        The run's seeds.
    """

    def __init__(self, n: int, on: float, off: float, seeds: Seeds) -> None:
        self._means = np.array([off, on])
        self._seed = int(seeds.stream("available").integers(2**63))
        self._clients = np.arange(n, dtype=np.uint64)
        self._begin()

    def there(self, seconds: float) -> NDArray[np.bool_]:
        """Return who is available."""
        self._go_to(seconds)
        on: NDArray[np.bool_] = self._on.copy()
        return on

    def stays(self, seconds: float, clients: IntArray) -> FloatArray:
        """Return for how long these clients stay."""
        self._go_to(seconds)
        left: FloatArray = np.where(self._on[clients], self._ends[clients] - seconds, 0.0)
        return left

    def next_change(self, seconds: float) -> float:
        """Return when the next client comes."""
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
        """Return a number in [0, 1) for each client and spell, by SplitMix64 in any order."""
        with np.errstate(over="ignore"):
            z = np.uint64(self._seed) + clients * np.uint64(0x9E3779B97F4A7C15)
            z = _mix_bits(z) + spells * np.uint64(0xD1B54A32D192ED03)
            uniform: FloatArray = (_mix_bits(z) >> np.uint64(11)).astype(np.float64) / 2.0**53
            return uniform


def _mix_bits(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(z ^ (z >> np.uint64(31)))


def with_availability(spec: str, times: RoundTimes, seeds: Seeds) -> BaseTimes:
    """Return times of clients that come and go as specified.

    Parameters
    ----------
    spec : str
        always; markov:ON:OFF, mean seconds of being available and of being away;
        daily:SHARE:PERIOD, the share of a day of PERIOD seconds, by default 86,400; file:PATH with
        the columns client, start and end; or file.py:name or module:name of your own code, a
        `BaseAvailability`, or a class or function (n, seeds) → `BaseAvailability`.
    times, seeds : RoundTimes, Seeds
        How long clients take, and the run's seeds.

    Examples
    --------
    >>> from fedpace.times.round_times import Steady
    >>> times = with_availability("daily:0.25:60", Steady(np.ones(4)), Seeds(0))
    >>> bool(times.present(0.0).clients.any())
    True
    """
    base = as_times(times)
    if spec == ALWAYS:
        return base
    return ComingAndGoing(base, availability(spec, base.usual.size, seeds))


def check_availability(spec: str, n: int) -> None:
    """Raise InputError if a specification, or the file that it names, is wrong."""
    if spec != ALWAYS:
        with_availability(spec, Steady(np.ones(n)), Seeds(0))


def availability(spec: str, n: int, seeds: Seeds) -> BaseAvailability:
    """Return the availability of n clients; see `with_availability`."""
    name, _, rest = spec.partition(":")
    if name not in KINDS and rest and spec.rpartition(":")[2].isidentifier():
        return _own_model(spec, n, seeds)
    if name not in KINDS:
        got = f"'{spec}'; {nearest(name, KINDS)}"
        raise InputError(f"availability must be a known kind or file.py:name, got {got}")
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
        remedy = "write always, markov:600:300, daily:0.5:86400, file:PATH or file.py:name"
        raise InputError(f"availability must be {name}:{KINDS[name]}, got '{spec}'; {remedy}")
    if name == "markov":
        return Markov(n, values[0], values[1], seeds)
    begins = (SPREAD * seeds.stream("available").standard_normal(n)) % 1.0
    return Daily(begins, values[0], values[1])


def _own_model(spec: str, n: int, seeds: Seeds) -> BaseAvailability:
    given = find(spec, {}, argument="availability", group=GROUP)
    if callable(given) and (isinstance(given, type) or optional(given, "there") is None):
        given = given(n, seeds)
    model = adapt(
        given, BaseAvailability, argument="availability", required=("there", "next_change")
    )
    shape = np.shape(model.there(0.0))
    if shape != (n,):
        got = f"shape {shape} for {n} clients from '{spec}'"
        raise InputError(f"availability must give one truth value per client, got {got}; use n")
    return model


COLUMNS = ["client", "start", "end"]


class Spells(NamedTuple):
    """One entry per spell: the client, its start and its end."""

    clients: IntArray
    starts: FloatArray
    ends: FloatArray


def read_intervals(path: Path, n: int) -> Spells:
    """Read a CSV file with the columns client, start and end, of clients 0 to n − 1, in seconds.

    Errors name the file, the line, the value and a remedy.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = [*_rows(path, n, csv.reader(file))]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        remedy = f"give a CSV file with the columns {', '.join(COLUMNS)}"
        raise InputError(f"{path}: cannot be read as availability: {error}; {remedy}") from None
    if not rows:
        raise InputError(f"{path}: must have a line of some client, got none; add client,start,end")
    clients, starts, ends = zip(*rows, strict=True)
    return Spells(np.array(clients, dtype=np.int64), np.array(starts), np.array(ends))


def _rows(path: Path, n: int, lines: Iterator[list[str]]) -> Iterator[tuple[int, float, float]]:
    header = [cell.strip() for cell in next(lines, [])]
    if header != COLUMNS:
        got = f"'{','.join(header):.60}'; make it {','.join(COLUMNS)}"
        raise InputError(f"{path}: line 1: must name the columns, got {got}")
    for number, cells in enumerate(lines, 2):
        if not any(cell.strip() for cell in cells):
            continue
        where = f"{path}: line {number}"
        if len(cells) != len(COLUMNS):
            got = f"'{','.join(cells):.60}'; write client,start,end"
            raise InputError(f"{where}: must have three values, got {got}")
        yield _spell(where, cells, n)


def _spell(where: str, cells: list[str], n: int) -> tuple[int, float, float]:
    client, start, end = (_number(where, *pair) for pair in zip(COLUMNS, cells, strict=True))
    if client != int(client) or not 0 <= client < n:
        got = f"'{cells[0]:.40}'; number them from 0"
        raise InputError(f"{where}: client must be one of 0 to {n - 1}, got {got}")
    if start < 0:
        got = f"'{cells[1]:.40}'; count seconds from the start of the run"
        raise InputError(f"{where}: start must be at least 0, got {got}")
    if end <= start:
        got = f"'{cells[2]:.40}' after '{cells[1]:.40}'; swap them, or drop the line"
        raise InputError(f"{where}: end must be later than start, got {got}")
    return int(client), start, end


def _number(where: str, column: str, cell: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        value = np.nan
    if not np.isfinite(value):
        raise InputError(f"{where}: {column} must be a number, got '{cell:.40}'; give seconds")
    return value


@dataclass(frozen=True, eq=False)
class Intervals(BaseAvailability):
    """Spells of being available, repeated after `period`, the last end of all.

    Spells of a client that overlap or touch are merged. Clients without any never come.

    >>> spells = Spells(np.array([0, 1, 1]), np.array([0.0, 4, 6]), np.array([3.0, 6, 8]))
    >>> two = Intervals.of(spells, n=2)
    >>> two.there(5.0), two.stays(5.0, np.array([0, 1])), two.next_change(3.5)
    (array([False,  True]), array([0., 3.]), 4.0)
    """

    first: IntArray
    starts: FloatArray
    ends: FloatArray
    period: float

    @classmethod
    def of(cls, spells: Spells, n: int) -> Intervals:
        """Sort and merge the spells of n clients."""
        period = float(spells.ends.max())
        starts: list[list[float]] = [[] for _ in range(n)]
        ends: list[list[float]] = [[] for _ in range(n)]
        for at in np.lexsort((spells.starts, spells.clients)).tolist():
            client, start, end = int(spells.clients[at]), spells.starts[at], spells.ends[at]
            if ends[client] and start <= ends[client][-1]:
                ends[client][-1] = max(ends[client][-1], end)
            else:
                starts[client].append(start)
                ends[client].append(end)
        first = np.cumsum([0, *map(len, starts)])
        return cls(first, np.concatenate(starts), np.concatenate(ends), period)

    def there(self, seconds: float) -> NDArray[np.bool_]:
        """Return who is available."""
        return self._seconds_left(seconds) > 0

    def stays(self, seconds: float, clients: IntArray) -> FloatArray:
        """Return for how long these clients stay."""
        return self._seconds_left(seconds)[clients]

    def next_change(self, seconds: float) -> float:
        """Return when the next client comes."""
        periods, now = divmod(seconds, self.period)
        later = self.starts[self.starts > now]
        soonest = float(later.min()) if later.size else self.period + float(self.starts.min())
        return periods * self.period + soonest

    def _seconds_left(self, seconds: float) -> FloatArray:
        """Return how long each client stays, 0 for one that is away."""
        now = seconds % self.period
        owner = np.repeat(np.arange(self.first.size - 1), np.diff(self.first))
        within = (self.starts <= now) & (now < self.ends)
        left = np.zeros(self.first.size - 1)
        left[owner[within]] = self.ends[within] - now
        # A spell at the end of the period continues with one at its beginning.
        over = np.flatnonzero(left == self.period - now)
        over = over[np.diff(self.first)[over] > 0]
        again = self.starts[self.first[over]] == 0
        more = self.ends[self.first[over]]
        left[over[again]] += np.where(more[again] == self.period, np.inf, more[again])
        return left
