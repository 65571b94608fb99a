"""A report on disk: tables, the page, and figures where they are wanted."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from fedpace.files import make_folder, write_text
from fedpace.report.notes import (
    CAPTION,
    diverged_schemes,
    headline,
    measured_line,
    missed_targets,
    sustained_note,
)
from fedpace.report.setups import Setup, Sweep, setups_of, toml, without_sweeps
from fedpace.report.study_tables import csv_text, latex, markdown, terminal_table
from fedpace.report.summary import Summary, summarise
from fedpace.report.tables import print_tables, printable
from fedpace.studies.store import StoredRun

PAGE = "report.html"
TABLES = "time-to-target"
FIGURES = "figures"
FORMATS = ("png", "pdf")


class Report(NamedTuple):
    """The numbers of runs, by setup, and of setups that differ in c only."""

    summaries: Sequence[Summary]
    sweeps: Sequence[Sweep]

    @classmethod
    def of(cls, runs: Iterable[StoredRun], say: Callable[[str], None] = print) -> Report:
        """Sort runs into setups, and compute every number; `say` is called for what is left out."""
        setups, sweeps = without_sweeps(setups_of(runs))
        found = (_summary(setup, say) for setup in setups)
        return cls([summary for summary in found if summary is not None], sweeps)

    def show(self) -> None:
        """Print the tables."""
        for summary in self.summaries:
            print_tables(terminal_table(summary))
            said = [
                *measured_line(summary.setup),
                *sustained_note(summary),
                *missed_targets(summary),
            ]
            said += [*diverged_schemes(summary), *filter(None, [headline(summary)])]
            print(CAPTION, *map(printable, said), sep="\n", end="\n\n")

    def write_tables(self, out: Path) -> Iterator[Path]:
        """Write the table in three formats, and the configurations; yield the tables' files."""
        swept = [summarise(setup) for sweep in self.sweeps for setup in sweep.members]
        for summary in self.summaries:
            write_text(out / f"{summary.setup.slug}.toml", toml(summary.setup.study), follow=False)
        for ending, text in (
            ("md", markdown(self.summaries, self.sweeps)),
            ("csv", csv_text([*self.summaries, *swept])),
            ("tex", latex(self.summaries)),
        ):
            write_text(out / f"{TABLES}.{ending}", text, follow=False)
            yield out / f"{TABLES}.{ending}"

    def write_page(self, out: Path, *, runs_in: Path) -> Path:
        """Write the page for the browser."""
        from fedpace.report.page import page

        text = page(self.summaries, self.sweeps, runs_in=runs_in, files_in=out)
        write_text(out / PAGE, text, follow=False)
        return out / PAGE

    def write_figures(self, out: Path, say: Callable[[str], None] = print) -> Iterator[Path]:
        """Draw every figure as PNG and PDF, and yield each file when it is written."""
        from fedpace.report.charts import check_picture, save_all
        from fedpace.report.study_charts import sensitivity_figure, study_figures
        from fedpace.report.timeline import timeline_figure, timelines

        check_picture(out / f"any.{FORMATS[0]}")
        folder = make_folder(out / FIGURES, "--out")
        groups = [
            (summary.setup.slug, figures)
            for summary in self.summaries
            for figures in (
                *study_figures(summary),
                *([timeline_figure(each)] for each in timelines(summary.setup)),
            )
        ]
        for sweep in self.sweeps:
            setup = sweep.base or sweep.members[0]
            groups.append((setup.slug, [sensitivity_figure(sweep)]))
        for slug, figures in groups:
            # The name of a user's own scheme is a path.
            name = re.sub(r"[^A-Za-z0-9.-]+", "-", figures[0].name)[:70]
            paths = [folder / f"{slug}-{name}.{ending}" for ending in FORMATS]
            try:
                save_all(paths, *figures)
            except ValueError as error:  # as Vega refuses it
                say(f"left out: {paths[0]}: {printable(str(error))}")
            else:
                yield from paths


def _summary(setup: Setup, say: Callable[[str], None]) -> Summary | None:
    """Return a setup's numbers; runs whose files hold nonsense do not stop the others' report."""
    try:
        return summarise(setup)
    except Exception as error:
        say(f"left out: {printable(setup.label)}: {type(error).__name__}: {printable(str(error))}")
        return None
