"""What commands print beside their results: messages, progress, and the table of runs."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import typer

from fedpace.errors import TooFewClientsError
from fedpace.files import make_folder

if TYPE_CHECKING:
    from rich import progress as bars
    from rich.console import Console

    from fedpace.data.datasets import DownloadProgress
    from fedpace.report.live import Live
    from fedpace.studies.study import Study
    from fedpace.training.callbacks import Callback

T = TypeVar("T")
Say: TypeAlias = Callable[[str], None]

# The conventional exit statuses: some runs failed; bad input; ended by Ctrl-C.
FAILED, REFUSED, INTERRUPTED = 1, 2, 130
# What predicted times leave out; from docs/results, Simulation Setup 1.
OVERSTATED = (
    "Note: predicted times are those of a bound, which assumes the worst variance and so favours "
    "many clients per round. In training on Simulation Setup 1 full participation was the slowest, "
    "3.8 times as slow as optimal-mean (docs/results)."
)
# The text of a progress bar's column.
DONE = "{task.completed}/{task.total}"


def say(message: str) -> None:
    """Print one line on standard error."""
    print(f"fedpace: {' '.join(message.split())}", file=sys.stderr, flush=True)


def print_written(*paths: Path | None) -> None:
    """Print the files that were written."""
    for path in filter(None, paths):
        print(f"Written: {path}")


def print_logs(out: Path, logs: Sequence[str]) -> None:
    """Print where loggers wrote."""
    if logs:
        from fedpace.studies.callbacks import FOLDER

        print(f"Logs:    {out / FOLDER}, by {', '.join(logs)}")


def print_next(out: Path) -> None:
    """Print the command that shows the results of a study."""
    print(f"Next: fedpace report {shlex.quote(str(out))}")


def print_runs(out: Path, keys: Collection[str]) -> None:
    """Print the table of the runs with these keys, and mention others in the directory."""
    from fedpace.report import notes, setups, summary, tables
    from fedpace.studies.store import Store

    store, keys = Store(out), set(keys)
    if mine := list(store.runs(say, keys=keys)):
        setup = setups.setups_of(mine)[0]
        tables.print_tables(tables.runs_table(summary.summarise(setup)))
        for line in notes.privacy_notes(setup):
            print(line)
    if others := len(store.keys() - keys):
        say(f"{out} also holds other runs ({others}), which this table leaves out")


@contextmanager
def interruptible(out: Path, keys: Collection[str]) -> Iterator[None]:
    """Print the number of stored runs if Ctrl-C or a lack of clients ends the command."""
    from fedpace.studies.store import Store

    try:
        yield
    except (KeyboardInterrupt, TooFewClientsError) as error:
        if isinstance(error, TooFewClientsError):
            say(str(error))
        stored = len(Store(out).keys() & set(keys))
        safe = f"{stored} of {len(keys)} runs are stored in {out}"
        say(f"interrupted: {safe}; the same command continues from there")
        status = INTERRUPTED if isinstance(error, KeyboardInterrupt) else FAILED
        raise typer.Exit(status) from None


def with_progress(items: Iterable[T], total: int, label: str, *, quiet: bool) -> Iterator[T]:
    """Yield the items, with a progress bar on a terminal."""
    from rich import progress as bars

    times = (bars.TimeElapsedColumn(), bars.TimeRemainingColumn())
    with _bar(label, bars.BarColumn(), DONE, *times, transient=True, shown=not quiet) as bar:
        yield from bar.track(items, total=total)


@contextmanager
def downloads() -> Iterator[DownloadProgress]:
    """Yield a function that shows the progress of downloads."""
    from rich import progress as bars

    speed = (bars.DownloadColumn(), bars.TransferSpeedColumn(), bars.TimeRemainingColumn())
    tasks: dict[str, bars.TaskID] = {}
    with _bar("{task.description}", bars.BarColumn(), *speed) as bar:

        def show(file: str, done: int, total: int | None) -> None:
            if file not in tasks:
                tasks[file] = bar.add_task(file)
            bar.update(tasks[file], completed=done, total=total)

        yield show


@contextmanager
def study_progress() -> Iterator[Callback]:
    """Yield a callback that shows progress and warnings: a bar on a terminal, else lines."""
    from rich import progress as bars

    from fedpace.studies.callbacks import ProgressLines
    from fedpace.training.callbacks import Callback, Progress, time_left

    class Bar(Callback):
        def on_progress(self, progress: Progress) -> None:
            left = time_left(progress)
            bar.update(task, completed=progress.done, total=progress.total, left=left)

        def on_warning(self, message: str) -> None:
            beside(bar.console)(message)

    columns = ("runs", bars.BarColumn(), DONE, bars.TimeElapsedColumn(), "{task.fields[left]}")
    with _bar(*columns) as bar:
        task = bar.add_task("runs", total=None, left="")
        yield ProgressLines() if bar.disable else Bar()


@contextmanager
def live_page(out: Path, wanted: bool) -> Iterator[Live | None]:
    """Serve the report of a directory while it grows, if `wanted`, and print its address."""
    if not wanted:
        yield None
        return
    from fedpace.report.live import Live

    with Live(make_folder(out, "--out"), say) as live:
        say(f"live page: {live.url}")
        yield live


@contextmanager
def study_callbacks(
    study: Study, out: Path, live: Live | None, logs: Sequence[str]
) -> Iterator[list[Callback]]:
    """Yield the callbacks of a study: its loggers, and the live page if there is one."""
    from fedpace.studies.callbacks import loggers

    with ExitStack() as stack:
        found = [stack.enter_context(each) for each in loggers(logs, study, out, warn=say)]
        if live is not None:
            live.of(study)
        yield [*found, *filter(None, [live])]


def beside(console: Console) -> Say:
    """Return a function that prints a line above the progress on a terminal."""
    return lambda message: console.print(f"fedpace: {message}", soft_wrap=True, markup=False)


def _bar(
    *columns: str | bars.ProgressColumn, transient: bool = False, shown: bool = True
) -> bars.Progress:
    from rich import progress as bars
    from rich.console import Console

    console = Console(stderr=True)
    hidden = not (shown and console.is_terminal)
    return bars.Progress(*columns, console=console, transient=transient, disable=hidden)
