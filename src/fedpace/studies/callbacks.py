"""Callbacks of a study: several as one, lines of progress, and the time left of a run."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta

from fedpace.adapt import defines
from fedpace.training.callbacks import Callback, Progress, RunInfo, as_callback
from fedpace.training.history import Row
from fedpace.training.stopping import Stop

# Without a terminal a line is printed for every tenth of the runs, and after this many seconds.
PARTS, EVERY = 10, 30.0


class Callbacks(Callback):
    """Call several callbacks in turn; functions are called with every row."""

    def __init__(self, callbacks: Iterable[Callback | Callable[[Row], object]]) -> None:
        self._each = [as_callback(each) for each in callbacks]

    @property
    def sees_rows(self) -> bool:
        """Whether one of them overrides `on_row`; else rows need not leave their process."""
        return any(defines(each, Callback, "on_row") for each in self._each)

    def on_start(self, run: RunInfo, rows: Sequence[Row]) -> None:
        """Pass on the start of a run."""
        for each in self._each:
            each.on_start(run, rows)

    def on_row(self, run: RunInfo, row: Row) -> None:
        """Pass on a round."""
        for each in self._each:
            each.on_row(run, row)

    def on_end(self, run: RunInfo) -> None:
        """Pass on the end of a run."""
        for each in self._each:
            each.on_end(run)

    def on_progress(self, progress: Progress) -> None:
        """Pass on the number of runs done."""
        for each in self._each:
            each.on_progress(progress)

    def on_warning(self, message: str) -> None:
        """Pass on a warning."""
        for each in self._each:
            each.on_warning(message)


class ProgressLines(Callback):
    """Print progress and warnings to standard error, a line now and then."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._begin, self._printed = clock, clock(), -math.inf
        self._parts: set[int] = set()

    def on_progress(self, progress: Progress) -> None:
        """Print a line for every tenth of the runs, and after half a minute without one."""
        now, part = self._clock(), progress.done * PARTS // progress.total
        if part not in self._parts or now - self._printed >= EVERY:
            self._parts.add(part)
            self._printed = now
            elapsed = f"{duration(now - self._begin)} elapsed"
            line = [f"{progress.done}/{progress.total} runs", elapsed, time_left(progress)]
            print(", ".join(filter(None, line)), file=sys.stderr, flush=True)

    def on_warning(self, message: str) -> None:
        """Print a warning."""
        print(f"fedpace: {' '.join(message.split())}", file=sys.stderr, flush=True)


class Remaining:
    """Estimate from the rounds of a run how long it may still take on this machine.

    This is an upper bound: a run that ends by a target may end earlier.
    """

    def __init__(self, stop: Stop, clock: Callable[[], float] = time.monotonic) -> None:
        self._stop, self._clock = stop, clock
        self._first: tuple[float, float] | None = None

    def share(self, row: Row) -> float:
        """Return the share of a run's rounds or seconds that is over."""
        rounds = row.round / (self._stop.rounds or math.inf) if row.phase == "train" else 0.0
        return min(max(rounds, row.seconds / (self._stop.seconds or math.inf)), 1.0)

    def seconds(self, row: Row) -> float | None:
        """Return the most seconds left; None until they can be estimated."""
        done, now = self.share(row), self._clock()
        if self._first is None:
            self._first = now, done
        begin, begun = self._first
        return None if done <= begun else (now - begin) * (1 - done) / (done - begun)


def time_left(progress: Progress) -> str:
    """Return the time left in words, empty if it is not known.

    >>> time_left(Progress(1, 5, seconds_left=90.0))
    'about 0:01:30 left'
    """
    seconds = progress.seconds_left
    return "" if seconds is None else f"about {duration(seconds)} left"


def duration(seconds: float) -> str:
    """Return a time in hours, minutes and seconds.

    >>> duration(3661.2)
    '1:01:01'
    """
    return str(timedelta(seconds=round(seconds)))
