"""The commands `fedpace data`: download datasets, and show which client holds what."""

import os
from pathlib import Path
from typing import Annotated

import typer

from fedpace.cli import options, output
from fedpace.errors import InputError

MIRROR = typer.Option(
    metavar="ADDRESS",
    help="Web address of a folder with the same files.",
    show_default="the official address",
)
SEED = options.checked(
    "Seed of the run; a setup with its own data.seed does not use it.", options.natural
)


def fetch_command(
    dataset: Annotated[str, typer.Argument(help="mnist or emnist.")],
    folder: Annotated[Path | None, options.FOLDER] = None,
    mirror: Annotated[str | None, MIRROR] = None,
) -> None:
    """Download a dataset and check it. An interrupted download continues next time."""
    from fedpace.data.datasets import VARIABLE, fetch

    if folder is not None:
        os.environ[VARIABLE] = str(folder)  # which fetch creates
    with output.downloads() as progress:
        paths = fetch(dataset, progress=progress, address=mirror)
    for path in paths:
        print(f"{path}: {path.stat().st_size:,} bytes, checksum correct")


def where_command(folder: Annotated[Path | None, options.FOLDER] = None) -> None:
    """Show where each dataset is, or how to get it."""
    from fedpace.data.datasets import look_in
    from fedpace.data.images import POOLS, pool_files
    from fedpace.report.tables import new_table, print_tables, printable

    look_in(folder)
    table = new_table("Datasets", "dataset")
    table.add_column("files")
    for name in POOLS:
        try:
            found = ", ".join(dict.fromkeys(str(files.images.path) for files in pool_files(name)))
        except InputError as error:
            found = str(error)
        table.add_row(name, printable(found))
    print_tables(table)


def show_command(
    setup: Annotated[str, options.SETUP],
    seed: Annotated[int, SEED] = 0,
    out: Annotated[Path | None, options.picture("which client holds what")] = None,
    overrides: Annotated[list[str] | None, options.OVERRIDES] = None,
    folder: Annotated[Path | None, options.FOLDER] = None,
) -> None:
    """Show how a setup divides its samples and classes among the clients."""
    options.need("sim,report", "pydantic")
    from fedpace.data.datasets import look_in
    from fedpace.data.images import NAMES
    from fedpace.report import charts, data_distribution, tables
    from fedpace.studies.build import split
    from fedpace.studies.study import load_study

    look_in(folder)
    study = load_study(setup, overrides or ())
    data = split(study, seed)
    classes = max(data.train.classes, data.test.classes)
    names = NAMES.get(study.data.kind, tuple(map(str, range(classes))))
    title = f"{study.name}, data of seed {seed if study.data.seed is None else study.data.seed}"
    counts = data_distribution.class_counts(data.train, len(names))
    table = data_distribution.sizes_table(data, counts, title=title)
    tables.print_tables(table, data_distribution.classes_table(counts, names))
    if out is not None:
        title = f"Samples by client and class: {title}"
        figure = data_distribution.distribution_figure(counts, names=names, title=title)
        charts.save(out, figure)
    output.print_written(out)
