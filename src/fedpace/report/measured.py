"""What to know of runs that were measured on devices: how, and how their replies fared."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from fedpace.report.setups import Setup
from fedpace.studies.store import StoredRun
from fedpace.studies.study import Study

# Where the times come from, by `network.how`.
PLACES = {
    "namespaces": "devices in network namespaces",
    "paced": "devices on one machine that keep to their rates",
    "devices": "real devices",
    "flower": "clients of a Flower federation",
}


class Fared(NamedTuple):
    """What became of the replies of some runs; megabytes per round, NaN if not measured.

    A client that is drawn more than once in a round is asked once. `refused` are among `missing`.
    """

    asked: int
    missing: int
    refused: int
    megabytes_down: float
    megabytes_up: float


def fared(runs: Sequence[StoredRun]) -> Fared:
    """Count the replies over all rounds of the runs."""
    rows = [row for run in runs for row in run.history.rows if row.round > 0]
    missing = sum(row.missing.size for row in rows)
    return Fared(
        sum(row.clients.size for row in rows) + missing,
        missing,
        sum(row.refused.size for row in rows),
        _megabytes(sum(int(row.bytes_down.sum()) for row in rows), len(rows)),
        _megabytes(sum(int(row.bytes_up.sum()) for row in rows), len(rows)),
    )


def how_measured(study: Study) -> str:
    """Return where the times come from, in one sentence; empty for simulated runs.

    >>> from fedpace.studies.study import load_study
    >>> how_measured(load_study("prototype", ["network.how=namespaces", "network.time_scale=0.2"]))
    'Measured, devices in network namespaces; time scale 0.2: one second here stands for 5 s.'
    """
    if study.network is None:
        return ""
    scale = study.network.time_scale
    stands = f"; time scale {scale:g}: one second here stands for {1 / scale:.3g} s"
    return f"Measured, {PLACES[study.network.how]}{'' if scale == 1 else stands}."


def replies_line(setup: Setup) -> str:
    """Return how replies fared, all schemes together, in one sentence."""
    every = fared(setup.runs)
    sizes = [fared(setup.of(scheme)) for scheme in setup.schemes]
    down = _span([each.megabytes_down for each in sizes])
    up = _span([each.megabytes_up for each in sizes])
    bytes_text = f"; {down} MB down and {up} MB up per round" if down else ""
    return f"Replies: {_counts(every)}{bytes_text}."


def measured_line(setup: Setup) -> list[str]:
    """Return how it was measured and how replies fared, as one line; none for simulated runs."""
    how = how_measured(setup.study)
    return [f"{how} {replies_line(setup)}"] if how else []


def measured_notes(setup: Setup) -> list[str]:
    """Return what a reader has to know of measured runs; nothing for simulated ones."""
    study = setup.study
    if study.network is None:
        return []
    lines = [how_measured(study)]
    if study.paper and study.network.time_scale != 1:
        lines[0] += " The paper's seconds are as published."
    lines.append(replies_line(setup))
    if len(setup.schemes) > 1:
        parts = (f"{scheme} {_by_scheme(fared(setup.of(scheme)))}" for scheme in setup.schemes)
        lines.append(f"By scheme: {'; '.join(parts)}.")
    return [*lines, *_evaluation(study.network.evaluate_every)]


def _evaluation(every: int) -> list[str]:
    if every == 1:
        return []
    if every == 0:
        return [
            "Losses are estimated from those that the drawn clients report; the whole model was "
            "evaluated at the start, and where the estimate had passed the target."
        ]
    return [
        f"The whole model was evaluated in every {_ordinal(every)} round, and where the loss that "
        "the drawn clients report had passed the target; curves show these rounds alone."
    ]


def _counts(each: Fared) -> str:
    share = f" ({100 * each.missing / each.asked:.2g} %)" if each.missing else ""
    refused = f", {each.refused:,} of them refused" if each.missing else ""
    return f"{each.asked:,} asked for, {each.missing:,} missing{share}{refused}"


def _by_scheme(each: Fared) -> str:
    size = f", {each.megabytes_down:.3g} MB down, {each.megabytes_up:.3g} MB up"
    known = not math.isnan(each.megabytes_down)
    return f"{each.asked:,} asked, {each.missing:,} missing{size * known}"


def _span(values: Sequence[float]) -> str:
    """Return the values as "3.1", or "3.1 to 31" where they differ; empty if none is known."""
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return ""
    low, high = f"{min(known):.3g}", f"{max(known):.3g}"
    return low if low == high else f"{low} to {high}"


def _ordinal(number: int) -> str:
    """Return 2nd, 3rd, 11th.

    >>> [_ordinal(number) for number in (2, 3, 11, 21)]
    ['2nd', '3rd', '11th', '21st']
    """
    ending = "th" if number // 10 % 10 == 1 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _megabytes(total: int, rounds: int) -> float:
    return total / 1e6 / rounds if total else math.nan
