"""From the rows of a run to its timeline."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np

from fedpace.checks import FloatArray
from fedpace.report.measured import how_measured
from fedpace.report.setups import Setup
from fedpace.report.timeline import PHASES, DrawnReply, Missing, Stage, TierSpan, Timeline
from fedpace.report.titles import title_of
from fedpace.rounds.rows import Row
from fedpace.studies.store import StoredRun

# More rounds than this are too narrow to be told apart; half of them are from before the switch.
MOST_ROUNDS = 40
# More bars than this make a page that is slow to open: then fewer rounds are shown.
MOST_REPLIES = 4_000
# Of more clients than this, only those that were asked in the rounds shown have a line.
MOST_CLIENTS = 60
# Of more than this, some of all speeds.
MOST_LINES = 400
SIMULATED = "The clock is simulated."


def timelines(setup: Setup) -> list[Timeline]:
    """Return the timeline of each scheme's first seed; none of a run that asked nobody."""
    firsts = [setup.of(scheme)[0] for scheme in setup.schemes]
    measured = setup.study.network is not None
    # Simulated devices have the times of their seed, real ones are the same in all runs.
    runs = {seed: [run for run in setup.runs if measured or run.seed == seed] for seed in
            {run.seed for run in firsts}}  # fmt: skip
    usual = {seed: _usual_seconds(mine) for seed, mine in runs.items()}
    asking = [run for run in firsts if any(_asked(row) for row in run.history.rows)]
    return [_timeline(run, usual[run.seed]) for run in asking]


def _timeline(run: StoredRun, usual: FloatArray) -> Timeline:
    every = [row for row in run.history.rows if row.round > 0]
    rows = _around_the_switch(every)
    clients, left_out = _lines(rows, usual)
    shown = set(clients)
    stages = _stages(rows)
    parts = (f"{PHASES.get(each.phase, each.phase)} {_rounds(each)}" for each in stages)
    shortened = f"; the run has {len(every):,}" * (len(rows) < len(every))
    some = f" Clients shown: {len(clients):,} of {len(clients) + left_out:,}." if left_out else ""
    unit = "Steps" if run.study.training.asynchronous else "Rounds"
    return Timeline(
        run.scheme,
        title_of(run.study),
        f"Who was drawn and how long each took: {run.scheme}, seed {run.seed}",
        f"{unit} shown: {', '.join(parts)}{shortened}.{some} "
        f"{how_measured(run.study) or SIMULATED}",
        clients,
        usual,
        [_start(row) for row in rows],
        [reply for row in rows for reply in _replies(row) if reply.client in shown],
        [
            Missing(client, row.round, start, row.seconds, client in row.refused)
            for row in rows
            for client, start in zip(row.missing.tolist(), _missed(row), strict=True)
            if client in shown
        ],
        stages,
        _tiers(rows),
    )


def _replies(row: Row) -> list[DrawnReply]:
    # Not every client may tell; that of one whose clock is off is not longer than the whole.
    told = row.computing_seconds if row.computing_seconds.size else 0 * row.client_seconds
    computing = np.minimum(np.nan_to_num(told), row.client_seconds)
    began = row.began.tolist() or [_start(row)] * row.clients.size
    columns = (row.clients.tolist(), began, row.client_seconds.tolist(), computing.tolist())
    return [
        DrawnReply(client, row.round, start, took, part, row.tier, row.why)
        for client, start, took, part in zip(*columns, strict=True)
    ]


def _missed(row: Row) -> list[float]:
    """Return when those who are missing were asked."""
    since = (row.seconds - row.missing_seconds).tolist()
    return since or [_start(row)] * row.missing.size


def _lines(rows: Sequence[Row], usual: FloatArray) -> tuple[list[int], int]:
    """Return the clients that have lines, fastest first, and how many were asked and have none."""
    asked = set(np.concatenate([part for row in rows for part in (row.clients, row.missing)]))
    mine = range(usual.size) if usual.size <= MOST_CLIENTS else map(int, asked)
    # One that never answered is slower than all others.
    ordered = sorted(mine, key=lambda client: (np.isnan(usual[client]), usual[client], client))
    step = -(-len(ordered) // MOST_LINES)
    kept = ordered[::-step][::-1]  # the slowest is among them
    return kept, len(ordered) - len(kept)


def _asked(row: Row) -> int:
    return row.clients.size + row.missing.size


def _start(row: Row) -> float:
    return row.seconds - row.round_seconds


def _around_the_switch(rows: Sequence[Row]) -> Sequence[Row]:
    """Return the last rounds before tiers, or else training proper, and the first of it.

    All of a short run.
    """
    most = max(2, min(MOST_ROUNDS, MOST_REPLIES // max(map(_asked, rows))))
    tiered = next((at for at, row in enumerate(rows) if row.tier >= 0), None)
    switch = sum(row.phase != "train" for row in rows) if tiered is None else tiered
    before = most // 2 if tiered is None else most // 8  # tiers are what is looked for
    first = max(0, min(switch - before, len(rows) - most))
    return rows[first : first + most]


def _stages(rows: Sequence[Row]) -> list[Stage]:
    groups = [list(group) for _, group in groupby(rows, key=lambda row: row.phase)]
    ends = [(group[0], group[-1]) for group in groups]
    return [Stage(a.phase, a.round, b.round, _start(a), b.seconds) for a, b in ends]


def _tiers(rows: Sequence[Row]) -> list[TierSpan]:
    groups = groupby(rows, key=lambda row: (row.tier, row.why, row.phase))
    ends = [(tier, why, list(group)) for (tier, why, _), group in groups if tier >= 0]
    return [
        TierSpan(tier, why, own[0].round, own[-1].round, _start(own[0]), own[-1].seconds)
        for tier, why, own in ends
    ]


def _rounds(stage: Stage) -> str:
    return f"{stage.first}" + f"–{stage.last}" * (stage.first < stage.last)


def _usual_seconds(runs: Sequence[StoredRun]) -> FloatArray:
    """Return the median of each client's times; NaN for one that never answered."""
    rows = [row for run in runs for row in run.history.rows]
    clients = np.concatenate([row.clients for row in rows])
    seconds = np.concatenate([row.client_seconds for row in rows])
    asked = np.concatenate([clients, *(row.missing for row in rows)])
    n = max(int(asked.max(initial=-1)) + 1, *(run.profile.n for run in runs))
    order = np.lexsort((seconds, clients))
    ends = np.searchsorted(clients[order], np.arange(n + 1))
    counts = np.diff(ends)
    # Without a reply there is no middle: NaN at the end stands for it.
    sorted_seconds = np.append(seconds[order], np.nan)
    low, high = (
        np.where(counts, ends[:-1] + half, -1) for half in ((counts - 1) // 2, counts // 2)
    )
    return np.asarray((sorted_seconds[low] + sorted_seconds[high]) / 2)
