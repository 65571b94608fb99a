"""What is told every finished round, and knows where to go on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from fedpace.rounds.rows import Row
from fedpace.rounds.state import State


class Found(NamedTuple):
    """How far a run had got: its rows, the state after the last, and the generator's state."""

    state: State
    rows: Sequence[Row]
    rng: dict[str, Any]


class Journal(Protocol):
    """Remembers finished rounds, so that a run goes on where it was ended."""

    def resume(self) -> Found | None:
        """Return how far the run had got, or None if it had not begun."""

    def record(self, state: State, row: Row, rng: np.random.Generator) -> None:
        """Keep a finished round; return when it is safe."""
