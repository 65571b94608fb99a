"""Timelines: which clients were drawn in which round, and how long each took."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple

import altair as alt
import numpy as np

from fedpace.checks import FloatArray
from fedpace.report.charts import CROSS, Figure, Records, chart_of, colour, numbers, pale, records
from fedpace.report.notes import how_measured, title_of
from fedpace.report.setups import Setup
from fedpace.studies.store import StoredRun
from fedpace.training.history import Row

PHASES = {
    "pilot-uniform": "uniform pilot",
    "pilot-weighted": "weighted pilot",
    "warm-up": "warm-up",
    "train": "training",
}
# A stage that takes less than this part of the width has no room for its name, a tier for its.
LEAST_LABELLED, LEAST_NUMBERED = 0.1, 0.02
# From the first tier to the last: dark to light for all eyes, and in grey.
TIER_SHADES = ("#440154", "#3b528b", "#21918c", "#5ec962", "#fde725")
# A shade that is lighter than this, of 255, has dark letters.
LIGHT = 140
# More rounds than this are too narrow to see; half of them are from before the switch.
MOST_ROUNDS = 40
# More bars than this make a page that is slow to open: then fewer rounds are shown.
MOST_REPLIES = 4_000
# Of more clients than this, only those that were asked in the rounds shown have a line.
MOST_CLIENTS = 60
# Of more than this, some of all speeds.
MOST_LINES = 400
SIMULATED = "The clock is simulated."
COMPUTING, TRANSFER = "computing", "transfer, both ways"
UNTIL_REPLY, MISSING = "until the reply", "no reply"
BARS = "Bars: computing (dark) and transfer both ways (pale), one after the other"
# As many labels as there is room for beside the figure.
MOST_LABELS = 40
# Half of a bar, where the distance of lines is 1.
HALF = 0.4


class DrawnReply(NamedTuple):
    """A bar: from the round's start to the arrival; `computing` is 0 where it was not measured."""

    client: int
    round: int
    start: float
    seconds: float
    computing: float
    tier: int = -1
    why: str = ""


class Missing(NamedTuple):
    """A cross at the end of the round, and a thin line to it from the start."""

    client: int
    round: int
    start: float
    end: float
    refused: bool


class PhaseSpan(NamedTuple):
    """Rounds of one phase."""

    phase: str
    first: int
    last: int
    start: float
    end: float


class TierSpan(NamedTuple):
    """Rounds in a row that drew from one tier, for one reason."""

    tier: int
    why: str
    first: int
    last: int
    start: float
    end: float


class Timeline(NamedTuple):
    """The rounds shown of a run; `clients` have lines from the bottom up, fastest first.

    `usual` is the median of a client's times over runs on the same devices, by client; NaN for one
    that never answered. `rounds` are the rounds' starts. `tiers` is empty without any.
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
    stages: list[PhaseSpan]
    tiers: list[TierSpan]

    @property
    def split(self) -> bool:
        """Whether computing was measured apart from transfer."""
        return any(reply.computing > 0 for reply in self.replies)

    @property
    def places(self) -> dict[int, int]:
        """The line of each client."""
        return {client: place for place, client in enumerate(self.clients)}

    @property
    def strip(self) -> tuple[float, float]:
        """The bottom and the top of the strip of tiers, above the clients; equal without tiers."""
        bottom = len(self.clients) - 0.4
        return bottom, bottom + bool(self.tiers) * (0.4 + 0.03 * len(self.clients))

    @property
    def height(self) -> tuple[float, float]:
        """The ends of the vertical axis, with room for the stages' names above the clients."""
        return -0.8, 0.6 + 0.03 * len(self.clients) + self.strip[1]

    @property
    def labelled(self) -> list[tuple[float, str]]:
        """Where the stages begin that have room for a name, and the name."""
        wide = (stage for stage in self.stages if self._part(stage) >= LEAST_LABELLED)
        return [(stage.start, PHASES.get(stage.phase, stage.phase)) for stage in wide]

    @property
    def numbered(self) -> list[TierSpan]:
        """The tiers that have room for a number."""
        return [span for span in self.tiers if self._part(span) >= LEAST_NUMBERED]

    def _part(self, span: PhaseSpan | TierSpan) -> float:
        total = self.stages[-1].end - self.stages[0].start
        return (span.end - span.start) / total if total > 0 else 0.0


