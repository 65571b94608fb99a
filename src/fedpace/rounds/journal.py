"""What is told every finished round, and knows where to go on."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from fedpace.rounds.history import Row
from fedpace.rounds.state import State


class Found(NamedTuple):
    """How far a phase had got: its rows, the state after the last, and the luck still to come."""

    state: State
    rows: Sequence[Row]
    rng: dict[str, Any]


class Journal(Protocol):
    """Remembers finished rounds, so that a run goes on where it was ended."""

    def resume(self, phase: str) -> Found | None:
        """Return how far the phase had got, or None if it had not begun."""

    def record(
        self, phase: str, state: State, row: Row, rng: np.random.Generator | None = None
    ) -> None:
        """Keep what a finished round came to; return when it is safe."""
