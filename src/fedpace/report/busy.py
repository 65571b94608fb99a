"""How busy the clients of a round are: while they work, and while they wait for the slowest."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from fedpace.report.drawing import BLACK, Axis, Bars, Drawing, Letters, Line, Mark, colour, pale
from fedpace.report.intervals import Interval, mean_interval
from fedpace.report.measured import how_measured
from fedpace.report.setups import Setup
from fedpace.report.titles import plural, title_of
from fedpace.studies.store import StoredRun

TITLE = "How busy the clients of a round are"
LABEL = "time at work in a round, %"
NOTE = (
    "Σ seconds of the clients / (clients that answered × seconds of the round), mean over the "
    "rounds of training, pilots left out, and over seeds; without a barrier, Σ seconds of the "
    "clients / (clients to be at work × seconds). Whiskers: 95 % interval over seeds."
)
# Of a bar, where the distance of bars is 1.
THICKNESS = 0.7
WHISKER = "#444444"


def busy_share(run: StoredRun) -> float:
    """Return the mean part of a round during which a drawn client works; NaN without rounds.

    Σ_i t_i / (K t_round) of each round of training, over the K clients that answered, each for t_i.
    Without a barrier, Σ_i t_i / (C t) over the whole run, with C clients to be at work: what was
    under way at the end is not in it.
    """
    if run.study.training.asynchronous:
        return _busy_slots(run)
    rows = [
        row
        for row in run.history.rows
        if not row.phase.startswith("pilot") and row.clients.size and row.round_seconds > 0
    ]
    each = [row.client_seconds.sum() / (row.clients.size * row.round_seconds) for row in rows]
    return float(np.mean(each)) if each else math.nan


def _busy_slots(run: StoredRun) -> float:
    rows = run.history.rows
    busy = sum(float(row.client_seconds.sum() + row.missing_seconds.sum()) for row in rows)
    seconds = rows[-1].seconds - sum(row.waiting_seconds for row in rows)
    return min(busy / (run.study.training.slots * seconds), 1.0) if seconds > 0 else math.nan


def shares(setup: Setup) -> dict[str, Interval]:
    """Return each scheme's share in percent, with its interval over seeds, where there is one."""
    found = {
        scheme: [100 * share for run in setup.of(scheme) if math.isfinite(share := busy_share(run))]
        for scheme in setup.schemes
    }
    return {scheme: mean_interval(each) for scheme, each in found.items() if each}


def busy_drawing(setup: Setup) -> Drawing:
    """Show a bar per scheme, with a whisker and its number."""
    shown = shares(setup)
    return Drawing(
        name="busy",
        title=TITLE,
        setup=title_of(setup.study),
        note=f"{NOTE} {how_measured(setup.study)}".rstrip(),
        # A whisker beyond what a share can be is cut.
        x=Axis(LABEL, ends=(0, 100)),
        # The first scheme on top.
        y=Axis("", ends=(len(shown) - 0.4, -0.6), ticks=dict(enumerate(shown)), grid=False),
        marks=[mark for at, each in enumerate(shown.items()) for mark in _marks(at, *each)],
        height=1.7 + 0.35 * len(shown),
    )


def _marks(at: int, scheme: str, share: Interval) -> Iterator[Mark]:
    known = math.isfinite(share.low)
    interval = f"\n95 % interval {share.low:.1f} to {share.high:.1f} %" * known
    told = f"{share.value:.1f} %, {plural(share.seeds, 'seed')}{interval}"
    # Pale, so that a whisker is seen on it.
    fill = {"colour": pale(scheme), "edge": colour(scheme), "scheme": scheme}
    yield Bars([0], [share.value], [at], THICKNESS, width=1, hover=told, **fill)
    if known:
        style: dict[str, Any] = {"colour": WHISKER, "width": 1.2, "symbol": "end", "size": 7}
        yield Line([share.low, share.high], [at, at], scheme=scheme, **style)
    yield Letters([100], [at], [f"{share.value:.0f} %"], right=True, scheme=scheme, colour=BLACK)