def client_labels(shown: Timeline, most: int) -> tuple[list[float], list[str]]:
    """Return up to `most` places from the bottom, and the clients there with their times.

    The strip of tiers has one beside them.
    """
    step = -(-len(shown.clients) // most)
    # From the slowest down, for it is the one looked for.
    places = list(range(len(shown.clients) - 1, -1, -step))
    times = (shown.usual[shown.clients[place]] for place in places)
    texts = ("–" if np.isnan(time) else f"{time:.2g}" for time in times)
    labels = [f"{shown.clients[at]} ({text})" for at, text in zip(places, texts, strict=True)]
    bottom, top = shown.strip
    tier = bool(shown.tiers)
    return [*places, *[(bottom + top) / 2] * tier], [*labels, *["tier"] * tier]


def tier_colours(shown: Timeline, tier: int) -> tuple[str, str]:
    """Return the colour of a tier among those shown, and that of letters on it."""
    tiers = [span.tier for span in shown.tiers]
    low, high = min(tiers), max(tiers)
    at = (len(TIER_SHADES) - 1) * (tier - low) / max(high - low, 1)
    first = min(int(at), len(TIER_SHADES) - 2)
    one, other = (_parts(shade) for shade in TIER_SHADES[first : first + 2])
    mixed = one + (at - first) * (other - one)
    # How bright eyes take red, green and blue to be.
    letters = "black" if mixed @ (0.299, 0.587, 0.114) > LIGHT else "white"
    return "#" + "".join(f"{round(part):02x}" for part in mixed.tolist()), letters


def _parts(shade: str) -> FloatArray:
    return np.array([int(shade[at : at + 2], 16) for at in (1, 3, 5)], dtype=np.float64)


def timelines(setup: Setup) -> list[Timeline]:
    """Return the timeline of each scheme's first seed; none of a run that asked no client."""
    firsts = [setup.of(scheme)[0] for scheme in setup.schemes]
    measured = setup.study.network is not None
    # Simulated devices have the times of their seed, real ones are the same in all runs.
    runs = {seed: [run for run in setup.runs if measured or run.seed == seed] for seed in
            {run.seed for run in firsts}}  # fmt: skip
    usual = {seed: _usual_seconds(mine) for seed, mine in runs.items()}
    asking = [run for run in firsts if any(_count_asked(row) for row in run.history.rows)]
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
        f"Which clients were drawn, and how long each took: {run.scheme}, seed {run.seed}",
        f"{unit} shown: {', '.join(parts)}{shortened}.{some} "
        f"{how_measured(run.study) or SIMULATED}",
        clients,
        usual,
        [_start(row) for row in rows],
        [reply for row in rows for reply in _replies(row) if reply.client in shown],
        [
            Missing(client, row.round, start, row.seconds, client in row.refused)
            for row in rows
            for client, start in zip(row.missing.tolist(), _missing_replies(row), strict=True)
            if client in shown
        ],
        stages,
        _tiers(rows),
    )


def _replies(row: Row) -> list[DrawnReply]:
    # A client may not report it, and its clock may be off: at most the seconds until the reply.
    reported = row.computing_seconds if row.computing_seconds.size else 0 * row.client_seconds
    computing = np.minimum(np.nan_to_num(reported), row.client_seconds)
    began = row.began.tolist() or [_start(row)] * row.clients.size
    columns = (row.clients.tolist(), began, row.client_seconds.tolist(), computing.tolist())
    return [
        DrawnReply(client, row.round, start, took, part, row.tier, row.why)
        for client, start, took, part in zip(*columns, strict=True)
    ]


def _missing_replies(row: Row) -> list[float]:
    """Return when missing clients were asked."""
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


def _count_asked(row: Row) -> int:
    return row.clients.size + row.missing.size


def _start(row: Row) -> float:
    return row.seconds - row.round_seconds


