"""Read, screen and average the replies of clients."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median_low
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Message, MetricRecord
from numpy.typing import NDArray

from fedpace.backends.remote.replies import Accepted, Update
from fedpace.backends.remote.screening import (
    FEWEST_OTHERS,
    WIDEST_LOSS,
    BadReplyError,
    Border,
    Claims,
)
from fedpace.checks import FloatArray
from fedpace.flower.client import COMPUTING, GRAD_NORM, LOSS, SAMPLES, STEPS
from fedpace.flower.messages import (
    Arrival,
    Layout,
    arrays_of,
    drop_arrays,
    metrics_of,
    size_of,
)
from fedpace.flower.nodes import NodeMap

log = logging.getLogger("flwr")

# What Flower's secure aggregation looks for in a message, and does not find in ours.
SECURE = "secaggplus_configs"
NO_SECURE = (
    "its ClientApp has secaggplus_mod, which hides single updates: it needs the four messages of "
    "Flower's SecAggPlusWorkflow in a round, clients that weight themselves, and all of them at "
    "once, while here each update is weighted by how it was drawn, screened, and learned from; "
    "remove the mod, or use fedpace.flower.privacy_mod"
)
# Letters of an error that are logged.
LONGEST = 300
# The largest value of a metric in percent.
PERCENT = 100.0


class Given(NamedTuple):
    """What a client received: the model as sent, the learning rate if known, the bytes.

    `local_steps` are those it was asked for, if any.
    """

    sent: Sequence[NDArray[Any]]
    learning_rate: float | None
    bytes_down: int
    local_steps: int | None = None


class _Opened(NamedTuple):
    """A reply whose arrays and metrics could be read."""

    arrival: Arrival
    given: Given
    metrics: dict[str, Any]
    bytes_up: int
    update: Update
    said: Claims


@dataclass
class ReplyReader:
    """Read replies to a model; `samples_key` is the metric with a client's number of samples."""

    nodes: NodeMap
    layout: Layout
    samples_key: str = SAMPLES
    local_steps: int | None = None
    border: Border = field(default_factory=Border)
    latest_failure: str = ""
    _reported: bool = False
    _logged: set[str] = field(default_factory=set)

    def read(
        self, arrivals: Iterable[tuple[Arrival, Given]]
    ) -> tuple[list[Accepted], list[Message], list[int]]:
        """Return what can be used, the messages it came in, and the clients that are refused.

        All are opened before any is judged: a reply is judged by those of the other clients.
        """
        accepted: list[Accepted] = []
        used: list[Message] = []
        refused: list[int] = []
        opened: list[_Opened] = []
        every = sorted(arrivals, key=lambda each: self.nodes.client(each[0].node))
        for arrival, given in every:
            with self._skip_invalid(arrival, refused):
                opened.append(self._open(arrival, given))
        self.border.meet(each.said for each in opened)
        for each in opened:
            with self._skip_invalid(each.arrival, refused):
                accepted.append(self._accept(each))
                used.append(each.arrival.message)
        return accepted, used, refused

    @contextmanager
    def _skip_invalid(self, arrival: Arrival, refused: list[int]) -> Iterator[None]:
        """Treat invalid replies as missing: no client can end a run."""
        client = self.nodes.client(arrival.node)
        try:
            yield
        except Exception as error:
            self.border.forget(client)
            if not arrival.message.has_error():
                refused.append(client)
            name, known = self.nodes.roster.names[client], isinstance(error, BadReplyError)
            why = str(error) if known else f"{type(error).__name__}: {error!s:.200}"
            self.latest_failure = why
            # Quoted, so that a client cannot forge lines of the log.
            log.warning("fedpace: client %d (%s) is left out: %r", client, name, why)

    def _open(self, arrival: Arrival, given: Given) -> _Opened:
        message, layout = arrival.message, self.layout
        if message.has_error():
            reason = message.error.reason
            if SECURE in str(reason):
                raise BadReplyError(NO_SECURE)
            raise BadReplyError(f"error {message.error.code}: {last_line(reason)}")
        metrics = metrics_of(message)
        update = layout.difference(layout.opened(arrays_of(message)), given.sent)
        bytes_up = size_of(message)
        drop_arrays(message)
        said = Claims(
            self.nodes.client(arrival.node),
            update.length,
            metrics.get(GRAD_NORM),
            metrics.get(LOSS),
            arrival.seconds,
        )
        return _Opened(arrival, given, metrics, bytes_up, update, said)

    def _accept(self, opened: _Opened) -> Accepted:
        arrival, given, metrics, bytes_up, update, said = opened
        client = said.client
        samples = self._samples(metrics.get(self.samples_key))
        loss = self.border.loss(client, metrics[LOSS]) if LOSS in metrics else math.nan
        computing = self.border.seconds(metrics[COMPUTING]) if COMPUTING in metrics else math.nan
        values = update.values.times(self.border.update(client, update.length))
        norm = self._grad_norm(client, metrics, update.trained, given.learning_rate)
        seconds = self.border.took(client, arrival.seconds)
        if samples is not None:
            self.nodes.roster.learn(client, samples)
        steps = self._confirm_steps(given.local_steps, metrics.get(STEPS))
        sizes = (given.bytes_down, bytes_up)
        return Accepted(client, values, seconds, norm, loss, computing, *sizes, steps)

    def _confirm_steps(self, asked: int | None, said: object) -> int:
        """Return the local steps if the client took as many as it was asked for, else 0."""
        if asked is None or asked == said:
            return asked or 0
        self._log_once(
            f"replies hold no '{STEPS}' equal to the {asked} in the config: the number of local "
            f"steps stays as it is; take as many, and add '{STEPS}' to the metrics",
            logging.WARNING,
        )
        return 0

    def computing(self, message: Message) -> float:
        """Return the computing seconds that a client reports; NaN if there is no valid number."""
        try:
            return float(self.border.seconds(metrics_of(message)[COMPUTING]))
        except (BadReplyError, KeyError, ValueError):  # the last: an error has no content
            return math.nan

    def _samples(self, value: object) -> int | None:
        if value is None:
            self._log_once(
                f"replies hold no '{self.samples_key}': all clients count alike; "
                "add it to the metrics that the train function returns",
                logging.WARNING,
            )
            return None
        integral = isinstance(value, float) and value.is_integer()
        return self.border.count(int(value) if integral else value)  # type: ignore[call-overload]

    def _grad_norm(
        self, client: int, metrics: dict[str, object], length: float, rate: float | None
    ) -> float:
        """Return G_i as reported; else ‖w_i − w‖ / (E η), else ‖w_i − w‖, which is only relative.

        Norms of different kinds are not mixed: once a client has reported one, updates with
        unknown steps or rate yield NaN.
        """
        if GRAD_NORM in metrics:
            norm = self.border.grad_norm(client, metrics[GRAD_NORM], length)
            self._reported = True
            return norm
        steps = metrics.get(STEPS, self.local_steps)
        if steps is not None and rate is not None and rate > 0:
            self._log_once(
                f"replies hold no '{GRAD_NORM}': taken from the updates, their length over "
                "steps and learning rate; add fedpace.flower.measure_mod for the measured one"
            )
            return self.border.grad_norm(client, length / (self.border.count(steps) * rate))
        if self._reported:
            return math.nan
        self._log_once(
            f"replies hold no '{GRAD_NORM}': the length of the updates stands in for it; "
            "add fedpace.flower.measure_mod, or give local_steps and a learning rate"
        )
        return self.border.grad_norm(client, length)

    def _log_once(self, message: str, level: int = logging.INFO) -> None:
        if message not in self._logged:
            self._logged.add(message)
            log.log(level, "fedpace: %s", message)


