"""The command `fedpace run`: a simulated study."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedpace.checks import positive_count
from fedpace.cli import options, output
from fedpace.errors import InputError
from fedpace.estimation.policy import named

if TYPE_CHECKING:
    from fedpace.studies.runner import Failure
    from fedpace.studies.study import Study

# The first reasons of failed runs to print.
REASONS = 5

PROCESSES = options.checked(
    "Number of runs at the same time.", positive_count, default="one per core"
)
SCHEDULER = typer.Option(help="Run on the Dask cluster with this address: tcp://10.0.0.1:8786.")
SPREAD = typer.Option(
    metavar="runs|clients",
    help="With --scheduler: give each worker a whole run, or some clients of each round.",
)

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
    spread: Annotated[str, SPREAD] = "runs",
    save: Annotated[bool, SAVE] = False,
    live: Annotated[bool, options.LIVE] = False,
    log: Annotated[list[str] | None, options.LOG] = None,
    folder: Annotated[Path | None, options.FOLDER] = None,
) -> None:
    """Run a study, or the studies of a grid: every scheme with every seed, each run once."""
    options.need("sim", "pydantic", "threadpoolctl")
    from fedpace.data.cache import look_in
    from fedpace.studies.experiment import check_at_hand
    from fedpace.studies.grid import load_studies
    from fedpace.studies.record import write_record
    from fedpace.studies.runner import checked_jobs, run_study
    from fedpace.studies.saving import write_models

    studies = load_studies(setup, overrides or ())
    look_in(folder)
    if scheduler is None:
        for study in studies:
            check_at_hand(study)
    names = options.named_schemes(schemes, named, every=options.TRAINED)
    numbers = range(first_seed, first_seed + seeds)
    if spread != "runs" and (spread != "clients" or scheduler is None):
        raise InputError(
            f"--spread must be runs, or clients with a --scheduler, got '{spread}'; "
            "give the address of a Dask scheduler"
        )
    jobs = [checked_jobs(study, names, numbers) for study in studies]
    write_record(out, studies[0], names, numbers)
    failures: list[Failure] = []
    with output.live_page(out, live) as page:
        for at, (study, mine) in enumerate(zip(studies, jobs, strict=True), 1):
            if len(studies) > 1:
                output.say(f"study {at} of {len(studies)}: {study.name}, {_devices(study)}")
            with (
                output.interruptible(out, study, mine),
                output.watched(study, out, page, log or ()) as watcher,
                output.runs_done(page) as (progress, warn),
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
                    spread="runs" if spread == "runs" else "clients",
                    progress=progress,
                    warn=warn,
                    watcher=watcher,
                )
            failures += done.failures
            if len(studies) == 1:
                output.print_runs(out, study, mine)
            if save and (written := write_models(study, mine, out)):
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