def _around_the_switch(rows: Sequence[Row]) -> Sequence[Row]:
    """Return the last rounds before tiers, or else training proper, and the first of it.

    All of a short run.
    """
    most = max(2, min(MOST_ROUNDS, MOST_REPLIES // max(map(_count_asked, rows))))
    tiered = next((at for at, row in enumerate(rows) if row.tier >= 0), None)
    switch = sum(row.phase != "train" for row in rows) if tiered is None else tiered
    before = most // 2 if tiered is None else most // 8  # tiers are what is looked for
    first = max(0, min(switch - before, len(rows) - most))
    return rows[first : first + most]


def _stages(rows: Sequence[Row]) -> list[PhaseSpan]:
    groups = [list(group) for _, group in groupby(rows, key=lambda row: row.phase)]
    ends = [(group[0], group[-1]) for group in groups]
    return [PhaseSpan(a.phase, a.round, b.round, _start(a), b.seconds) for a, b in ends]


def _tiers(rows: Sequence[Row]) -> list[TierSpan]:
    groups = groupby(rows, key=lambda row: (row.tier, row.why, row.phase))
    ends = [(tier, why, list(group)) for (tier, why, _), group in groups if tier >= 0]
    return [
        TierSpan(tier, why, own[0].round, own[-1].round, _start(own[0]), own[-1].seconds)
        for tier, why, own in ends
    ]


def _rounds(stage: PhaseSpan) -> str:
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


def timeline_figure(shown: Timeline) -> Figure:
    """Show a bar per reply, a cross per missing one, and what the rounds were for."""
    before = [stage for stage in shown.stages if stage.phase != "train"]
    at, labels = client_labels(shown, MOST_LABELS)
    values = [round(each, 6) for each in at]
    across = alt.X("start:Q", title="wall-clock time, s", axis=alt.Axis(grid=False)).scale(
        domain=numbers([shown.stages[0].start, shown.stages[-1].end]), nice=False
    )
    axis = alt.Axis(
        values=values,
        labelExpr=f"{json.dumps(labels)}[indexof({json.dumps(values)}, datum.value)]",
        labelFontSize=9 if len(labels) > 15 else 12,
        labelLimit=90,
        labelOverlap=False,
        grid=False,
    )
    up = alt.Y("low:Q", title="client (its usual time, s)", axis=axis).scale(
        domain=list(shown.height), nice=False
    )
    names = [
        *([COMPUTING, TRANSFER] if shown.split else [UNTIL_REPLY]),
        *[MISSING] * bool(shown.missing),
    ]
    shades = {COMPUTING: colour(shown.scheme), MISSING: "#000000"}
    colours = alt.Color("part:N", title=None, sort=names).scale(
        domain=names, range=[shades.get(name, pale(shown.scheme)) for name in names]
    ).legend(orient="top", symbolType="square")  # fmt: skip
    fields = ["client", "round", "seconds", *["computing"] * shown.split]
    if any(reply.tier >= 0 or reply.why for reply in shown.replies):
        fields += ["tier", "why"]
    layers = []
    if before:
        shade = _plain([{"start": each.start, "end": each.end} for each in before])
        shade = shade.mark_rect(color="#b09020", opacity=0.12)
        layers.append(shade.encode(x=across, x2=alt.X2("end")))
    starts = _plain([{"start": at} for at in numbers(shown.rounds)])
    layers.append(starts.mark_rule(strokeWidth=0.5, opacity=0.35).encode(x=across))
    bars = chart_of("replies").mark_rect(clip=True, stroke=colour(shown.scheme), strokeWidth=0.4)
    layers.append(
        bars.encode(
            x=across, x2=alt.X2("end"), y=up, y2=alt.Y2("high"), color=colours,
            tooltip=[alt.Tooltip(f"{name}:N") for name in fields],
        )
    )  # fmt: skip
    if shown.missing:
        place = alt.Y("line:Q").scale(domain=list(shown.height))
        crosses = chart_of("missing")
        layers += [
            crosses.mark_rule(strokeDash=[1, 2], strokeWidth=0.7).encode(
                x=across, x2=alt.X2("end"), y=place
            ),
            crosses.mark_point(shape=CROSS, size=60, strokeWidth=1.5, filled=False).encode(
                x=alt.X("end:Q"), y=place, color=colours,
                tooltip=["client:N", "round:N", alt.Tooltip("what:N", title="reply")],
            ),
        ]  # fmt: skip
    layers += _strip(shown, across, up)
    stages: Records = [{"start": at, "text": text} for at, text in shown.labelled]
    label = _plain(stages or [{}]).mark_text(align="left", baseline="top", dx=3)
    layers.append(label.encode(x=across, y=alt.value(0), text=alt.Text("text:N")))
    return Figure(
        name=f"timeline-{shown.scheme}",
        title=shown.title,
        chart=alt.layer(*layers, height=150 + 9 * min(len(shown.clients), MOST_CLIENTS)),
        data={"replies": _bars(shown), "missing": _crosses(shown), "tiers": _spans(shown)},
        setup=shown.setup,
        note=f"{_legend(shown, shaded=bool(before))} {shown.caption}",
        scheme=shown.scheme,
        wide=True,
        legend=True,
    )


def _plain(rows: Records) -> alt.Chart:
    return alt.Chart(alt.InlineData(values=rows))


def _strip(shown: Timeline, across: alt.X, up: alt.Y) -> list[alt.Chart]:
    """Return the strip of tiers above the clients."""
    if not shown.tiers:
        return []
    tiers = chart_of("tiers")
    tooltip = [alt.Tooltip(f"{name}:N") for name in ("first round", "last round", "tier", "why")]
    return [
        tiers.mark_rect(stroke="white", strokeWidth=0.5).encode(
            x=across, x2=alt.X2("end"), y=up, y2=alt.Y2("high"), tooltip=tooltip,
            color=alt.Color("fill:N", scale=None, legend=None),
        ),
        tiers.transform_filter("datum.numbered").mark_text(fontSize=10).encode(
            x=alt.X("middle:Q"), y=alt.Y("line:Q"), text=alt.Text("tier:N"),
            color=alt.Color("letters:N", scale=None, legend=None),
        ),
    ]  # fmt: skip


def _bars(shown: Timeline) -> Records:
    """Return the parts of the replies: computing and transfer, or one bar for both."""
    rows = []
    places, split = shown.places, shown.split
    for reply in shown.replies:
        line, middle = places[reply.client], reply.start + reply.computing
        end = reply.start + reply.seconds
        parts = [(COMPUTING, reply.start, middle), (TRANSFER, middle, end)]
        reply_row: dict[str, Any] = {
            "low": line - HALF, "high": line + HALF, "client": reply.client, "round": reply.round,
            "seconds": f"{reply.seconds:.3g}",
        }  # fmt: skip
        if split:
            reply_row["computing"] = f"{reply.computing:.3g}"
        if reply.tier >= 0:
            reply_row["tier"] = reply.tier
        if reply.why:
            reply_row["why"] = reply.why
        for name, first, last in parts if split else [(UNTIL_REPLY, reply.start, end)]:
            start, stop = numbers([first, last])
            rows.append({"part": name, "start": start, "end": stop, **reply_row})
    return rows


def _crosses(shown: Timeline) -> Records:
    places = shown.places
    return records(
        part=[MISSING] * len(shown.missing),
        client=[each.client for each in shown.missing],
        round=[each.round for each in shown.missing],
        start=numbers(each.start for each in shown.missing),
        end=numbers(each.end for each in shown.missing),
        line=[places[each.client] for each in shown.missing],
        what=["refused" if each.refused else MISSING for each in shown.missing],
    )


def _spans(shown: Timeline) -> Records:
    bottom, top = shown.strip
    numbered, rows = set(shown.numbered), []
    for span in shown.tiers:
        fill, letters = tier_colours(shown, span.tier)
        start, middle, end = numbers([span.start, (span.start + span.end) / 2, span.end])
        rows.append({
            "start": start, "middle": middle, "end": end, "low": bottom, "high": top,
            "line": (bottom + top) / 2, "fill": fill, "letters": letters, "tier": span.tier,
            "why": span.why, "first round": span.first, "last round": span.last,
            "numbered": span in numbered,
        })  # fmt: skip
    return rows


def _legend(shown: Timeline, *, shaded: bool) -> str:
    """Return what the marks mean."""
    bars = BARS if shown.split else "Bars: until the reply"
    cross = "; cross: no reply by the end of the round" if shown.missing else ""
    strip = "; strip above: the tier drawn from" if shown.tiers else ""
    return f"{bars}{cross}{strip}{'; shaded: before training' * shaded}."
