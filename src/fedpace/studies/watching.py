"""Those who look on while runs are done: a page, a logger, a function."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from fedpace.rounds.rows import Row
from fedpace.rounds.stopping import Stop

if TYPE_CHECKING:
    from fedpace.studies.processes import Job


class Watcher(Protocol):
    """Sees every round of every run that is done, and not those of runs that were stored."""

    def row(self, job: Job, row: Row) -> object:
        """See a round that a run has finished."""

    def resumed(self, job: Job, rows: Sequence[Row]) -> object:
        """Know the rounds that a run had finished before it was interrupted, and goes on from."""

    def done(self, job: Job) -> object:
        """Know that a run is over, or has to begin anew because its process was killed."""


class Watchers:
    """Several watchers as one, and functions of a job and a row among them."""

    def __init__(self, *each: Watcher, call: Sequence[Callable[[Job, Row], object]] = ()) -> None:
        self._each, self._call = each, call

    def row(self, job: Job, row: Row) -> None:
        """Show everybody a round."""
        for watcher in self._each:
            watcher.row(job, row)
        for function in self._call:
            function(job, row)

    def resumed(self, job: Job, rows: Sequence[Row]) -> None:
        """Tell the watchers which rounds a run goes on from; functions saw them before."""
        for watcher in self._each:
            watcher.resumed(job, rows)

    def done(self, job: Job) -> None:
        """Tell everybody that a run is over."""
        for watcher in self._each:
            watcher.done(job)


class Remaining:
    """Tell from the rounds of a run how long it may still last here, by this machine's clock.

    At most: where a run ends by a target, nobody knows when.
    """

    def __init__(self, stop: Stop, clock: Callable[[], float] = time.monotonic) -> None:
        self._stop, self._clock = stop, clock
        self._first: tuple[float, float] | None = None

    def share(self, row: Row) -> float:
        """Return which part of a run's rounds or seconds is over."""
        rounds = row.round / (self._stop.rounds or math.inf) if row.phase == "train" else 0.0
        return min(max(rounds, row.seconds / (self._stop.seconds or math.inf)), 1.0)

    def seconds(self, row: Row) -> float | None:
        """Return the seconds left at most; None as long as nothing can be said."""
        done, now = self.share(row), self._clock()
        if self._first is None:
            self._first = now, done
        begin, begun = self._first
        return None if done <= begun else (now - begin) * (1 - done) / (done - begun)
