"""Follow a run: one base class for progress, logging, live pages and checkpoints."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedpace.adapt import adapt
from fedpace.training.history import Row
from fedpace.training.stopping import Stop

if TYPE_CHECKING:
    from fedpace.training.checkpoint import Found, State


class RunInfo(NamedTuple):
    """Which run, and where it stands.

    `state` and `rng`, the generator of its draws, are there to be stored; None where the run is
    in another process.
    """

    scheme: str = ""
    seed: int = 0
    state: State | None = None
    rng: np.random.Generator | None = None


class Progress(NamedTuple):
    """Runs done of a study, and the seconds left as estimated; None before the first is done."""

    done: int
    total: int
    seconds_left: float | None = None


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


class Callback:
    """Follow runs; override what you need.

    Examples
    --------
    >>> class Print(Callback):
    ...     def on_row(self, run, row):
    ...         print(run.scheme, row.round, row.loss)
    """

    def resume(self) -> Found | None:
        """Return how far the run had got, to continue from there; None to begin."""
        return None

    def on_start(self, run: RunInfo, rows: Sequence[Row]) -> None:
        """Note that a run starts: with the row of the initial model, or those it resumes from."""

    def on_row(self, run: RunInfo, row: Row) -> None:
        """Receive a finished round, or asynchronous step."""

    def on_end(self, run: RunInfo) -> None:
        """Note that a run has ended, or begins again because its process was lost."""

    def on_progress(self, progress: Progress) -> None:
        """Receive how many runs of a study are done, at the start and after every run."""

    def on_warning(self, message: str) -> None:
        """Receive a line about a damaged file, a lost process and the like."""

    def flush(self) -> None:
        """Return when everything received is safe.

        Called after every synchronous round, and however a run ends.
        """


class _OnRow(Callback):
    """Call a function with every row."""

    def __init__(self, function: Callable[[Row], object]) -> None:
        self._function = function

    def on_row(self, run: RunInfo, row: Row) -> None:  # noqa: ARG002
        """Call the function."""
        self._function(row)


def as_callback(value: Any) -> Callback:
    """Return a callback; a plain function is called with every row."""
    if callable(value) and not isinstance(value, Callback):
        return _OnRow(value)
    return adapt(value, Callback, argument="callback", required=())
