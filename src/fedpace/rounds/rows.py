"""What happened in each round of a run, to look at and to write to files, with one codec."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import numpy as np
from numpy.typing import NDArray

from fedpace.checks import FloatArray, IntArray
from fedpace.errors import InputError
from fedpace.files import cell, write_text
from fedpace.rounds.backend import NOBODY, NOTHING

# The losses that must be below a target on average for it to be reached for good.
SUSTAINED = 10


class Row(NamedTuple):
    """The state after a round; row 0 is the initial model.

    `seconds` counts from the start of training, `round_seconds` is how long this round lasted,
    `waiting_seconds` how long it waited for clients before the draw. The arrays have one entry
    per client that answered; `weights` are those its update got. What a network tells is NaN or
    empty where there is none: `loss_estimate` is Σ weights_i F_i(w) from the answering clients'
    own `losses`, at the model that the round began with. `missing` were drawn and did not answer;
    of `refused`, among them, a reply came that was not accepted; `left_out` answered, and the
    sampler's own rule chose others. `ended` says why training, or its phase, ended with this round.

    Where the global loss was not evaluated, `loss` is the estimate and `accuracy` is NaN.
    `sustained_loss` is the mean of the last ten evaluated losses, NaN before there are ten.
    `tier` is the one that the clients were drawn from, −1 where the design has none; `why` says in
    a short sentence why this design was in use, empty where nobody says. `agreement` is the cosine
    between each update and the others of its round, where clients are remote.

    What a round cost: `probing_seconds` are those in which candidates were asked before the draw,
    `device_seconds` all that clients worked, together, `wasted_seconds` those of them that brought
    nothing: candidates, late replies, clients that left. `traffic_down` and `traffic_up` are bytes,
    as measured or by the size of the model in single precision. `slow_accuracy` is the accuracy on
    what the slowest fifth of clients hold back, NaN where nobody knows.

    Without a barrier a row is a step, and `round_seconds` the time since the one before. `versions`
    are the steps that lay behind the model that each update began with, so that it is
    `staleness` steps old; `began` is when each task was given out, by the same clock as `seconds`;
    `missing_seconds` how long each of the missing was waited for. All are empty in rounds.

    A new column is added here, and filled in `fedpace.rounds.run`: the files follow.
    """

    phase: str
    round: int
    seconds: float
    loss: float
    accuracy: float
    expected_round_seconds: float
    round_seconds: float
    clients: IntArray = NOBODY
    weights: FloatArray = NOTHING
    client_seconds: FloatArray = NOTHING
    grad_norms: FloatArray = NOTHING
    loss_estimate: float = math.nan
    losses: FloatArray = NOTHING
    computing_seconds: FloatArray = NOTHING
    bytes_down: IntArray = NOBODY
    bytes_up: IntArray = NOBODY
    missing: IntArray = NOBODY
    refused: IntArray = NOBODY
    waiting_seconds: float = 0.0
    sustained_loss: float = math.nan
    ended: str = ""
    tier: int = -1
    why: str = ""
    agreement: FloatArray = NOTHING
    versions: IntArray = NOBODY
    began: FloatArray = NOTHING
    missing_seconds: FloatArray = NOTHING
    probing_seconds: float = 0.0
    device_seconds: float = 0.0
    wasted_seconds: float = 0.0
    traffic_down: int = 0
    traffic_up: int = 0
    slow_accuracy: float = math.nan
    left_out: IntArray = NOBODY

    @property
    def staleness(self) -> IntArray:
        """The steps that were taken while each update was made; empty in rounds."""
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
# Those that hold clients, and others that are no negative numbers.
CLIENTS = ("clients", "missing", "refused", "left_out")
NATURAL = ("round", *CLIENTS)


def packed_rows(rows: Sequence[Row]) -> dict[str, NDArray[Any]]:
    """Return the rows as arrays: one per number, and lists end to end with where each begins.

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


def joined_rows(
    first: Mapping[str, NDArray[Any]], second: Mapping[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    """Return what `packed_rows` makes of the rows of both, without going through them again.

    The first may be empty.
    """
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
    """Return where each row's list begins; lists that were left out are empty."""
    shared = arrays["offsets"]
    return arrays.get(f"{name}-offsets", shared) if name in arrays else np.zeros_like(shared)


def unpacked_rows(arrays: Mapping[str, NDArray[Any]]) -> list[Row]:
    """Return the rows again; a column that the file does not know has its default.

    Raises ValueError for arrays that no rows were packed into.
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
    """Refuse a column of another type or length: files may come from anyone."""
    column, kind = arrays[name], _TYPES[name]
    texts, numbers = kind is str, "iu" if kind is IntArray else "iuf"
    if column.ndim != 1 or (column.size and column.dtype.kind not in ("U" if texts else numbers)):
        raise ValueError(f"{name} has type {column.dtype} and shape {column.shape}")
    if texts:
        "".join(column.tolist()).encode()  # or it cannot be written anywhere
    if name in NATURAL and (column < 0).any():
        raise ValueError(f"{name} is negative")
    if name in LISTS:
        begins = arrays.get(f"{name}-offsets", arrays["offsets"])
        ends = begins[0] == 0 and begins[-1] == len(column) and (np.diff(begins) >= 0).all()
        if begins.shape != (count + 1,) or not ends:
            raise ValueError(f"{name} has {len(column)} entries, and other offsets")
    elif len(column) != count:
        raise ValueError(f"{name} has {len(column)} entries for {count} rows")


def sustained_loss(rows: Sequence[Row], row: Row) -> float:
    """Return the mean of the last ten evaluated losses, the new row's among them.

    The initial model does not count; before there are ten it is NaN.
    """
    if not row.evaluated:
        return rows[-1].sustained_loss if rows else math.nan
    losses = [row.loss]
    for each in reversed(rows):
        if len(losses) == SUSTAINED or not each.round or each.phase.startswith("pilot"):
            break
        if each.evaluated:
            losses.append(each.loss)
    return math.fsum(losses) / SUSTAINED if len(losses) == SUSTAINED else math.nan


@dataclass(frozen=True)
class History:
    """Hold the rows of a run; `pandas.DataFrame(history.columns())` opens it in pandas."""

    rows: Sequence[Row]

    def time_to(
        self, *, loss: float | None = None, accuracy: float | None = None, sustained: bool = False
    ) -> float:
        """Return the seconds until the loss or the accuracy is first reached; ∞ if never.

        With `sustained`, the loss has been reached when the mean of the last ten evaluated has.
        """
        rows = self._reached(loss, accuracy, sustained)
        return next((row.seconds for row in rows), math.inf)

    def rounds_to(
        self, *, loss: float | None = None, accuracy: float | None = None, sustained: bool = False
    ) -> float:
        """Return the rounds until the loss or the accuracy is first reached, as in `time_to`."""
        rows = self._reached(loss, accuracy, sustained)
        return next((float(row.round) for row in rows), math.inf)

    def columns(self) -> dict[str, list[Any]]:
        """Return one list per column; clients and what belongs to them are lists within."""
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
            cells = (" ".join(map(repr, x)) if isinstance(x, list) else cell(x) for x in row)
            writer.writerow(cells)
        write_text(Path(path), text.getvalue())

    def _reached(
        self, loss: float | None, accuracy: float | None, sustained: bool
    ) -> Iterator[Row]:
        if sustained and loss is None:
            raise InputError("sustained must come with a loss, got none; give loss")
        for row in self.rows:
            judged = row.sustained_loss if sustained else row.loss
            enough = accuracy is not None and row.accuracy >= accuracy
            if enough or (loss is not None and judged <= loss):
                yield row
