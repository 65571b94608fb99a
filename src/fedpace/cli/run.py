"""The commands `fedpace run` and `fedpace report`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedpace.checks import positive_count
from fedpace.cli import options, output
from fedpace.samplers.build import resolve

if TYPE_CHECKING:
    from fedpace.studies.runner import Failure
    from fedpace.studies.study import Study


from contextlib import suppress
from threading import Event
from typing import TYPE_CHECKING

from fedpace.errors import InputError
from fedpace.files import made_folder

if TYPE_CHECKING:
    from fedpace.studies.store import StoredRun

# Most reasons of failed runs to print.
REASONS = 5

PROCESSES = options.checked(
    "Number of runs at the same time.", positive_count, default="one per core"
)
SCHEDULER = typer.Option(help="Run on the Dask cluster with this address: tcp://10.0.0.1:8786.")
SAVE = typer.Option("--save", help="Write the trained models to OUT/models, an .npz file per run.")


def run_command(
    setup: Annotated[str, options.SETUP],
    out: Annotated[Path, options.OUT],
    schemes: Annotated[str, options.CHOSEN] = "all",
    seeds: Annotated[int, options.SEEDS] = 5,
    first_seed: Annotated[int, options.FIRST] = 0,
    overrides: Annotated[list[str] | None, options.OVERRIDES] = None,
    processes: Annotated[int | None, PROCESSES] = None,
    scheduler: Annotated[str | None, SCHEDULER] = None,
    save: Annotated[bool, SAVE] = False,
    live: Annotated[bool, options.LIVE] = False,
    robust: Annotated[bool, options.ROBUST] = False,
    log: Annotated[list[str] | None, options.LOG] = None,
    folder: Annotated[Path | None, options.FOLDER] = None,
) -> None:
    """Run every scheme of a study with every seed. Stored runs are not repeated."""
    options.need("sim", "pydantic", "threadpoolctl")
    from fedpace.data.datasets import look_in
    from fedpace.studies.build import check_at_hand
    from fedpace.studies.grid import load_studies
    from fedpace.studies.runner import run_study, study_jobs, write_models
    from fedpace.studies.store import write_record

    studies = load_studies(setup, options.with_robust(overrides, robust))
    look_in(folder)
    if scheduler is None:
        for study in studies:
            check_at_hand(study)
    every = options.trained(any(study.training.asynchronous for study in studies))
    names = options.named_schemes(schemes, resolve, every=every)
    numbers = range(first_seed, first_seed + seeds)
    jobs = [study_jobs(study, names, numbers) for study in studies]
    write_record(out, studies[0], names, numbers)
    failures: list[Failure] = []
    with output.live_page(out, live) as page:
        for at, (study, mine) in enumerate(zip(studies, jobs, strict=True), 1):
            if len(studies) > 1:
                output.say(f"study {at} of {len(studies)}: {study.name}, {_devices(study)}")
            with (
                output.interruptible(out, mine.keys.values()),
                output.study_callbacks(study, out, page, log or ()) as callbacks,
                output.study_progress() as progress,
            ):
                done = run_study(
                    study,
                    names,
                    numbers,
                    out,
                    jobs=mine,
                    save=save,
                    processes=processes,
                    scheduler=scheduler,
                    callbacks=[progress, *callbacks],
                )
            failures += done.failures
            if len(studies) == 1:
                output.print_runs(out, mine.keys.values())
            if save and (written := write_models(study, mine.keys, out)):
                print(f"Models:  {written[0].parent}, one file for each of {len(written)} runs")
    output.print_logs(out, log or ())
    _say_failures(failures)
    output.print_next(out)
    if failures:
        raise typer.Exit(output.FAILED)


def _devices(study: Study) -> str:
    devices = study.devices
    return f"availability {devices.availability}, correlation {devices.correlation:g}"


def _say_failures(failures: Sequence[Failure]) -> None:
    if not failures:
        return
    output.say(f"failed runs: {len(failures)}; the same command tries them again")
    for failure in failures[:REASONS]:
        output.say(str(failure))
    if len(failures) > REASONS:
        output.say(f"and {len(failures) - REASONS} more")


DIRECTORY = typer.Argument(help="Directory of the runs, as given to fedpace run --out.")
OUT = typer.Option(help="Directory for the report.", show_default="that of the runs")
FIGURES = typer.Option("--figures", help="Also draw every chart as PNG and PDF.")


def report_command(
    directory: Annotated[Path, DIRECTORY],
    out: Annotated[Path | None, OUT] = None,
    figures: Annotated[bool, FIGURES] = False,
) -> None:
    """Compare the schemes of a study: a table, and a page with charts for the browser."""
    options.need("sim,report", "pydantic")
    from fedpace.report.report import Report

    report = Report.of(stored_runs(directory), output.say)
    out = made_folder(out or directory, "--out")
    tables = list(report.write_tables(out))
    report.show()
    print(f"Page:    {report.write_page(out, runs_in=directory)}")
    print(f"Tables:  {', '.join(map(str, tables))}")
    for path in report.write_figures(out, output.say) if figures else ():
        print(f"Figure:  {path}")


def live_command(directory: Annotated[Path, DIRECTORY]) -> None:
    """Serve the page of stored runs until Ctrl-C; runs that are added appear by themselves."""
    options.need("sim,report", "pydantic")
    stored_runs(directory)
    with suppress(KeyboardInterrupt), output.live_page(directory, True):
        Event().wait()


def stored_runs(directory: Path) -> list[StoredRun]:
    """Return the runs in a directory; unreadable files are named on standard error."""
    from fedpace.studies.store import Store

    if not directory.is_dir():
        raise InputError(f"{directory}: is not a directory; give the one of fedpace run --out")
    runs = list(Store(directory).runs(lambda message: output.say(f"left out: {message}")))
    if not runs:
        remedy = f"make some: fedpace run simulation-1 --out {directory}"
        raise InputError(f"{directory}: holds no finished runs; {remedy}")
    return runs
