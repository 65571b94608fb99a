"""What to know of runs that were measured on devices: how, and how their replies fared."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from fedpace.report.setups import MEASURED, Setup
from fedpace.studies.store import StoredRun
from fedpace.studies.study import Study


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
    asked = sum(row.clients.size for row in rows) + missing
    down, up = (
        sum(int(getattr(row, name).sum()) for row in rows) for name in ("bytes_down", "bytes_up")
    )
    per_round = [total / 1e6 / len(rows) if total else math.nan for total in (down, up)]
    return Fared(asked, missing, sum(row.refused.size for row in rows), *per_round)


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
    return f"Measured, {MEASURED[study.network.how][1]}{'' if scale == 1 else stands}."


def replies_line(setup: Setup) -> str:
    """Return how replies fared, all schemes together, in one sentence."""
    every = fared(setup.runs)
    missing = f"{every.missing:,} missing"
    if every.missing:
        share = f"{100 * every.missing / every.asked:.2g} %"
        missing += f" ({share}), {every.refused:,} of them refused"
    sizes = [fared(setup.of(scheme)) for scheme in setup.schemes]
    down = _span([each.megabytes_down for each in sizes])
    up = _span([each.megabytes_up for each in sizes])
    crossed = f"; {down} MB down and {up} MB up per round" if down else ""
    return f"Replies: {every.asked:,} asked for, {missing}{crossed}."


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
        parts = "; ".join(_by_scheme(scheme, fared(setup.of(scheme))) for scheme in setup.schemes)
        lines.append(f"By scheme: {parts}.")
    every = study.network.evaluate_every
    if every == 0:
        lines.append(
            "Losses are estimated from those that the drawn clients report; the whole model was "
            "evaluated at the start, and where the estimate had passed the target."
        )
    elif every > 1:
        lines.append(
            f"The whole model was evaluated in every {_ordinal(every)} round, and where the loss "
            "that the drawn clients report had passed the target; curves show these rounds alone."
        )
    return lines


def _by_scheme(scheme: str, each: Fared) -> str:
    text = f"{scheme} {each.asked:,} asked, {each.missing:,} missing"
    if math.isnan(each.megabytes_down):
        return text
    return f"{text}, {each.megabytes_down:.3g} MB down, {each.megabytes_up:.3g} MB up"


def _span(values: Sequence[float]) -> str:
    """Return the values as "3.1", or "3.1 to 31" where they differ; empty if none is known."""
    known = sorted(filter(math.isfinite, values))
    ends = dict.fromkeys(f"{value:.3g}" for value in (*known[:1], *known[-1:]))
    return " to ".join(ends)


def _ordinal(number: int) -> str:
    """Return 2nd, 3rd, 11th.

    >>> [_ordinal(number) for number in (2, 3, 11, 21)]
    ['2nd', '3rd', '11th', '21st']
    """
    ending = "th" if number // 10 % 10 == 1 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
