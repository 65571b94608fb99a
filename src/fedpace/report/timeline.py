"""A timeline: who was drawn in which round, and how long each took, on the clock."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedpace.checks import FloatArray

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


class Stage(NamedTuple):
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
    stages: list[Stage]
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

    def _part(self, span: Stage | TierSpan) -> float:
        whole = self.stages[-1].end - self.stages[0].start
        return (span.end - span.start) / whole if whole > 0 else 0.0


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
