"""What a reader has to know to read the time-to-target table."""

from __future__ import annotations

import math
from collections.abc import Iterator

from fedpace.report.arrivals import sustains
from fedpace.report.curves import shows_accuracy
from fedpace.report.measured import measured_notes
from fedpace.report.privacy import privacy_notes
from fedpace.report.summary import PROPOSED, SchemeSummary, Summary
from fedpace.report.titles import plural
from fedpace.rivals import is_biased
from fedpace.rounds.rows import SUSTAINED
from fedpace.rounds.stopping import DIVERGED

CAPTION = "Mean over seeds, with its 95 % interval; times include pilots unless said otherwise."
NO_ACCURACY = "There is no curve of test accuracy: it was not evaluated along the way."
SUSTAINED_NOTE = (
    "Time to the loss is that of its first touch, as in the paper; sustained, that until the mean "
    f"of the last {SUSTAINED} evaluated losses has reached it."
)
BIASED_NOTE = (
    "A scheme marked as biased does not weight updates so that their mean is that of full "
    "participation: it may end at another model, and some targets may be beyond it."
)
UNSUSTAINED_NOTE = "Runs ended at the first touch of the target: there is no sustained time."


def notes(summary: Summary) -> list[str]:
    """Return what a reader has to know to read the table."""
    lines = [
        "Mean over seeds with its 95 % interval (Student's t, on the logarithm). “Time vs” is the "
        "scheme's time over the other's: the ratio of the means over the seeds that both have, "
        "with the interval of the paired delta method on its logarithm. Rounds count the way of "
        "the final model: of the two pilots, the one that training went on from."
    ]
    lines += [*sustained_note(summary), *missed(summary), *diverged(summary)]
    lines += measured_notes(summary.setup)
    lines += privacy_notes(summary.setup)
    if any(is_biased(scheme) for scheme in summary.setup.schemes):
        lines.append(BIASED_NOTE)
    if not shows_accuracy(summary.setup):
        lines.append(NO_ACCURACY)
    study = summary.setup.study
    if study.paper and study.paper_loss not in (None, study.stop.loss):
        lines.append(f"The paper's figures are for the target loss {study.paper_loss:g}.")
    if math.isfinite(summary.accuracy.value) and study.stop.accuracy is None:
        end = "when the target loss is sustained" if sustains(study) else "at the target loss"
        lines.append(
            f"The target accuracy is the one with which {PROPOSED} first reaches the target loss, "
            f"on average. Runs end {end}, some of them before that accuracy: those are counted "
            "beside the time, which is then a lower bound."
        )
    return lines


def sustained_note(summary: Summary) -> list[str]:
    """Return what the second time means, as one sentence; none where nobody asks for it."""
    study = summary.setup.study
    if sustains(study):
        return [SUSTAINED_NOTE]
    return [] if study.stop.loss is None else [UNSUSTAINED_NOTE]


def missed(summary: Summary) -> list[str]:
    """Name each scheme of which some runs never reached the target, or never sustained it."""
    sustained = sustains(summary.setup.study)
    return [line for row in summary.rows for line in _missed(row, sustained)]


def _missed(row: SchemeSummary, sustained: bool) -> Iterator[str]:
    misses, later = row.runs - row.reached, row.runs - row.sustained_seconds.seeds
    for count, what, time in (
        (misses, "reached", "time"),
        # Who never reached it has been named.
        (later if sustained and later > misses else 0, "sustained", "sustained time"),
    ):
        if count:
            bound = f"; its {time} is that of the others, a lower bound (≥)" * (count < row.runs)
            yield f"{row.scheme}: {count} of {row.runs} not {what}{bound}."


def diverged(summary: Summary) -> list[str]:
    """Name each scheme of which some runs ended because their loss was no longer a number."""
    found = {
        scheme: sum(run.ended == DIVERGED for run in summary.setup.of(scheme))
        for scheme in summary.setup.schemes
    }
    return [
        f"{scheme}: {plural(count, 'run')} diverged: the loss was no number any more. Lower the "
        "learning rate (training.schedule), or look for NaN in the data."
        for scheme, count in found.items()
        if count
    ]
