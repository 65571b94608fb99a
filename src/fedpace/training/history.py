"""The history of a run: one row per round, its columns, and its form in files."""

from __future__ import annotations

import csv
import io
import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import numpy as np
from numpy.typing import NDArray

from fedpace.checks import FloatArray, IntArray
from fedpace.errors import InputError
from fedpace.files import csv_cell, write_text
from fedpace.training.backend import NO_CLIENTS, NO_VALUES

# Evaluated losses whose mean must reach a target for it to be reached for good.
SUSTAINED = 10


class Row(NamedTuple):
    """The state after a round; row 0 is the initial model.

    `seconds` count from the start of training, `round_seconds` is the duration of this round, and
    `waiting_seconds` the time before the draw without enough clients. Arrays have one entry per
    client that answered; `weights` are those of its update. Columns are NaN or empty where they are
    unknown. `loss_estimate` is Σ weights_i F_i(w) from the clients' own `losses`, at the model that
    the round began with. `missing` were drawn and did not answer; `refused`, among them, sent a
    reply that was not accepted; `left_out` answered, but the sampler chose others. `ended` is why
    training, or its phase, ended with this round.

    If the global loss was not evaluated, `loss` is the estimate and `accuracy` is NaN.
    `sustained_loss` is the mean of the last ten evaluated losses, in asynchronous training of those
    over 10 C updates, NaN before there are so many. `tier` is that of the draw, −1 for a design
    without tiers; `why` is a short reason for the design.
    `agreement` is the cosine between each update and the others of its round, for remote clients.
    `local_steps` are those done by each client, where the sampler chose them.

    Costs of the round: `probing_seconds` before the draw, `device_seconds` of all clients together,
    and `wasted_seconds`, the part of these without a reply that counts (candidates, late replies,
    clients that left). `traffic_down` and `traffic_up` are bytes, as measured or by the size of the
    model in single precision. `slow_accuracy` is the accuracy on the held-out samples of the
    slowest fifth of clients.

    In asynchronous training a row is a step, and `round_seconds` the time since the previous one.
    `versions` are the server steps of the model that each update began with, so that it is
    `staleness` steps old; `began` is when each task was sent, by the clock of `seconds`;
    `missing_seconds` is how long the server waited for each of the missing. All are empty in
    rounds.

    To add a column, add it here and fill it in `Training._describe`; the files follow.
    """

    phase: str
    round: int
    seconds: float
    loss: float
    accuracy: float
    expected_round_seconds: float
    round_seconds: float
    clients: IntArray = NO_CLIENTS
    weights: FloatArray = NO_VALUES
    client_seconds: FloatArray = NO_VALUES
    grad_norms: FloatArray = NO_VALUES
    loss_estimate: float = math.nan
    losses: FloatArray = NO_VALUES
    computing_seconds: FloatArray = NO_VALUES
    bytes_down: IntArray = NO_CLIENTS
    bytes_up: IntArray = NO_CLIENTS
    missing: IntArray = NO_CLIENTS
    refused: IntArray = NO_CLIENTS
    waiting_seconds: float = 0.0
    sustained_loss: float = math.nan
    ended: str = ""
    tier: int = -1
    why: str = ""
    agreement: FloatArray = NO_VALUES
    versions: IntArray = NO_CLIENTS
    began: FloatArray = NO_VALUES
    missing_seconds: FloatArray = NO_VALUES
    probing_seconds: float = 0.0
    device_seconds: float = 0.0
    wasted_seconds: float = 0.0
    traffic_down: int = 0
    traffic_up: int = 0
    slow_accuracy: float = math.nan
    left_out: IntArray = NO_CLIENTS
    local_steps: IntArray = NO_CLIENTS

    @property
    def staleness(self) -> IntArray:
        """The server steps taken while each update was made; empty in rounds."""
        return self.round - 1 - self.versions

    @property
    def evaluated(self) -> bool:
        """Whether the model was evaluated, so that `loss` is not the estimate."""
        unknown = math.isnan(self.loss) or self.loss == self.loss_estimate
        return not (unknown and math.isnan(self.accuracy))

    @property
    def grad_spread(self) -> float:
        """Largest over smallest gradient norm measured in this round; NaN without clients."""
        if self.grad_norms.size == 0 or self.grad_norms.min() <= 0:
            return math.nan
        return float(self.grad_norms.max() / self.grad_norms.min())


