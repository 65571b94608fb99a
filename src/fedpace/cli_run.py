"""The command `fedpace run`: reads arguments, calls the runner, prints."""

from __future__ import annotations

import json
import math
import platform
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import fedpace
from fedpace.checks import positive_count
from fedpace.cli_data import FOLDER, OVERRIDES, SETUP, say
from fedpace.errors import InputError, MissingExtraError, nearest
from fedpace.files import made_folder, write_text
from fedpace.sampling.schemes import SCHEMES

if TYPE_CHECKING:
    from fedpace.report.summary import Interval, SchemeSummary
    from fedpace.studies.processes import Job
    from fedpace.studies.runner import Failure, Spread, Standing
    from fedpace.studies.store import Store
    from fedpace.studies.study import Study

# The conventional statuses: some runs failed; ended by Ctrl-C.
FAILED, INTERRUPTED = 1, 130
# So many reasons tell as much as all of them.
REASONS = 5
# Without a terminal a line is printed whenever another of this many parts is done.
PARTS = 10


OUT = typer.Option(help="The directory for the runs; the same one resumes.")
CHOSEN = typer.Option(help=f"all, or some of: {', '.join(SCHEMES)}.")
COUNT = typer.Option(help="How many seeds.")
FIRST = typer.Option(help="The first of them.")


def run_command(
    setup: Annotated[str, SETUP],
    out: Annotated[Path, OUT],
    schemes: Annotated[str, CHOSEN] = "all",
    seeds: Annotated[int, COUNT] = 5,
    first_seed: Annotated[int, FIRST] = 0,
    overrides: Annotated[list[str] | None, OVERRIDES] = None,
    processes: Annotated[
        int | None, typer.Option(help="Runs at a time.", show_default="one per core")
    ] = None,
    scheduler: Annotated[
        str | None,
        typer.Option(help="Run on a Dask cluster, such as tcp://10.0.0.1:8786, instead."),
    ] = None,
    spread: Annotated[
        str,
        typer.Option(help="What a cluster's workers do: whole runs, or the clients of each round."),
    ] = "runs",
    folder: Annotated[Path | None, FOLDER] = None,
) -> None:
    """Run a study: every scheme with every seed; what is stored already is not run again."""
    _need_studies()
    from fedpace.data.cache import look_in
    from fedpace.studies.experiment import check_at_hand
    from fedpace.studies.runner import checked_jobs, run_study
    from fedpace.studies.store import Store
    from fedpace.studies.study import load_study

    study = load_study(setup, overrides or ())
    look_in(folder)
    if scheduler is None:
        check_at_hand(study)
    names = named_schemes(schemes)
    numbers = chosen_seeds(seeds, first_seed)
    if processes is not None:
        positive_count("--processes", processes)
    what = _spread(spread, scheduler)
    jobs = checked_jobs(study, names, numbers)
    write_study(out, study, names, numbers)
    try:
        with _shown_progress() as (progress, beside):
            done = run_study(
                study,
                names,
                numbers,
                out,
                processes=processes,
                scheduler=scheduler,
                spread=what,
                progress=progress,
                warn=beside,
            )
    except KeyboardInterrupt:
        say(interruption(Store(out), study, jobs))
        raise typer.Exit(INTERRUPTED) from None
    print_runs(Store(out), study, jobs)
    _say_failures(done.failures)
    typer.echo(f"Next: fedpace report {shlex.quote(str(out))}")
    if done.failures:
        raise typer.Exit(FAILED)


def named_schemes(text: str) -> list[str]:
    """Return the schemes of a list with commas; "all" are the six that are compared.

    >>> named_schemes("uniform, optimal-mean")
    ['uniform', 'optimal-mean']
    """
    if text.strip() == "all":
        return list(SCHEMES)
    names = [name.strip() for name in text.split(",")]
    known = ("all", *SCHEMES)
    for name in names:
        if name not in known or name == "all":
            raise InputError(
                f"--schemes must be all or known names, got '{name}'; {nearest(name, known)}"
            )
    return list(dict.fromkeys(names))


def write_study(out: Path, study: Study, schemes: Sequence[str], seeds: Sequence[int]) -> None:
    """Write study.json: the configuration, what it was run with, and how to run it again."""
    record = {
        "study": study.model_dump(mode="json"),
        "schemes": list(schemes),
        "seeds": [seeds[0], seeds[-1]],
        "command": shlex.join(["fedpace", *sys.argv[1:]]),
        "versions": _versions(),
    }
    made_folder(out, "--out")
    write_text(out / "study.json", json.dumps(record, indent=2) + "\n")


