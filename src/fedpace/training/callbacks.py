"""Follow a run: one base class for progress, logging, live pages and checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedpace.adapt import adapt
from fedpace.training.history import Row

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
