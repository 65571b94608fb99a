"""When to stop."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedpace.rounds.rows import Row

TIME_IS_UP = "seconds"


@dataclass(frozen=True)
class Stop:
    """Stop at whichever comes first; what is None does not count.

    A loss that is no longer finite always stops: nothing can come of it. With `blind`, a loss of
    NaN means that nobody measured it, and training goes on.
    """

    loss: float | None = None
    accuracy: float | None = None
    rounds: int | None = None
    seconds: float | None = None
    blind: bool = False

    def reason(self, row: Row) -> str:
        """Return why training ends after this row; empty if it goes on."""
        if not math.isfinite(row.loss) and not (self.blind and math.isnan(row.loss)):
            return "diverged"
        if self.loss is not None and row.loss <= self.loss:
            return "target loss"
        if self.accuracy is not None and row.accuracy >= self.accuracy:
            return "target accuracy"
        if self.rounds is not None and row.round >= self.rounds:
            return "rounds"
        if self.seconds is not None and row.seconds >= self.seconds:
            return TIME_IS_UP
        return ""
