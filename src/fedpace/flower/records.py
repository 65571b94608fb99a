"""Flower's records as one vector of numbers, and back."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from statistics import median_low
from typing import Any, Self

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord
from numpy.typing import NDArray

from fedpace.checks import FloatArray
from fedpace.errors import InputError
from fedpace.remote.screening import FEWEST_OTHERS, WIDEST_LOSS, BadReplyError

# What a saved array holds besides its numbers: type and shape in words.
LONGEST_HEADER = 4096
# Times the median that a count of examples weighs for at most in a mean of metrics.
MOST_EXAMPLES = 10.0
# The largest value of a metric in percent.
WHOLE = 100.0
# What PyTorch calls the arrays that its layers keep beside their parameters.
BUFFERS = ("running_mean", "running_var", "num_batches_tracked")


@dataclass(frozen=True)
class Layout:
    """Where each array of a model lies in the one vector that is trained.

    All arrays are part of it and keep their types: floats of any precision, and integers and truth
    values such as a counter of batches, which are rounded when they are sent. Buffers, which no
    gradient moves, are told from the rest by type and name.

    >>> layout = Layout.of(ArrayRecord([np.array([1.5, 2.0], np.float32), np.array(7)]))
    >>> vector = layout.vector(layout.record(np.array([0.5, 1.0, 7.6])))
    >>> vector
    array([0.5, 1. , 8. ])
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    types: tuple[np.dtype[Any], ...]

    @classmethod
    def of(cls, arrays: ArrayRecord) -> Self:
        """Return the layout of a model, or say which of its arrays cannot be averaged."""
        values = {name: array.numpy() for name, array in arrays.items()}
        for name, value in values.items():
            if value.dtype.kind not in "fiub":
                got = f"{value.dtype} for '{name}'; leave it out of the ArrayRecord"
                raise InputError(f"initial_arrays must be numbers, got {got}")
            if not np.isfinite(value).all():
                got = f"NaN or infinity in '{name}'; look at how the model is initialised"
                raise InputError(f"initial_arrays must be finite, got {got}")
        if not any(value.size for value in values.values()):
            raise InputError("initial_arrays must hold a number, got none; give the model's arrays")
        shapes, types = zip(*((each.shape, each.dtype) for each in values.values()), strict=True)
        return cls(tuple(values), shapes, types)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The number of entries of each array."""
        return tuple(int(np.prod(shape)) for shape in self.shapes)

    @cached_property
    def floats(self) -> NDArray[np.bool_]:
        """Which entries are floats."""
        return np.repeat([kind.kind == "f" for kind in self.types], self.sizes)

    @cached_property
    def trained(self) -> NDArray[np.bool_]:
        """Which entries gradients move: floats but for running means and variances."""
        typed = zip(self.names, self.types, strict=True)
        parameters = [kind.kind == "f" and not name.endswith(BUFFERS) for name, kind in typed]
        return np.repeat(parameters, self.sizes)

    def vector(self, arrays: ArrayRecord) -> FloatArray:
        """Return the arrays one after the other in float64, or say why they do not fit."""
        if set(arrays) != set(self.names):
            raise BadReplyError(f"the arrays are named {sorted(arrays)!r:.80}, not as those sent")
        ordered = [arrays[name] for name in self.names]
        return np.concatenate([*map(_part, self.names, ordered, self.shapes, self.types)])

    @np.errstate(over="ignore", invalid="ignore")  # a model that diverges
    def record(self, vector: FloatArray) -> ArrayRecord:
        """Return the arrays of a vector, each in its own shape and type."""
        parts = np.split(vector, np.cumsum(self.sizes)[:-1])
        typed = zip(map(_typed, parts, self.types), self.shapes, strict=True)
        arrays = (Array(values.reshape(shape)) for values, shape in typed)
        return ArrayRecord(dict(zip(self.names, arrays, strict=True)))


def _part(name: str, array: Array, shape: tuple[int, ...], kind: np.dtype[Any]) -> FloatArray:
    # Looked at before it is opened: a few bytes can claim to be an array of any size.
    if not 0 <= len(array.data) - int(np.prod(shape)) <= 16 * np.prod(shape) + LONGEST_HEADER:
        raise BadReplyError(f"array {name!r:.80} has {len(array.data)} bytes, too many or too few")
    try:
        value = array.numpy()
    except Exception as error:  # what the bytes of an array that is none raise is NumPy's affair
        raise BadReplyError(f"array {name!r:.80} cannot be read: {error!s:.80}") from None
    if value.shape != shape:
        raise BadReplyError(f"array {name!r:.80} has shape {value.shape}, not {shape}")
    if value.dtype.kind not in ("f" if kind.kind == "f" else "fiub"):
        raise BadReplyError(f"array {name!r:.80} has type {value.dtype}, not {kind}")
    return value.astype(np.float64).ravel()


def _typed(values: FloatArray, kind: np.dtype[Any]) -> NDArray[Any]:
    """Return the values in a type; for integers the nearest that it can hold."""
    if kind.kind == "f":
        return values.astype(kind)
    if kind.kind == "b":
        return np.asarray(values >= 0.5)
    limits = np.iinfo(kind)
    # As floats the limits of 64 bits are beyond them by one: clip once more as integers.
    wide = np.clip(np.rint(values), -(2.0**63), np.nextafter(2.0**63, 0)).astype(np.int64)
    return np.clip(wide, max(limits.min, -(2**63)), min(limits.max, 2**63 - 1)).astype(kind)


def arrays_of(message: Message) -> ArrayRecord:
    """Return the one record of arrays in a reply."""
    records = list(message.content.array_records.values())
    if len(records) != 1:
        raise BadReplyError(f"the reply holds {len(records)} ArrayRecords, not one")
    return records[0]


def metrics_of(message: Message) -> dict[str, Any]:
    """Return all metrics of a message in one dictionary."""
    records = message.content.metric_records.values()
    return {name: value for record in records for name, value in record.items()}


def size_of(message: Message) -> int:
    """Return the bytes of a message's records."""
    return sum(record.count_bytes() for record in message.content.values())


