"""Flower's records as one vector of numbers, and back."""

import math
from collections.abc import Iterable
from statistics import median_low
from typing import Any, Self

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord
from numpy.typing import NDArray

from fedpace.checks import FloatArray
from fedpace.remote.layout import ArrayLayout
from fedpace.remote.screening import FEWEST_OTHERS, WIDEST_LOSS, BadReplyError

# What a saved array holds besides its numbers: type and shape in words.
LONGEST_HEADER = 4096
# Times the median that a count of examples weighs for at most in a mean of metrics.
MOST_EXAMPLES = 10.0
# The largest value of a metric in percent.
WHOLE = 100.0


class Layout(ArrayLayout):
    """The same for Flower's records.

    >>> layout = Layout.of(ArrayRecord([np.array([1.5, 2.0], np.float32), np.array(7)]))
    >>> vector = layout.vector(layout.record(np.array([0.5, 1.0, 7.6])))
    >>> vector
    array([0.5, 1. , 8. ])
    """

    @classmethod
    def of(cls, arrays: ArrayRecord) -> Self:
        """Return the layout of a model, or say which of its arrays cannot be averaged."""
        values = {name: array.numpy() for name, array in arrays.items()}
        return cls.of_arrays(values, argument="initial_arrays")

    def vector(self, arrays: ArrayRecord) -> FloatArray:
        """Return the arrays one after the other in float64, or say why they do not fit."""
        return self.vector_of(arrays, _opened)

    def record(self, vector: FloatArray) -> ArrayRecord:
        """Return the arrays of a vector, each in its own shape and type."""
        return ArrayRecord({name: Array(each) for name, each in self.arrays_of(vector).items()})


def _opened(name: str, array: Array, size: int) -> NDArray[Any]:
    # Looked at before it is opened: a few bytes can claim to be an array of any size.
    if not 0 <= len(array.data) - size <= 16 * size + LONGEST_HEADER:
        raise BadReplyError(f"array {name!r:.80} has {len(array.data)} bytes, too many or too few")
    try:
        return array.numpy()
    except Exception as error:  # what the bytes of an array that is none raise is NumPy's affair
        raise BadReplyError(f"array {name!r:.80} cannot be read: {error!s:.80}") from None


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
            numbers, counted = np.array([_number(value) for value in values]), weights
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


def _number(value: object) -> float:
    """Return a metric as a number; an integer of hundreds of digits is none."""
    try:
        return float(value) if isinstance(value, (int, float)) else math.nan
    except OverflowError:
        return math.nan


def _weight(value: object) -> float:
    number = _number(value)
    return number if 0 < number < math.inf else 1.0


def metric_named(records: Iterable[MetricRecord], word: str) -> float:
    """Return the metric called `word`, or the first whose name contains it, of the first record.

    Records without it are passed over; NaN if there is none.

    >>> metric_named([MetricRecord({"eval_acc": 0.5, "eval_loss": 2.0})], "loss")
    2.0
    """
    for record in records:
        for name in (word, *(name for name in record if word in name.lower())):
            if not math.isnan(value := _number(record.get(name))):
                return value
    return math.nan
