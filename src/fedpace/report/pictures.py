"""All figures of a report, as files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedpace.report.busy import busy_figure, shares
from fedpace.report.figures import save
from fedpace.report.setups import Sweep, optimising
from fedpace.report.study_figures import (
    chances_figure,
    curve_figure,
    sensitivity_figure,
    shown_curves,
)
from fedpace.report.summary import Summary
from fedpace.report.timeline_figure import timeline_figure
from fedpace.report.timelines import timelines

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("png", "pdf")


def write_figures(
    summaries: Sequence[Summary], sweeps: Sequence[Sweep], folder: Path
) -> Iterator[Path]:
    """Draw everything as PNG and PDF, and yield each file when it is written."""
    for summary in summaries:
        slug = summary.setup.slug
        for name, y, x in shown_curves(summary.setup):
            yield from _written(curve_figure(summary, y, x), folder / f"{slug}-{name}")
        if optimising(summary.setup):
            yield from _written(chances_figure(summary.setup), folder / f"{slug}-probabilities")
        if shares(summary.setup):
            yield from _written(busy_figure(summary.setup), folder / f"{slug}-busy")
        for each in timelines(summary.setup):
            scheme = re.sub(r"[^A-Za-z0-9.-]+", "-", each.scheme)[:60]  # your own's is a path
            yield from _written(timeline_figure(each), folder / f"{slug}-timeline-{scheme}")
    for sweep in sweeps:
        name = (sweep.base or sweep.members[0]).slug
        yield from _written(sensitivity_figure(sweep), folder / f"{name}-sensitivity")


def _written(figure: Figure, stem: Path) -> Iterator[Path]:
    for ending in FORMATS:
        path = stem.with_name(f"{stem.name}.{ending}")
        save(figure, path)
        yield path
