"""The command `fedpace report`: reads runs, calls the library, prints."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated

import typer

from fedpace.cli import options, output
from fedpace.errors import InputError
from fedpace.files import made_folder

if TYPE_CHECKING:
    from fedpace.studies.store import StoredRun

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
