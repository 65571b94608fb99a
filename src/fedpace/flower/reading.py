"""What Flower's replies say, screened."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Message

from fedpace.checks import FloatArray
from fedpace.flower.client import COMPUTING, GRAD_NORM, LOSS, SAMPLES, STEPS
from fedpace.flower.exchange import Arrival
from fedpace.flower.nodes import Nodes
from fedpace.flower.records import Layout, arrays_of, metrics_of, size_of
from fedpace.remote.replies import Accepted
from fedpace.remote.screening import BadReplyError, Border, Said

log = logging.getLogger("flwr")

# What Flower's secure aggregation looks for in a message, and misses in ours.
SECURE = "secaggplus_configs"
NO_SECURE = (
    "its ClientApp has secaggplus_mod, which hides single updates: it needs the four messages of "
    "Flower's SecAggPlusWorkflow in a round, clients that weight themselves, and all of them at "
    "once, while here each update is weighted by how it was drawn, screened, and learned from; "
    "take the mod out, or take fedpace.flower.private"
)
# Letters of an error that are shown.
LONGEST = 300


class Given(NamedTuple):
    """What a client got: the model as it was sent, the learning rate if known, the bytes."""

    sent: FloatArray
    learning_rate: float | None
    bytes_down: int


class _Opened(NamedTuple):
    """A reply whose arrays and metrics could be read."""

    arrival: Arrival
    given: Given
    metrics: dict[str, Any]
    update: FloatArray
    said: Said


@dataclass
class Reader:
    """Read replies to a model; `samples_key` is where clients say how many samples they have."""

    nodes: Nodes
    layout: Layout
    samples_key: str = SAMPLES
    local_steps: int | None = None
    border: Border = field(default_factory=Border)
    latest_failure: str = ""
    _reported: bool = False
    _said: set[str] = field(default_factory=set)

    def read_all(
        self, arrivals: Iterable[tuple[Arrival, Given]]
    ) -> tuple[list[Accepted], list[Message], list[int]]:
        """Return what can be used, the messages it was in, and whose reply is refused.

        All are opened before any is judged: what is usual may be known from the others only.
        """
        accepted: list[Accepted] = []
        used: list[Message] = []
        refused: list[int] = []
        opened: list[_Opened] = []
        for arrival, given in arrivals:
            with self._left_out(arrival, refused):
                opened.append(self._open(arrival, given))
        self.border.meet(each.said for each in opened)
        for each in opened:
            with self._left_out(each.arrival, refused):
                accepted.append(self._accepted(each))
                used.append(each.arrival.message)
        return accepted, used, refused

    @contextmanager
    def _left_out(self, arrival: Arrival, refused: list[int]) -> Iterator[None]:
        """Take whatever is wrong with a reply for a missing one: a client shall not end a run."""
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
            # Quoted: a client that says lines of its own shall not forge a log.
            log.warning("fedpace: client %d (%s) is left out: %r", client, name, why)

    def _open(self, arrival: Arrival, given: Given) -> _Opened:
        """Return what a reply holds, or raise."""
        message, layout = arrival.message, self.layout
        if message.has_error():
            reason = message.error.reason
            if SECURE in str(reason):
                raise BadReplyError(NO_SECURE)
            raise BadReplyError(f"error {message.error.code}: {tail(reason)}")
        metrics = metrics_of(message)
        update = layout.vector(arrays_of(message)) - given.sent
        said = Said(
            self.nodes.client(arrival.node),
            # Counters are no part of what is judged: they grow alike for everyone.
            update[layout.floats],
            metrics.get(GRAD_NORM),
            metrics.get(LOSS),
            arrival.seconds,
        )
        return _Opened(arrival, given, metrics, update, said)

    def _accepted(self, opened: _Opened) -> Accepted:
        """Return what a client's reply says, or raise."""
        arrival, given, metrics, update, said = opened
        client, layout = said.client, self.layout
        samples = self._samples(metrics.get(self.samples_key))
        loss = self.border.loss(client, metrics[LOSS]) if LOSS in metrics else math.nan
        computing = self.border.seconds(metrics[COMPUTING]) if COMPUTING in metrics else math.nan
        self.border.update(client, update[layout.floats], length=int(layout.floats.sum()))
        if not np.isfinite(update).all():
            raise BadReplyError("the update is not finite")
        norm = self._grad_norm(client, metrics, update[layout.trained], given.learning_rate)
        sizes = (given.bytes_down, size_of(arrival.message))
        seconds = self.border.took(client, arrival.seconds)
        if samples is not None:
            self.nodes.roster.learn(client, samples)
        return Accepted(client, update, seconds, norm, loss, computing, *sizes)

    def computing(self, message: Message) -> float:
        """Return the seconds that a client says it computed; NaN if it says nothing sensible."""
        try:
            return float(self.border.seconds(metrics_of(message)[COMPUTING]))
        except (BadReplyError, KeyError, ValueError):  # the last: an error has no content
            return math.nan

    def _samples(self, value: object) -> int | None:
        if value is None:
            self._say(
                f"replies hold no '{self.samples_key}': all clients count alike; "
                "add it to the metrics that the train function returns",
                logging.WARNING,
            )
            return None
        whole = isinstance(value, float) and value.is_integer()
        return self.border.count(int(value) if whole else value)  # type: ignore[call-overload]

    def _grad_norm(
        self, client: int, metrics: dict[str, object], update: FloatArray, rate: float | None
    ) -> float:
        """Return G_i as reported; else ‖w_i − w‖ / (E η), else ‖w_i − w‖, which is only relative.

        Norms of different kinds are not mixed: once a client has reported one, an update whose
        steps and rate are not known tells nothing.
        """
        length = float(np.linalg.norm(update))
        if GRAD_NORM in metrics:
            norm = self.border.grad_norm(client, metrics[GRAD_NORM], length)
            self._reported = True
            return norm
        steps = metrics.get(STEPS, self.local_steps)
        if steps is not None and rate is not None and rate > 0:
            self._say(
                f"replies hold no '{GRAD_NORM}': taken from the updates, their length over "
                "steps and learning rate; add the mod fedpace.flower.measured for the real one"
            )
            return self.border.grad_norm(client, length / (self.border.count(steps) * rate))
        if self._reported:
            return math.nan
        self._say(
            f"replies hold no '{GRAD_NORM}': the length of the updates stands in for it; "
            "add the mod fedpace.flower.measured, or give local_steps and a learning rate"
        )
        return self.border.grad_norm(client, length)

    def _say(self, message: str, level: int = logging.INFO) -> None:
        """Log it, once: a stand-in for a norm is no reason to worry, a missing count is."""
        if message not in self._said:
            self._said.add(message)
            log.log(level, "fedpace: %s", message)


def without_failures(replies: Iterable[Message]) -> list[Message]:
    """Return the evaluations that worked, and log how many did not."""
    replies = list(replies)
    failed = [reply.error for reply in replies if reply.has_error()]
    if failed:
        log.warning(
            "fedpace: %d of %d evaluations failed, the first with error %d: %r",
            len(failed), len(replies), failed[0].code, tail(failed[0].reason),
        )  # fmt: skip
    return [reply for reply in replies if not reply.has_error()]


def tail(reason: object) -> str:
    r"""Return the last line of an error: what the client's own code said, not what wrapped it.

    >>> tail("<class 'RayTaskError'>:<'ray::run() Traceback\\nValueError: no data'>")
    'ValueError: no data'
    """
    plain = re.sub(r"\x1b\[[0-9;]*m", "", str(reason)).replace("\\n", "\n")
    lines = [line.strip() for line in plain.splitlines() if line.strip(" \t\"'<>)")]
    return lines[-1].rstrip("\"'<>)")[-LONGEST:] if lines else "no reason given"