def mean_metrics(
    replies: Iterable[Message], weighted_by: str, *, judged: bool = False
) -> MetricRecord | None:
    """Return the mean of every metric that all replies have, weighted as Flower's FedAvg does.

    A reply without a weight counts as one sample; None without replies. No count weighs for more
    than ten times the median. With `judged`, one reply alone moves no mean far: see `_judged`.
    """
    metrics = [metrics_of(reply) for reply in replies]
    if not metrics:
        return None
    weights = np.array([_weight(each.get(weighted_by)) for each in metrics])
    weights = np.minimum(weights, MOST_EXAMPLES * median_low(weights.tolist()))
    mean = MetricRecord()
    for name in metrics[0]:
        values = [each.get(name) for each in metrics]
        if name != weighted_by and all(isinstance(value, (int, float)) for value in values):
            numbers, counted = np.array(values, dtype=np.float64), weights
            if judged:
                numbers, counted = _judged(name, numbers, weights)
            mean[name] = float(numbers @ (counted / counted.sum()))
    return mean


def _judged(name: str, values: FloatArray, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return a metric of all clients such that one of them alone does not decide the mean.

    What is not finite is left out, unless most of the values are not: then the model has diverged.
    A loss counts between a tenth and ten times the median of the others, where that is positive.
    Any other metric stays within [0, 1], or [0, 100], if all others are, and within ten times the
    largest of them otherwise. Of two clients nobody can tell who is right.
    """
    fine = np.isfinite(values)
    if 2 * fine.sum() <= fine.size:
        return values, weights
    values, weights = values[fine], weights[fine]
    if values.size <= FEWEST_OTHERS:
        return values, weights
    bounded = values.copy()
    for i, value in enumerate(values.tolist()):
        others = np.delete(values, i)
        middle, largest = float(np.median(others)), float(np.abs(others).max())
        low, high = -WIDEST_LOSS * largest, WIDEST_LOSS * largest
        if "loss" in name.lower():
            if middle > 0:
                low, high = middle / WIDEST_LOSS, middle * WIDEST_LOSS
        elif others.min() >= 0 and largest <= WHOLE:
            low, high = 0.0, 1.0 if largest <= 1 else WHOLE
        bounded[i] = min(max(value, low), high)
    return bounded, weights


def _weight(value: object) -> float:
    fine = isinstance(value, (int, float)) and np.isfinite(value) and value > 0
    return float(value) if fine else 1.0  # type: ignore[arg-type]


def metric_named(records: Iterable[MetricRecord], word: str) -> float:
    """Return the metric called `word`, or the first whose name contains it, of the first record.

    Records without it are passed over; NaN if there is none.

    >>> metric_named([MetricRecord({"eval_acc": 0.5, "eval_loss": 2.0})], "loss")
    2.0
    """
    for record in records:
        for name in (word, *(name for name in record if word in name.lower())):
            value = record.get(name)
            if isinstance(value, (int, float)) and not np.isnan(value):
                return float(value)
    return float("nan")
