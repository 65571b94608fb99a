"""What happened, one row per round."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fedpace.checks import FloatArray, IntArray
from fedpace.files import write_text
from fedpace.rounds.backend import NOBODY, NOTHING


class Row(NamedTuple):
    """The state after a round; row 0 is the initial model.

    `seconds` counts from the start of training, `round_seconds` is this round's slowest client.
    The arrays have one entry per client that answered; `weights` are those its update got. What a
    network tells is NaN or empty where there is none: `loss_estimate` is Σ weights_i F_i(w) from
    the answering clients' own `losses`, at the model that the round began with. `missing` were
    drawn and did not answer; of `refused`, among them, a reply came that was not accepted.

    Where the global loss was not evaluated, `loss` is the estimate and `accuracy` is NaN.
    """

    phase: str
    round: int
    seconds: float
    loss: float
    accuracy: float
    expected_round_seconds: float
    round_seconds: float
    clients: IntArray
    weights: FloatArray
    client_seconds: FloatArray
    grad_norms: FloatArray
    loss_estimate: float = math.nan
    losses: FloatArray = NOTHING
    computing_seconds: FloatArray = NOTHING
    bytes_down: IntArray = NOBODY
    bytes_up: IntArray = NOBODY
    missing: IntArray = NOBODY
    refused: IntArray = NOBODY

    @property
    def evaluated(self) -> bool:
        """Whether `loss` was evaluated on all clients, and is not the estimate."""
        return self.loss != self.loss_estimate

    @property
    def grad_spread(self) -> float:
        """Largest over smallest gradient norm measured in this round; NaN without clients."""
        if self.grad_norms.size == 0 or self.grad_norms.min() <= 0:
            return math.nan
        return float(self.grad_norms.max() / self.grad_norms.min())


SCALARS = (
    "phase", "round", "seconds", "loss", "accuracy", "expected_round_seconds", "round_seconds",
    "grad_spread", "loss_estimate",
)  # fmt: skip
LISTS = (
    "clients", "weights", "client_seconds", "grad_norms", "losses", "computing_seconds",
    "bytes_down", "bytes_up", "missing", "refused",
)  # fmt: skip


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
        scalars = {name: [getattr(row, name) for row in self.rows] for name in SCALARS}
        lists = {name: [getattr(row, name).tolist() for row in self.rows] for name in LISTS}
        return scalars | lists

    def write_csv(self, path: Path) -> None:
        """Write one line per round; entries per client are separated by spaces."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow((*SCALARS, *LISTS))
        for row in self.rows:
            scalars = [getattr(row, name) for name in SCALARS]
            lists = [" ".join(map(repr, getattr(row, name).tolist())) for name in LISTS]
            writer.writerow((*scalars, *lists))
        write_text(path, text.getvalue())

    def _first(self, loss: float | None, accuracy: float | None, value: Any) -> float:
        for row in self.rows:
            if (loss is not None and row.loss <= loss) or (
                accuracy is not None and row.accuracy >= accuracy
            ):
                return float(value(row))
        return math.inf
