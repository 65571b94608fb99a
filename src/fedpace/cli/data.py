"""The commands `fedpace data`: download datasets, and show which client holds what."""

import os
from collections.abc import Callable
from functools import partial
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
    dataset: Annotated[str, typer.Argument(help="mnist, emnist, cifar10 or shakespeare.")],
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
    from fedpace.data.images import POOLS, pool_paths
    from fedpace.data.natural import CIFAR10, SHAKESPEARE, cifar10_file, shakespeare_file
    from fedpace.report.tables import new_table, print_tables, printable

    look_in(folder)
    table = new_table("Datasets", "dataset")
    table.add_column("files")
    finders: dict[str, Callable[[], list[Path]]]
    finders = {name: partial(pool_paths, name) for name in POOLS}
    finders |= {CIFAR10: lambda: [cifar10_file()], SHAKESPEARE: lambda: [shakespeare_file()]}
    for name, find in finders.items():
        try:
            found = ", ".join(map(str, find()))
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
    from fedpace.data.natural import CIFAR10, CIFAR10_CLASSES
    from fedpace.report import charts, clients, tables
    from fedpace.studies.build import split
    from fedpace.studies.study import load_study

    look_in(folder)
    study = load_study(setup, overrides or ())
    data = split(study, seed)
    if data.train.y.ndim > 1:
        got = f"'{setup}', whose samples are sequences; open another setup"
        raise InputError(f"setup must have one class per sample, got {got}")
    classes = max(data.train.classes, data.test.classes)
    names = (NAMES | {CIFAR10: CIFAR10_CLASSES}).get(
        study.data.kind, tuple(map(str, range(classes)))
    )
    title = f"{study.name}, data of seed {seed if study.data.seed is None else study.data.seed}"
    counts = clients.class_counts(data.train, len(names))
    table = clients.sizes_table(data, counts, title=title)
    tables.print_tables(table, clients.classes_table(counts, names))
    if out is not None:
        title = f"Samples by client and class: {title}"
        figure = clients.distribution_figure(counts, names=names, title=title)
        charts.save(out, figure)
    output.print_written(out)
