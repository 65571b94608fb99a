"""The command `fedpace run`: a simulated study."""

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
