"""A report on disk: tables, figures, and the page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from fedpace.files import made_folder, write_text
from fedpace.report.headline import headline
from fedpace.report.latex import latex
from fedpace.report.measured import measured_line
from fedpace.report.notes import CAPTION, diverged, missed, sustained_note
from fedpace.report.page import page
from fedpace.report.pictures import write_figures
from fedpace.report.rerun import toml
from fedpace.report.setups import Sweep, setups_of, without_sweeps
from fedpace.report.study_tables import csv_text, markdown, terminal_table
from fedpace.report.summary import Summary, summarise
from fedpace.report.tables import print_tables, printable
from fedpace.studies.store import StoredRun

PAGE = "report.html"
TABLES = "time-to-target"
FIGURES = "figures"


class Report(NamedTuple):
    """What runs came to, by setup, and of setups that differ in c only."""

    summaries: Sequence[Summary]
    sweeps: Sequence[Sweep]

    @classmethod
    def of(cls, runs: Iterable[StoredRun]) -> Report:
        """Sort runs into setups, and compute every number."""
        setups, sweeps = without_sweeps(setups_of(runs))
        return cls([summarise(setup) for setup in setups], sweeps)

    def show(self) -> None:
        """Print the tables."""
        for summary in self.summaries:
            print_tables(terminal_table(summary))
            said = [*measured_line(summary.setup), *sustained_note(summary), *missed(summary)]
            said += [*diverged(summary), *filter(None, [headline(summary)])]
            print(CAPTION, *map(printable, said), sep="\n", end="\n\n")

    def write_tables(self, out: Path) -> Iterator[Path]:
        """Write the table in three formats, and the configurations; yield the tables' files."""
        swept = [summarise(setup) for sweep in self.sweeps for setup in sweep.members]
        for summary in self.summaries:
            write_text(out / f"{summary.setup.slug}.toml", toml(summary.setup.study))
        for ending, text in (
            ("md", markdown(self.summaries, self.sweeps)),
            ("csv", csv_text([*self.summaries, *swept])),
            ("tex", latex(self.summaries)),
        ):
            write_text(out / f"{TABLES}.{ending}", text)
            yield out / f"{TABLES}.{ending}"

    def write_figures(self, out: Path) -> list[Path]:
        """Draw the figures."""
        return [*write_figures(self.summaries, self.sweeps, made_folder(out / FIGURES, "--out"))]

    def write_page(self, out: Path, *, runs_in: Path) -> Path:
        """Write the page for the browser."""
        write_text(out / PAGE, page(self.summaries, self.sweeps, runs_in=runs_in, files_in=out))
        return out / PAGE
