"""All figures of a report, as files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from fedpace.report.drawing import Drawing
from fedpace.report.figures import figure_of, save
from fedpace.report.setups import Sweep
from fedpace.report.study_drawings import drawings, sensitivity_drawing
from fedpace.report.summary import Summary
from fedpace.report.timeline_drawing import timeline_drawing
from fedpace.report.timelines import timelines

FORMATS = ("png", "pdf")


def write_figures(
    summaries: Sequence[Summary], sweeps: Sequence[Sweep], folder: Path
) -> Iterator[Path]:
    """Draw everything as PNG and PDF, and yield each file when it is written."""
    for summary in summaries:
        times = ([timeline_drawing(each)] for each in timelines(summary.setup))
        for group in (*drawings(summary), *times):
            yield from _written(group, summary.setup.slug, folder)
    for sweep in sweeps:
        setup = sweep.base or sweep.members[0]
        yield from _written([sensitivity_drawing(sweep)], setup.slug, folder)


def _written(group: Sequence[Drawing], slug: str, folder: Path) -> Iterator[Path]:
    name = re.sub(r"[^A-Za-z0-9.-]+", "-", group[0].name)[:70]  # your own scheme's is a path
    figure = figure_of(*group)
    for ending in FORMATS:
        path = folder / f"{slug}-{name}.{ending}"
        save(figure, path)
        yield path
