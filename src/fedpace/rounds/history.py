"""The rows of a run, to look at."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpace.files import write_text
from fedpace.rounds.rows import LISTS, SCALARS, Row

NUMBERS = (*SCALARS, "grad_spread")


@dataclass(frozen=True)
class History:
    """Hold the rows of a run; `pandas.DataFrame(history.columns())` opens it in pandas."""

    rows: Sequence[Row]

    def time_to(self, *, loss: float | None = None, accuracy: float | None = None) -> float:
        """Return the seconds until the loss or the accuracy is first reached; ∞ if never."""
        return self._first(loss, accuracy, lambda row: row.seconds)

    def rounds_to(self, *, loss: float | None = None, accuracy: float | None = None) -> float:
        """Return the rounds until the loss or the accuracy is first reached; ∞ if never."""
        return self._first(loss, accuracy, lambda row: float(row.round))

    def columns(self) -> dict[str, list[Any]]:
        """Return one list per column; clients and what belongs to them are lists within."""
        scalars = {name: [getattr(row, name) for row in self.rows] for name in NUMBERS}
        lists = {name: [getattr(row, name).tolist() for row in self.rows] for name in LISTS}
        return scalars | lists

    def write_csv(self, path: str | Path) -> None:
        """Write one line per round; entries per client are separated by spaces."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow((*NUMBERS, *LISTS))
        for row in self.rows:
            scalars = [getattr(row, name) for name in NUMBERS]
            lists = [" ".join(map(repr, getattr(row, name).tolist())) for name in LISTS]
            writer.writerow((*scalars, *lists))
        write_text(Path(path), text.getvalue())

    def _first(
        self, loss: float | None, accuracy: float | None, value: Callable[[Row], float]
    ) -> float:
        for row in self.rows:
            if (loss is not None and row.loss <= loss) or (
                accuracy is not None and row.accuracy >= accuracy
            ):
                return value(row)
        return math.inf
