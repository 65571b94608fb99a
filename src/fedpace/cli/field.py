"""The commands `fedpace field`: tune all schemes alike and compare them, cell by cell."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedpace.checks import positive_count
from fedpace.cli import options, output
from fedpace.cli.run import PROCESSES, SCHEDULER
from fedpace.errors import InputError

SCHEMES = typer.Option("--schemes", help="Names, separated by commas, that train in rounds.")
ASYNCHRONOUSLY = typer.Option(
    "--asynchronous", help="Names, separated by commas, that train asynchronously."
)
TRIALS = options.checked(
    "Trials of each scheme: settings of rate, local steps and its own knobs.", positive_count
)
TUNING = options.checked("Seeds of a trial, from 1000 on.", positive_count)
OUT = typer.Option(help="Directory of the cells. Give the same one again to continue.")
FIRST_TUNING = 1000


def compare_command(
    setup: Annotated[str, options.SETUP],
    out: Annotated[Path, OUT],
    schemes: Annotated[str, SCHEMES] = "pace,uniform,weighted",
    asynchronous: Annotated[str, ASYNCHRONOUSLY] = "",
    trials: Annotated[int, TRIALS] = 24,
    tuning_seeds: Annotated[int, TUNING] = 1,
    seeds: Annotated[int, options.SEEDS] = 5,
    overrides: Annotated[list[str] | None, options.OVERRIDES] = None,
    processes: Annotated[int | None, PROCESSES] = None,
    scheduler: Annotated[str | None, SCHEDULER] = None,
    folder: Annotated[Path | None, options.FOLDER] = None,
) -> None:
    """Tune each scheme with as many trials on other seeds, then compare the winners."""
    options.need("sim,report", "pydantic")
    from fedpace.data.datasets import look_in
    from fedpace.report.tuning import ASYNCHRONOUS, check_schemes, compare
    from fedpace.studies.grid import load_studies

    look_in(folder)
    names = [name.strip() for name in schemes.split(",") if name.strip()]
    names += [name.strip() + ASYNCHRONOUS for name in asynchronous.split(",") if name.strip()]
    check_schemes(names)
    for study in load_studies(setup, overrides or ()):
        path = compare(
            study,
            names,
            out,
            tuning_seeds=range(FIRST_TUNING, FIRST_TUNING + tuning_seeds),
            seeds=range(seeds),
            count=trials,
            say=output.say,
            processes=processes,
            scheduler=scheduler,
        )
        print(f"Table:  {path}")


def export_command(
    directory: Annotated[Path, typer.Argument(help="Directory of fedpace field compare --out.")],
) -> None:
    """Write one CSV for each cell: a line per scheme, with paired intervals."""
    options.need("sim,report", "pydantic")
    from fedpace.report.tuning import export

    places = sorted(path.parent for path in directory.glob("*/winners.json"))
    if not places:
        raise InputError(
            f"{directory}: must hold compared cells, got none; make some: fedpace field compare "
            f"field --out {directory}"
        )
    for place in places:
        print(f"Table:  {export(place)}")
