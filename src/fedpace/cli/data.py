"""The commands `fedpace data`: download datasets, and show which client holds what."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedpace.cli import options, output
from fedpace.errors import InputError

if TYPE_CHECKING:
    from fedpace.data.shards import Split
    from fedpace.studies.study import Study


DATASET = typer.Argument(help="mnist or emnist.")
MIRROR = typer.Option(
    metavar="ADDRESS",
    help="Web address of a folder with the same files.",
    show_default="the official address",
)
SEED = options.checked(
    "Seed of the run; a setup with its own data.seed does not use it.", options.natural
)


def fetch_command(
    dataset: Annotated[str, DATASET],
    folder: Annotated[Path | None, options.FOLDER] = None,
    mirror: Annotated[str | None, MIRROR] = None,
) -> None:
    """Download a dataset and check it. An interrupted download continues next time."""
    from fedpace.data.cache import VARIABLE, fetch

    if folder is not None:
        os.environ[VARIABLE] = str(folder)  # which fetch creates
    with output.downloads() as progress:
        paths = fetch(dataset, progress=progress, address=mirror)
    for path in paths:
        print(f"{path}: {path.stat().st_size:,} bytes, checksum correct")


def where_command(folder: Annotated[Path | None, options.FOLDER] = None) -> None:
    """Show where each dataset is, or how to get it."""
    from fedpace.data.cache import look_in
    from fedpace.data.image_files import pool_files
    from fedpace.data.images import POOLS

    look_in(folder)
    for name in POOLS:
        try:
            found = dict.fromkeys(str(files.images.path) for files in pool_files(name))
            print(f"{name}: {', '.join(found)}")
        except InputError as error:
            print(f"{name}: {error}")


def show_command(
    setup: Annotated[str, options.SETUP],
    seed: Annotated[int, SEED] = 0,
    out: Annotated[Path | None, options.picture("which client holds what")] = None,
    overrides: Annotated[list[str] | None, options.OVERRIDES] = None,
    folder: Annotated[Path | None, options.FOLDER] = None,
) -> None:
    """Show how a setup divides its samples and classes among the clients."""
    options.need("sim,report", "pydantic")
    from fedpace.data.cache import look_in
    from fedpace.studies.experiment import split
    from fedpace.studies.study import load_study

    look_in(folder)
    study = load_study(setup, overrides or ())
    _show(study, seed, split(study, seed), out)


def _show(study: Study, seed: int, data: Split, out: Path | None) -> None:
    """Print the tables, and draw the figure."""
    from fedpace.data.images import NAMES
    from fedpace.report.figures import save
    from fedpace.report.holdings import classes_table, held, holdings_figure, holdings_table
    from fedpace.report.tables import print_tables

    classes = max(data.train.classes, data.test.classes)
    names = NAMES.get(study.data.kind, tuple(map(str, range(classes))))
    drawn = seed if study.data.seed is None else study.data.seed
    title = f"{study.name}, data of seed {drawn}"
    counts = held(data.train, len(names))
    print_tables(holdings_table(data, counts, title=title), classes_table(counts, names))
    if out is not None:
        save(holdings_figure(counts, names=names, title=f"Who holds what: {title}"), out)
    output.print_written(out)