def interruption(store: Store, study: Study, jobs: Sequence[Job]) -> str:
    """Say how much is safe after Ctrl-C."""
    from fedpace.studies.store import run_key

    stored = sum(store.find(run_key(study, *job)) is not None for job in jobs)
    return (
        f"interrupted: {stored} of {len(jobs)} runs are stored in {store.directory}; "
        "the same command goes on from there"
    )


def summary_table(rows: Sequence[SchemeSummary], target: str) -> Table:
    """Show the seconds to the target of each scheme."""
    table = Table(
        title=f"Seconds to {target}", title_justify="left", title_style="", box=box.SIMPLE_HEAD
    )
    table.add_column("scheme")
    for title in ("runs", "reached\ntarget", "mean seconds\nto target", "ratio to\noptimal-mean"):
        table.add_column(title, justify="right")
    for row in rows:
        seconds, ratio = _number(row.seconds, ".1f"), _number(row.to_proposed, ".2f")
        table.add_row(row.scheme, str(row.runs), str(row.reached), seconds, ratio)
    return table


def _need_studies() -> None:
    if not (find_spec("pydantic") and find_spec("threadpoolctl")):
        raise MissingExtraError(
            "studies need Pydantic and threadpoolctl; install them with: pip install 'fedpace[sim]'"
        )


def chosen_seeds(count: int, first: int) -> range:
    """Return the seeds, or say what is wrong with their number or the first."""
    if first < 0:
        raise InputError(f"--first-seed must be at least 0, got {first}; leave it out")
    return range(first, first + positive_count("--seeds", count))


def _spread(text: str, scheduler: str | None) -> Spread:
    if text == "clients" and scheduler is not None:
        return "clients"
    if text == "runs":
        return "runs"
    raise InputError(
        f"--spread must be runs, or clients with a --scheduler, got '{text}'; "
        "give the address of a Dask scheduler"
    )


def _versions() -> dict[str, str]:
    packages = {name: version(name) for name in ("numpy", "scipy", "pydantic")}
    python = {"python": platform.python_version(), "platform": platform.platform()}
    return {"fedpace": fedpace.__version__} | packages | python


def _number(value: Interval, form: str) -> str:
    """Return "≥ 12.3" where runs that never got there would make it larger, "–" for nothing."""
    if math.isnan(value.value):
        return "–"
    return f"{value.bound} {value.value:{form}}".strip()


def print_runs(store: Store, study: Study, jobs: Sequence[Job]) -> None:
    """Print the table of this command's runs, and say what else is in the directory."""
    from fedpace.report.setups import setups_of
    from fedpace.report.summary import summarise
    from fedpace.studies.store import run_key

    keys = {run_key(study, *job) for job in jobs}
    mine, others = [], 0
    for key, run in store.keyed_runs(say):
        if key in keys:
            mine.append(run)
        elif run_key(study, run.scheme, run.seed) != key:
            others += 1
    if mine:
        summary = summarise(setups_of(mine)[0])
        Console().print(summary_table(summary.rows, summary.target))
    if others:
        say(f"{store.directory} also holds {others} runs of other configurations; kept apart")


def _say_failures(failures: Sequence[Failure]) -> None:
    if not failures:
        return
    say(f"failed runs: {len(failures)}; the same command tries them again")
    for failure in failures[:REASONS]:
        say(str(failure))
    if len(failures) > REASONS:
        say(f"and {len(failures) - REASONS} more")


@contextmanager
def _shown_progress() -> Iterator[tuple[Callable[[Standing], None], Callable[[str], None]]]:
    """Return how to show the standing and how to say something beside it, on standard error."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines().show, say
        return
    bar = Progress(
        TextColumn("runs"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
        console=console,
    )
    task = bar.add_task("runs", total=None, left="")
    with bar:
        yield (
            lambda now: bar.update(task, completed=now.done, total=now.total, left=_left(now)),
            lambda message: bar.console.print(f"fedpace: {message}", soft_wrap=True, markup=False),
        )


class _Lines:
    """Print a line whenever another tenth of the runs is done."""

    def __init__(self) -> None:
        self._begin = time.monotonic()
        self._parts = -1

    def show(self, now: Standing) -> None:
        """Print the standing, unless that was done for this tenth."""
        parts = now.done * PARTS // now.total
        if parts == self._parts:
            return
        self._parts = parts
        elapsed = _clock(time.monotonic() - self._begin)
        line = f"{now.done}/{now.total} runs, {elapsed} elapsed, {_left(now)}"
        print(line.rstrip(", "), file=sys.stderr, flush=True)


def _left(now: Standing) -> str:
    return "" if now.seconds_left is None else f"about {_clock(now.seconds_left)} left"


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