def drop_failures(replies: Iterable[Message]) -> list[Message]:
    """Return the evaluations that succeeded, and log how many failed."""
    replies = list(replies)
    failed = [reply.error for reply in replies if reply.has_error()]
    if failed:
        log.warning(
            "fedpace: %d of %d evaluations failed, the first with error %d: %r",
            len(failed), len(replies), failed[0].code, last_line(failed[0].reason),
        )  # fmt: skip
    return [reply for reply in replies if not reply.has_error()]


def last_line(reason: object) -> str:
    r"""Return the last line of an error: the client's own message, without its wrapping.

    >>> last_line("<class 'RayTaskError'>:<'ray::run() Traceback\\nValueError: no data'>")
    'ValueError: no data'
    """
    plain = re.sub(r"\x1b\[[0-9;]*m", "", str(reason)).replace("\\n", "\n")
    lines = [line.strip() for line in plain.splitlines() if line.strip(" \t\"'<>)")]
    return lines[-1].rstrip("\"'<>)")[-LONGEST:] if lines else "no reason given"


def mean_metrics(
    replies: Iterable[Message], weighted_by: str, *, most: float | None = None, judged: bool = False
) -> MetricRecord | None:
    """Return the mean of every metric that all replies have, weighted as in Flower's FedAvg.

    Lists are averaged entry by entry. A reply without a weight counts as one sample, and one with
    0 samples not at all unless all have 0; None without replies. With `most`, no weight exceeds
    this many times the median. With `judged`, no single reply moves a mean far: see `_judge`.
    """
    metrics = [metrics_of(reply) for reply in replies]
    if not metrics:
        return None
    weights = np.array([_weight(each.get(weighted_by)) for each in metrics])
    if not weights.any():
        weights = np.ones(weights.size)
    if most is not None:
        weights = np.minimum(weights, most * median_low(weights[weights > 0].tolist()))
    mean = MetricRecord()
    for name in metrics[0]:
        values: list[Any] = [each.get(name) for each in metrics]
        if name == weighted_by:
            continue
        if all(isinstance(value, (int, float)) for value in values):
            mean[name] = _mean(name, values, weights, judged=judged)
        elif (
            all(isinstance(value, list) for value in values)
            and len({len(value) for value in values}) == 1
        ):
            entries = zip(*values, strict=True)
            mean[name] = [_mean(name, entry, weights, judged=judged) for entry in entries]
    return mean