_TYPES = get_type_hints(Row)
LISTS = tuple(name for name in Row._fields if _TYPES[name] in (FloatArray, IntArray))
SCALARS = tuple(name for name in Row._fields if name not in LISTS)
NUMBERS = (*SCALARS, "grad_spread")
# Columns of clients, and all columns without negative numbers.
CLIENTS = ("clients", "missing", "refused", "left_out")
NATURAL = ("round", "local_steps", *CLIENTS)


def pack_rows(rows: Sequence[Row]) -> dict[str, NDArray[Any]]:
    """Return the rows as arrays: one per number, and concatenated lists with their offsets.

    Lists as long as `clients` share its offsets; optional ones that are empty are left out.
    """
    arrays = {name: np.array([getattr(row, name) for row in rows]) for name in SCALARS}
    for name in ("clients", *LISTS):
        lists = [getattr(row, name) for row in rows]
        offsets = np.cumsum([0, *map(len, lists)])
        if name == "clients":
            arrays["offsets"] = offsets
        elif offsets[-1] == 0 and name in Row._field_defaults:
            continue
        elif (offsets != arrays["offsets"]).any():
            arrays[f"{name}-offsets"] = offsets
        arrays[name] = np.concatenate(lists)
    return arrays


def join_rows(
    first: Mapping[str, NDArray[Any]], second: Mapping[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    """Join the results of `pack_rows`; the first may be empty."""
    if not first:
        return dict(second)
    parts = first, second
    arrays = {name: np.concatenate([each[name] for each in parts]) for name in SCALARS}
    for name in ("clients", *LISTS):
        lists = [each[name] for each in parts if name in each]
        if not lists:
            continue
        before, more = (_offsets(name, each) for each in parts)
        offsets = np.append(before, before[-1] + more[1:])
        if name == "clients":
            arrays["offsets"] = offsets
        elif (offsets != arrays["offsets"]).any():
            arrays[f"{name}-offsets"] = offsets
        arrays[name] = np.concatenate(lists)
    return arrays


def _offsets(name: str, arrays: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    """Return the offsets of a column; lists that were left out are empty."""
    shared = arrays["offsets"]
    return arrays.get(f"{name}-offsets", shared) if name in arrays else np.zeros_like(shared)


def unpack_rows(arrays: Mapping[str, NDArray[Any]]) -> list[Row]:
    """Return the rows of arrays; a missing column has its default.

    Raises ValueError for arrays that do not come from `pack_rows`.
    """
    count = len(arrays["phase"])
    for name in Row._fields:
        if name in arrays:
            _check_column(name, arrays, count)
    scalars = {name: arrays[name].tolist() for name in SCALARS if name in arrays}
    columns: dict[str, list[Any]] = scalars | {
        name: np.split(arrays[name], arrays.get(f"{name}-offsets", arrays["offsets"])[1:-1])
        for name in LISTS
        if name in arrays
    }
    return [Row(**{name: column[i] for name, column in columns.items()}) for i in range(count)]


def _check_column(name: str, arrays: Mapping[str, NDArray[Any]], count: int) -> None:
    """Refuse a column of another type or length, as files are not trusted."""
    column, kind = arrays[name], _TYPES[name]
    texts, numbers = kind is str, "iu" if kind is IntArray else "iuf"
    if column.ndim != 1 or (column.size and column.dtype.kind not in ("U" if texts else numbers)):
        raise ValueError(f"{name} has type {column.dtype} and shape {column.shape}")
    if texts:
        "".join(column.tolist()).encode()  # must be valid Unicode
    if name in NATURAL and (column < 0).any():
        raise ValueError(f"{name} is negative")
    if name in LISTS:
        begins = arrays.get(f"{name}-offsets", arrays["offsets"])
        ends = begins[0] == 0 and begins[-1] == len(column) and (np.diff(begins) >= 0).all()
        if begins.shape != (count + 1,) or not ends:
            raise ValueError(f"{name} has {len(column)} entries, and other offsets")
    elif len(column) != count:
        raise ValueError(f"{name} has {len(column)} entries for {count} rows")


class SustainedLoss:
    """The mean of the latest evaluated losses: of ten rounds, or of the steps of 10 C updates.

    The initial model and pilots do not count. In asynchronous training losses have the weight of
    the updates since the evaluation before.

    Parameters
    ----------
    at_once : int ≥ 1, optional
        C in asynchronous training; None for rounds.
    rows : iterable of Row
        What happened before, such as before an interruption.
    """

    def __init__(self, at_once: int | None = None, rows: Iterable[Row] = ()) -> None:
        self._at_once, self._wanted = at_once, SUSTAINED * (at_once or 1)
        self._losses: deque[tuple[int, float]] = deque()
        self._total = self._updates = 0
        self._latest = math.nan
        for row in rows:
            self.add(row)

    def add(self, row: Row) -> float:
        """Return the mean up to this row, NaN before there are enough losses."""
        if not row.round or row.phase.startswith("pilot"):
            self._losses.clear()
            self._total = self._updates = 0
            self._latest = math.nan
            return self._latest
        self._updates += row.clients.size
        if not row.evaluated:
            return self._latest
        count = 1 if self._at_once is None else self._updates
        self._updates = 0
        self._losses.append((count, row.loss))
        self._total += count
        while self._total - self._losses[0][0] >= self._wanted:
            self._total -= self._losses.popleft()[0]
        if self._total >= self._wanted:
            self._latest = math.fsum(count * loss for count, loss in self._losses) / self._total
        return self._latest


@dataclass(frozen=True)
class History:
    """Hold the rows of a run; `pandas.DataFrame(history.columns())` opens it in pandas."""

    rows: Sequence[Row]

    def time_to(
        self, *, loss: float | None = None, accuracy: float | None = None, sustained: bool = False
    ) -> float:
        """Return the seconds until the loss or the accuracy is first reached; ∞ if never.

        With `sustained`, the mean of the last ten evaluated losses, or of those over 10 C updates,
        must have reached it.
        """
        rows = self._rows_at_target(loss, accuracy, sustained)
        return next((row.seconds for row in rows), math.inf)

    def rounds_to(
        self, *, loss: float | None = None, accuracy: float | None = None, sustained: bool = False
    ) -> float:
        """Return the rounds until the loss or the accuracy is first reached, as in `time_to`."""
        rows = self._rows_at_target(loss, accuracy, sustained)
        return next((float(row.round) for row in rows), math.inf)

    def columns(self) -> dict[str, list[Any]]:
        """Return one list per column; columns per client are lists of lists."""
        scalars = {name: [getattr(row, name) for row in self.rows] for name in NUMBERS}
        lists = {name: [getattr(row, name).tolist() for row in self.rows] for name in LISTS}
        return scalars | lists

    def write_csv(self, path: str | Path) -> None:
        """Write one line per round; entries per client are separated by spaces."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        columns = self.columns()
        writer.writerow(columns)
        for row in zip(*columns.values(), strict=True):
            cells = (" ".join(map(repr, x)) if isinstance(x, list) else csv_cell(x) for x in row)
            writer.writerow(cells)
        write_text(Path(path), text.getvalue())

    def _rows_at_target(
        self, loss: float | None, accuracy: float | None, sustained: bool
    ) -> Iterator[Row]:
        if sustained and loss is None:
            raise InputError("sustained must come with a loss, got none; give loss")
        for row in self.rows:
            value = row.sustained_loss if sustained else row.loss
            enough = accuracy is not None and row.accuracy >= accuracy
            if enough or (loss is not None and value <= loss):
                yield row


def read_csv(path: str | Path) -> list[Row]:
    """Return the rows of a file of `History.write_csv`; missing columns have their defaults."""
    rows = []
    try:
        with Path(path).open(encoding="utf-8", newline="") as file:
            for record in csv.DictReader(file):
                values: dict[str, Any] = {"phase": "train", "accuracy": math.nan}
                values |= {"expected_round_seconds": math.nan, "loss": math.nan}
                for name in Row._fields:
                    text = record.get(name)
                    if text is not None:
                        values[name] = _parse_cell(text, _TYPES[name])
                rows.append(Row(**values))
    except (OSError, UnicodeDecodeError, ValueError, TypeError, csv.Error) as error:
        remedy = "give a file of history.write_csv"
        raise InputError(f"{path}: cannot be read as a history: {error}; {remedy}") from None
    return rows


def _parse_cell(text: str, kind: Any) -> Any:
    if kind in (FloatArray, IntArray):
        numbers = [float(each) for each in text.split()]
        return np.array(numbers, dtype=np.float64 if kind == FloatArray else np.int64)
    if kind is str:
        return text
    return kind(float(text)) if text else kind(0) if kind is int else math.nan
