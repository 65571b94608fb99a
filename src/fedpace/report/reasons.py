"""Why a run drew as it did: when its design changed, and the sentence that came with it."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import NamedTuple

from fedpace.rounds.rows import Row
from fedpace.studies.store import StoredRun

# More changes than this are not read; the run's rows have them all.
MOST_CHANGES = 30


class Change(NamedTuple):
    """The round from which on a reason holds, and the seconds at its start."""

    round: int
    seconds: float
    why: str


def changes(rows: Sequence[Row]) -> list[Change]:
    """Return the rounds whose reason is not that of the round before; none without reasons.

    >>> row = Row("train", 1, 2.0, 1.0, 0.5, 2.0, 2.0, why="10 tiers: steps agree")
    >>> changes([row, row._replace(round=2, seconds=4.0)])
    [Change(round=1, seconds=0.0, why='10 tiers: steps agree')]
    """
    before = ["", *(row.why for row in rows)]
    return [
        Change(row.round, row.seconds - row.round_seconds, row.why)
        for row, last in zip(rows, before, strict=False)
        if row.why and row.why != last
    ]


def html_reasons(run: StoredRun) -> str:
    """Return a run's changes as a table for the page; empty without any."""
    every = changes(run.history.rows)
    if not every:
        return ""
    items = "".join(
        f"<tr><td>{each.round:,}</td><td>{each.seconds:,.1f}</td>"
        f"<td>{html.escape(each.why)}</td></tr>"
        for each in every[:MOST_CHANGES]
    )
    more = len(every) - MOST_CHANGES
    rest = f"<p>And {more:,} more.</p>" if more > 0 else ""
    title = html.escape(f"Why {run.scheme} drew as it did, seed {run.seed}")
    head = "<th scope=col>round</th><th scope=col>from, s</th><th scope=col>why</th>"
    return (
        f'<div class="wide why"><h3>{title}</h3>'
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{items}</tbody></table></div>{rest}</div>\n"
    )
