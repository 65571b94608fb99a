"""When to stop."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedpace.rounds.history import Row


@dataclass(frozen=True)
class Stop:
    """Stop at whichever comes first; what is None does not count.

    A loss that is no longer finite always stops: nothing can come of it.
    """

    loss: float | None = None
    accuracy: float | None = None
    rounds: int | None = None
    seconds: float | None = None

    def reason(self, row: Row) -> str | None:
        """Return why training ends after this row, or None."""
        if not math.isfinite(row.loss):
            return "diverged"
        if self.loss is not None and row.loss <= self.loss:
            return "target loss"
        if self.accuracy is not None and row.accuracy >= self.accuracy:
            return "target accuracy"
        if self.rounds is not None and row.round >= self.rounds:
            return "rounds"
        if self.seconds is not None and row.seconds >= self.seconds:
            return "seconds"
        return None
