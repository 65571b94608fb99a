"""Availability as a file gives it: when each client comes, and when it leaves."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedpace.checks import FloatArray, IntArray
from fedpace.errors import InputError

COLUMNS = ["client", "start", "end"]


class Spells(NamedTuple):
    """One entry per spell of a client: whose, and from when to when."""

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
        raise InputError(f"{path}: must hold a line for somebody, got none; add client,start,end")
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
class Intervals:
    """Spells of being there, which come again after the last end of all: `period`.

    Spells of a client that overlap or touch are one. Clients without any never come.

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
        """Sort and join the spells of n clients."""
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
        """Return who is there."""
        return self._left(seconds) > 0

    def stays(self, seconds: float, clients: IntArray) -> FloatArray:
        """Return for how long they stay."""
        return self._left(seconds)[clients]

    def next_change(self, seconds: float) -> float:
        """Return when the first comes."""
        whole, now = divmod(seconds, self.period)
        later = self.starts[self.starts > now]
        soonest = float(later.min()) if later.size else self.period + float(self.starts.min())
        return whole * self.period + soonest

    def _left(self, seconds: float) -> FloatArray:
        """Return how long each client stays from now on; 0 for one that is away."""
        now = seconds % self.period
        owner = np.repeat(np.arange(self.first.size - 1), np.diff(self.first))
        within = (self.starts <= now) & (now < self.ends)
        left = np.zeros(self.first.size - 1)
        left[owner[within]] = self.ends[within] - now
        # Who stays until the end, and is there at the beginning, goes on into it.
        over = np.flatnonzero(left == self.period - now)
        over = over[np.diff(self.first)[over] > 0]
        again = self.starts[self.first[over]] == 0
        more = self.ends[self.first[over]]
        left[over[again]] += np.where(more[again] == self.period, np.inf, more[again])
        return left
