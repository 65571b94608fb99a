"""Who was drawn and how long each took: the rounds of a measured run on the clock."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np

from fedpace.checks import FloatArray
from fedpace.report.measured import how_measured
from fedpace.report.setups import Setup
from fedpace.rounds.rows import Row
from fedpace.studies.store import StoredRun

# More rounds than this are too narrow to be told apart; half of them are from before the switch.
MOST_ROUNDS = 40
# Of more clients than this, only those that were asked in the rounds shown have a line.
MOST_CLIENTS = 60
PHASES = {
    "pilot-uniform": "uniform pilot",
    "pilot-weighted": "weighted pilot",
    "warm-up": "warm-up",
    "train": "training",
}
# A stage that takes less than this part of the width has no room for its name.
LEAST_LABELLED = 0.1


class DrawnReply(NamedTuple):
    """A bar: from the round's start to the arrival; `computing` is 0 where it was not measured."""

    client: int
    round: int
    start: float
    seconds: float
    computing: float


class Missing(NamedTuple):
    """A cross at the end of the round, and a thin line to it from the start."""

    client: int
    round: int
    start: float
    end: float
    refused: bool


class Stage(NamedTuple):
    """Rounds of one phase."""

    phase: str
    first: int
    last: int
    start: float
    end: float


class Timeline(NamedTuple):
    """The rounds shown of a run; `clients` have lines from the bottom up, fastest first.

    `usual` is the median of a client's times over all runs of the setup, by client; NaN for one
    that never answered.
    """

    scheme: str
    setup: str
    title: str
    caption: str
    clients: list[int]
    usual: FloatArray
    rounds: list[float]
    replies: list[DrawnReply]
    missing: list[Missing]
    stages: list[Stage]

    @property
    def split(self) -> bool:
        """Whether computing was measured apart from transfer."""
        return any(reply.computing > 0 for reply in self.replies)

    @property
    def places(self) -> dict[int, int]:
        """The line of each client."""
        return {client: place for place, client in enumerate(self.clients)}

    @property
    def height(self) -> tuple[float, float]:
        """The ends of the vertical axis, with room for the stages' names above the clients."""
        return -0.8, 0.2 + 1.03 * len(self.clients)

    @property
    def labelled(self) -> list[tuple[float, str]]:
        """Where the stages begin that have room for a name, and the name."""
        enough = LEAST_LABELLED * (self.stages[-1].end - self.stages[0].start)
        wide = (stage for stage in self.stages if stage.end - stage.start >= enough)
        return [(stage.start, PHASES.get(stage.phase, stage.phase)) for stage in wide]


def timelines(setup: Setup) -> list[Timeline]:
    """Return the timeline of each scheme's first seed; none of simulated runs."""
    if setup.study.network is None:
        return []
    usual = _usual_seconds(setup.runs)
    firsts = [setup.of(scheme)[0] for scheme in setup.schemes]
    return [_timeline(run, usual) for run in firsts if run.history.rows[-1].round > 0]


def client_labels(shown: Timeline, most: int) -> tuple[list[int], list[str]]:
    """Return up to `most` places from the bottom, and the clients there with their times."""
    step = -(-len(shown.clients) // most)
    # From the slowest down, for it is the one looked for.
    places = list(range(len(shown.clients) - 1, -1, -step))
    times = (shown.usual[shown.clients[place]] for place in places)
    texts = ("–" if np.isnan(time) else f"{time:.2g}" for time in times)
    return places, [f"{shown.clients[at]} ({text})" for at, text in zip(places, texts, strict=True)]


def _timeline(run: StoredRun, usual: FloatArray) -> Timeline:
    every = [row for row in run.history.rows if row.round > 0]
    rows = _around_the_switch(every)
    replies = [reply for row in rows for reply in _replies(row)]
    missing = [
        Missing(client, row.round, _start(row), row.seconds, client in row.refused)
        for row in rows
        for client in row.missing.tolist()
    ]
    stages = _stages(rows)
    asked = {reply.client for reply in replies} | {each.client for each in missing}
    shown = range(usual.size) if usual.size <= MOST_CLIENTS else sorted(asked)
    parts = (f"{PHASES.get(each.phase, each.phase)} {_rounds(each)}" for each in stages)
    shortened = f"; the run has {len(every):,}" * (len(rows) < len(every))
    return Timeline(
        run.scheme,
        run.study.title,
        f"Who was drawn and how long each took: {run.scheme}, seed {run.seed}",
        f"Rounds shown: {', '.join(parts)}{shortened}. {how_measured(run.study)}",
        # One that never answered is slower than all others.
        sorted(shown, key=lambda client: (np.isnan(usual[client]), usual[client], client)),
        usual,
        [_start(row) for row in rows],
        replies,
        missing,
        stages,
    )


def _replies(row: Row) -> list[DrawnReply]:
    # Not every client may tell; that of one whose clock is off is not longer than the whole.
    told = row.computing_seconds if row.computing_seconds.size else 0 * row.client_seconds
    computing = np.minimum(np.nan_to_num(told), row.client_seconds)
    each = zip(row.clients.tolist(), row.client_seconds.tolist(), computing.tolist(), strict=True)
    return [DrawnReply(client, row.round, _start(row), took, part) for client, took, part in each]


def _start(row: Row) -> float:
    return row.seconds - row.round_seconds


def _around_the_switch(rows: Sequence[Row]) -> Sequence[Row]:
    """Return the last rounds before training proper and the first of it; all of a short run."""
    switch = sum(row.phase != "train" for row in rows)
    first = max(0, min(switch - MOST_ROUNDS // 2, len(rows) - MOST_ROUNDS))
    return rows[first : first + MOST_ROUNDS]


def _stages(rows: Sequence[Row]) -> list[Stage]:
    groups = [list(group) for _, group in groupby(rows, key=lambda row: row.phase)]
    ends = [(group[0], group[-1]) for group in groups]
    return [Stage(a.phase, a.round, b.round, _start(a), b.seconds) for a, b in ends]


def _rounds(stage: Stage) -> str:
    return f"{stage.first}" + f"–{stage.last}" * (stage.first < stage.last)


def _usual_seconds(runs: Sequence[StoredRun]) -> FloatArray:
    rows = [row for run in runs for row in run.history.rows]
    clients = np.concatenate([row.clients for row in rows])
    seconds = np.concatenate([row.client_seconds for row in rows])
    asked = np.concatenate([clients, *(row.missing for row in rows)])
    n = max(int(asked.max(initial=-1)) + 1, *(run.profile.n for run in runs))
    mine = (seconds[clients == client] for client in range(n))
    return np.array([np.median(each) if each.size else np.nan for each in mine])
