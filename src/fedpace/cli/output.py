"""What commands print beside their results: single lines, progress, and which runs are stored."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import typer
from rich import progress as bars
from rich.console import Console

from fedpace.errors import TooFewClientsError
from fedpace.files import made_folder

if TYPE_CHECKING:
    from fedpace.data import download
    from fedpace.report.live import Live
    from fedpace.studies.processes import Job
    from fedpace.studies.runner import Standing
    from fedpace.studies.study import Study
    from fedpace.studies.watching import Watcher

T = TypeVar("T")
Say: TypeAlias = Callable[[str], None]

# The conventional exit statuses: some runs failed; bad input; ended by Ctrl-C.
FAILED, REFUSED, INTERRUPTED = 1, 2, 130
# Without a terminal a line is printed whenever another of this many parts is done.
PARTS = 10
# What predicted times leave out; from docs/results, Simulation Setup 1.
OVERSTATED = (
    "Note: predicted times are those of a bound, which charges variance at its worst and so "
    "favours many clients a round. In training on Simulation Setup 1 full participation was the "
    "slowest, 3.8 times as slow as optimal-mean (docs/results)."
)
# The text of a progress bar's column.
DONE = "{task.completed}/{task.total}"


def say(message: str) -> None:
    """Tell the user something beside the results: one line, on standard error, at once."""
    print(f"fedpace: {' '.join(message.split())}", file=sys.stderr, flush=True)


def print_written(*paths: Path | None) -> None:
    """Print the files that were written."""
    for path in filter(None, paths):
        print(f"Written: {path}")


def print_logs(out: Path, logs: Sequence[str]) -> None:
    """Print where loggers wrote."""
    if logs:
        from fedpace.studies.loggers import FOLDER

        print(f"Logs:    {out / FOLDER}, by {', '.join(logs)}")


def print_next(out: Path) -> None:
    """Print the command that shows what a study came to."""
    print(f"Next: fedpace report {shlex.quote(str(out))}")


def print_runs(out: Path, study: Study, jobs: Sequence[Job]) -> None:
    """Print the table of this command's runs, and say what else is in the directory."""
    from fedpace.report import privacy, setups, summary, tables
    from fedpace.studies.store import Store, run_key

    store, keys = Store(out), {run_key(study, *job) for job in jobs}
    if mine := list(store.runs(say, keys=keys)):
        setup = setups.setups_of(mine)[0]
        tables.print_tables(tables.runs_table(summary.summarise(setup)))
        for line in privacy.privacy_notes(setup):
            print(line)
    if others := len(store.keys() - keys):
        say(f"{out} also holds other runs ({others}), which this table leaves out")


@contextmanager
def interruptible(out: Path, study: Study, jobs: Sequence[Job]) -> Iterator[None]:
    """Say how many runs are safe where Ctrl-C or a lack of clients ends the command."""
    from fedpace.studies.store import Store, run_key

    try:
        yield
    except (KeyboardInterrupt, TooFewClientsError) as error:
        if isinstance(error, TooFewClientsError):
            say(str(error))
        stored = len(Store(out).keys() & {run_key(study, *job) for job in jobs})
        safe = f"{stored} of {len(jobs)} runs are stored in {out}"
        say(f"interrupted: {safe}; the same command continues from there")
        status = INTERRUPTED if isinstance(error, KeyboardInterrupt) else FAILED
        raise typer.Exit(status) from None


def with_progress(items: Iterable[T], total: int, label: str, *, quiet: bool) -> Iterator[T]:
    """Yield the items, and show on a terminal how many are done."""
    times = (bars.TimeElapsedColumn(), bars.TimeRemainingColumn())
    with _bar(label, bars.BarColumn(), DONE, *times, transient=True, shown=not quiet) as bar:
        yield from bar.track(items, total=total)


@contextmanager
def downloads() -> Iterator[download.Progress]:
    """Return how to show the bytes that have come."""
    speed = (bars.DownloadColumn(), bars.TransferSpeedColumn(), bars.TimeRemainingColumn())
    tasks: dict[str, bars.TaskID] = {}
    with _bar("{task.description}", bars.BarColumn(), *speed) as bar:

        def show(file: str, done: int, total: int | None) -> None:
            if file not in tasks:
                tasks[file] = bar.add_task(file)
            bar.update(tasks[file], completed=done, total=total)

        yield show


@contextmanager
def runs_done(live: Live | None) -> Iterator[tuple[Callable[[Standing], None], Say]]:
    """Return how to show how many runs are done, and how to say something beside it."""
    columns = ("runs", bars.BarColumn(), DONE, bars.TimeElapsedColumn(), "{task.fields[left]}")
    begin, parts = time.monotonic(), set[int]()
    with _bar(*columns) as bar:
        task = bar.add_task("runs", total=None, left="")

        def show(now: Standing) -> None:
            left = "" if now.seconds_left is None else f"about {duration(now.seconds_left)} left"
            bar.update(task, completed=now.done, total=now.total, left=left)
            if live is not None:
                live.standing(now)
            if bar.disable and (part := now.done * PARTS // now.total) not in parts:
                parts.add(part)
                line = f"{now.done}/{now.total} runs, {duration(time.monotonic() - begin)} elapsed"
                print(line, *filter(None, [left]), sep=", ", file=sys.stderr, flush=True)

        yield show, say if bar.disable else beside(bar.console)


@contextmanager
def live_page(out: Path, wanted: bool) -> Iterator[Live | None]:
    """Serve the page of the runs in a directory where that is wanted, and say where."""
    if not wanted:
        yield None
        return
    from fedpace.report.live import Live

    with Live(made_folder(out, "--out"), say) as live:
        say(f"live page: {live.url}")
        yield live


@contextmanager
def watched(
    study: Study, out: Path, live: Live | None, logs: Sequence[str]
) -> Iterator[Watcher | None]:
    """Return who sees the rounds of a study's runs: the page and the loggers, if any."""
    if live is None and not logs:
        yield None
        return
    from fedpace.studies.loggers import loggers
    from fedpace.studies.watching import Watchers

    if live is not None:
        live.of(study)
    with ExitStack() as stack:
        made = [stack.enter_context(each) for each in loggers(logs, study, out, warn=say)]
        yield Watchers(*made, *filter(None, [live]))


def beside(console: Console) -> Say:
    """Return how to say something above what a terminal shows and replaces."""
    return lambda message: console.print(f"fedpace: {message}", soft_wrap=True, markup=False)


def _bar(
    *columns: str | bars.ProgressColumn, transient: bool = False, shown: bool = True
) -> bars.Progress:
    console = Console(stderr=True)
    hidden = not (shown and console.is_terminal)
    return bars.Progress(*columns, console=console, transient=transient, disable=hidden)


def duration(seconds: float) -> str:
    """Return a time in hours, minutes and seconds.

    >>> duration(3661.2)
    '1:01:01'
    """
    return str(timedelta(seconds=round(seconds)))
