"""The commands `fedpace data`: fetch datasets, and show who holds what."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from fedpace.errors import InputError, MissingExtraError
from fedpace.files import writable

if TYPE_CHECKING:
    from fedpace.data import download
    from fedpace.data.shards import Split
    from fedpace.studies.study import Study

data_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Fetch datasets, and show who holds what.",
    epilog="Example:  fedpace data show simulation-1 --out holdings.png",
)

SETUP = typer.Argument(help="A setup that comes with fedpace, or a .toml file.")
OVERRIDES = typer.Option(
    "--set",
    metavar="SECTION.FIELD=VALUE",
    help="Change a field of the setup: training.k=5, data.seed=3, stop.loss=none. May be repeated.",
)
FOLDER = typer.Option(
    "--data",
    metavar="DIR",
    help="Where datasets are kept; FEDPACE_DATA says the same.",
    show_default="the user's cache",
)


@data_app.command("fetch", epilog="Example:  fedpace data fetch mnist")
def fetch_command(
    dataset: Annotated[str, typer.Argument(help="mnist or emnist.", show_default=False)],
    folder: Annotated[Path | None, FOLDER] = None,
    mirror: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="A folder that holds the same files.",
            show_default="the official address",
        ),
    ] = None,
) -> None:
    """Download what is missing of a dataset, and check it; interrupted, it goes on next time."""
    from fedpace.data.cache import VARIABLE, fetch

    if folder is not None:
        os.environ[VARIABLE] = str(folder)  # which fetch creates
    with _shown_progress() as progress:
        paths = fetch(dataset, progress=progress, address=mirror)
    for path in paths:
        print(f"{path}: {path.stat().st_size:,} bytes, checksum right")


@data_app.command("where", epilog="Example:  fedpace data where")
def where_command(folder: Annotated[Path | None, FOLDER] = None) -> None:
    """Say which datasets are there, and where."""
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


@data_app.command("show", epilog="Example:  fedpace data show simulation-1 --out holdings.png")
def show_command(
    setup: Annotated[str, SETUP],
    seed: Annotated[
        int, typer.Option(help="The run's seed, for setups without data.seed of their own.")
    ] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Draw who holds what: .png, .pdf or .svg.")
    ] = None,
    overrides: Annotated[list[str] | None, OVERRIDES] = None,
    folder: Annotated[Path | None, FOLDER] = None,
) -> None:
    """Show how a setup spreads its samples and classes over the clients."""
    _need_studies()
    from fedpace.data.cache import look_in
    from fedpace.report.figures import check_picture
    from fedpace.studies.experiment import split
    from fedpace.studies.study import load_study

    if seed < 0:
        raise InputError(f"--seed must be at least 0, got {seed}; give 0, 1, 2, …")
    if out is not None:
        check_picture(writable(out))
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
        print(f"Written: {out}")


@contextmanager
def _shown_progress() -> Iterator[download.Progress]:
    """Return how to show the bytes that have come, on standard error."""
    console = Console(stderr=True)
    tasks: dict[str, TaskID] = {}
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    ) as bars:

        def show(file: str, done: int, total: int | None) -> None:
            if file not in tasks:
                tasks[file] = bars.add_task(file)
            bars.update(tasks[file], completed=done, total=total)

        yield show


def _need_studies() -> None:
    if not find_spec("pydantic"):
        raise MissingExtraError(
            "setups need Pydantic; install it with: pip install 'fedpace[sim,report]'"
        )


def say(message: str) -> None:
    """Tell the user something beside the results: one line, on standard error, at once."""
    print(f"fedpace: {' '.join(message.split())}", file=sys.stderr, flush=True)
