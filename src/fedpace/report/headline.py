"""What a study came to, in one sentence."""

from __future__ import annotations

import math

from fedpace.report.summary import SchemeSummary, Summary
from fedpace.report.titles import plural

# A scheme that many others are compared with names the slowest few only.
MOST_OTHERS = 3


def headline(summary: Summary) -> str:
    """Return which scheme reached the target first, by how much, and over how many seeds.

    Empty where no scheme reached it with every seed.
    """
    arrived = [row for row in summary.rows if _arrived(row)]
    if not arrived:
        return ""
    best = min(arrived, key=lambda row: row.seconds.value)
    seeds = plural(len(summary.setup.seeds), "seed")
    first = f"{best.scheme} reached {summary.target} in {_seconds(best.seconds.value)}"
    others = sorted(
        (row for row in summary.rows if row is not best and math.isfinite(row.seconds.value)),
        key=lambda row: row.seconds.value,
    )
    if not others:
        return f"{first}; {seeds}."
    shown = others if len(others) <= MOST_OTHERS else [others[0], *others[-MOST_OTHERS + 1 :]]
    ratios = [f"{_ratio(row, best)} than {row.scheme}" for row in shown]
    ratios[0] = ratios[0].replace("× than", "× sooner than")
    return f"{first}, {', '.join(ratios)}; {seeds}."


def _arrived(row: SchemeSummary) -> bool:
    return 0 < row.runs == row.reached and math.isfinite(row.seconds.value)


def _ratio(row: SchemeSummary, best: SchemeSummary) -> str:
    ratio = row.seconds.value / best.seconds.value if best.seconds.value > 0 else math.inf
    bound = "more than " if row.reached < row.runs else ""
    return f"{bound}{ratio:.1f}×"


def _seconds(value: float) -> str:
    return f"{value:,.0f} s" if value >= 10 else f"{value:.3g} s"