def _mean(name: str, values: Sequence[object], weights: FloatArray, *, judged: bool) -> float:
    numbers = np.array([_number(value) for value in values])
    fine = weights > 0  # what has no weight may be NaN
    numbers, weights = numbers[fine], weights[fine]
    if judged:
        numbers, weights = _judge(name, numbers, weights)
    return float(numbers @ (weights / weights.sum()))


def _judge(name: str, values: FloatArray, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return a metric of all clients, bounded so that no single one decides the mean.

    Values that are not finite are left out, unless they are the majority: then the model has
    diverged. A loss counts between a tenth and ten times the median of the others, if that is
    positive. Any other metric stays within [0, 1], or [0, 100], if all others are, and within ten
    times the largest of them otherwise. Two clients alone are not bounded.
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
        elif others.min() >= 0 and largest <= PERCENT:
            low, high = 0.0, 1.0 if largest <= 1 else PERCENT
        bounded[i] = min(max(value, low), high)
    return bounded, weights


def _number(value: object) -> float:
    """Return a metric as a float; NaN for what is none, or an integer beyond float64."""
    try:
        return float(value) if isinstance(value, (int, float)) else math.nan
    except OverflowError:
        return math.nan


def _weight(value: object) -> float:
    number = _number(value)
    return number if 0 <= number < math.inf else 1.0


def metric_named(records: Iterable[MetricRecord], word: str) -> float:
    """Return the metric called `word`, or the first whose name contains it, of the first record.

    Records without it are skipped; NaN if none has it.

    >>> metric_named([MetricRecord({"eval_acc": 0.5, "eval_loss": 2.0})], "loss")
    2.0
    """
    for record in records:
        for name in (word, *(name for name in record if word in name.lower())):
            if not math.isnan(value := _number(record.get(name))):
                return value
    return math.nan
