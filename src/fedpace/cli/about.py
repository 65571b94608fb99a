"""The commands `fedpace doctor`, `schema` and `data`: what is installed and at hand."""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Callable
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer

import fedpace
from fedpace.cli import options, output
from fedpace.errors import InputError
from fedpace.files import write_text

EXTRA = re.compile(r"^([\w.-]+).*extra == ['\"]([\w-]+)['\"]$")
FILE = typer.Argument(help="File to write; standard output without it.")


def doctor_command() -> None:
    """Show versions, installed extras, datasets and cores: put this into a bug report."""
    from rich.markup import escape

    from fedpace.report.tables import new_table, print_tables, printable

    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    print(f"fedpace {fedpace.__version__}, in {Path(fedpace.__file__).parent}")
    print(f"Python {platform.python_version()}, {platform.platform()}")
    print(f"{len(os.sched_getaffinity(0))} cores for this process, {memory:.1f} GiB of memory")
    table = new_table("Extras", "extra")
    table.add_column("packages")
    extras = _extras()
    for extra, packages in extras.items():
        own = [name for name in packages if extra == "sim" or name not in extras["sim"]]
        found = [f"{name} {_version(name) or 'missing'}" for name in own]
        missing = any(_version(name) is None for name in own)
        remedy = [f"pip install 'fedpace[{extra}]'"] * missing
        table.add_row(extra, escape(printable(", ".join([*found, *remedy]))))
    print_tables(table)
    if _version("pooch"):
        from fedpace.data.images import POOLS, pool_files

        for name in POOLS:
            try:
                print(f"dataset {name}: {pool_files(name)[0].images.path.parent}")
            except InputError as error:
                print(f"dataset {name}: {printable(str(error))}")


def schema_command(file: Annotated[Path | None, FILE] = None) -> None:
    """Write the JSON schema of a study's TOML, for completion and checks in editors."""
    options.need("sim", "pydantic")
    from fedpace.studies.study import json_schema

    text = json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n"
    if file is None:
        print(text, end="")
        return
    write_text(file, text)
    print(f"{file}: written. Put this line first in a study: #:schema ./{file.name}")


def _extras() -> dict[str, list[str]]:
    """Return the packages of each extra, without fedpace itself."""
    found: dict[str, list[str]] = {}
    for requirement in metadata.requires("fedpace") or ():
        if (match := EXTRA.match(requirement)) and match[1] != "fedpace":
            found.setdefault(match[2], []).append(match[1])
    return found


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


MIRROR = typer.Option(
    metavar="ADDRESS",
    help="Web address of a folder with the same files.",
    show_default="the official address",
)
SEED = options.checked_option(
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
    from fedpace.data.images import POOLS, pool_paths
    from fedpace.data.natural import CIFAR10, SHAKESPEARE, cifar10_file, shakespeare_file
    from fedpace.report.tables import new_table, print_tables, printable

    options.look_in(folder)
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
    from fedpace.data.images import NAMES
    from fedpace.data.natural import CIFAR10, CIFAR10_CLASSES
    from fedpace.report import charts, clients, tables
    from fedpace.studies.build import split
    from fedpace.studies.study import load_study

    options.look_in(folder)
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
