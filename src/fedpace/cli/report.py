"""The command `fedpace report`: reads runs, calls the library, prints."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from fedpace.cli import options, output
from fedpace.errors import InputError
from fedpace.files import made_folder, write_text

if TYPE_CHECKING:
    from fedpace.report.setups import Sweep
    from fedpace.report.summary import Summary
    from fedpace.studies.store import StoredRun

PAGE = "report.html"
TABLES = "time-to-target"
FIGURES = "figures"

DIRECTORY = typer.Argument(help="Directory of the runs, as given to fedpace run --out.")
OUT = typer.Option(help="Directory for the report.", show_default="that of the runs")


def report_command(
    directory: Annotated[Path, DIRECTORY], out: Annotated[Path | None, OUT] = None
) -> None:
    """Compare the schemes of a study: a table, figures, and a page for the browser."""
    options.need("sim,report", "pydantic")
    from fedpace.report.measured import measured_line
    from fedpace.report.notes import CAPTION, missed, sustained_note
    from fedpace.report.page import page
    from fedpace.report.pictures import write_figures
    from fedpace.report.setups import setups_of, without_sweeps
    from fedpace.report.study_tables import terminal_table
    from fedpace.report.summary import summarise
    from fedpace.report.tables import print_tables, printable

    setups, sweeps = without_sweeps(setups_of(stored_runs(directory)))
    out = made_folder(out or directory, "--out")
    summaries = [summarise(setup) for setup in setups]
    tables = list(_tables(summaries, sweeps, out))
    for summary in summaries:
        print_tables(terminal_table(summary))
        said = [*measured_line(summary.setup), *sustained_note(summary), *missed(summary)]
        print(CAPTION, *map(printable, said), sep="\n", end="\n\n")
    console = Console(stderr=True)
    with console.status("drawing …") if console.is_terminal else nullcontext():
        figures = list(write_figures(summaries, sweeps, made_folder(out / FIGURES, "--out")))
    write_text(out / PAGE, page(summaries, sweeps, runs_in=directory, files_in=out))
    print(f"Page:    {out / PAGE}")
    print(f"Tables:  {', '.join(map(str, tables))}")
    for path in figures:
        print(f"Figure:  {path}")


def stored_runs(directory: Path) -> list[StoredRun]:
    """Return the runs in a directory; what cannot be read is said on standard error."""
    from fedpace.studies.store import Store

    if not directory.is_dir():
        raise InputError(f"{directory}: is not a directory; give the one of fedpace run --out")
    runs = list(Store(directory).runs(lambda message: output.say(f"left out: {message}")))
    if not runs:
        remedy = f"make some: fedpace run simulation-1 --out {directory}"
        raise InputError(f"{directory}: holds no finished runs; {remedy}")
    return runs


def _tables(summaries: list[Summary], sweeps: list[Sweep], out: Path) -> Iterator[Path]:
    """Write the table in three formats, and the configurations, and yield the tables' files."""
    from fedpace.report.latex import latex
    from fedpace.report.rerun import toml
    from fedpace.report.study_tables import csv_text, markdown
    from fedpace.report.summary import summarise

    swept = [summarise(setup) for sweep in sweeps for setup in sweep.members]
    for summary in summaries:
        write_text(out / f"{summary.setup.slug}.toml", toml(summary.setup.study))
    for ending, text in (
        ("md", markdown(summaries, sweeps)),
        ("csv", csv_text([*summaries, *swept])),
        ("tex", latex(summaries)),
    ):
        write_text(out / f"{TABLES}.{ending}", text)
        yield out / f"{TABLES}.{ending}"
