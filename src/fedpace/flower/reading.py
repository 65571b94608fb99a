"""What Flower's replies say, screened."""

import logging
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from flwr.app import Message

from fedpace.checks import FloatArray
from fedpace.flower.client import COMPUTING, GRAD_NORM, LOSS, SAMPLES, STEPS
from fedpace.flower.exchange import Arrival
from fedpace.flower.nodes import Nodes
from fedpace.flower.records import Layout, arrays_of, metrics_of, size_of
from fedpace.remote.replies import Accepted
from fedpace.remote.screening import BadReplyError, Border

log = logging.getLogger("flwr")


class Given(NamedTuple):
    """What a client got: the model as it was sent, the learning rate if known, the bytes."""

    sent: FloatArray
    learning_rate: float | None
    bytes_down: int


@dataclass
class Reader:
    """Read replies to a model; `samples_key` is where clients say how many samples they have."""

    nodes: Nodes
    layout: Layout
    samples_key: str = SAMPLES
    local_steps: int | None = None
    border: Border = field(default_factory=Border)
    _reported: bool = False
    _said: set[str] = field(default_factory=set)

    def read_all(
        self, arrivals: Iterable[tuple[Arrival, Given]]
    ) -> tuple[list[Accepted], list[Message], list[int]]:
        """Return what can be used, the messages it was in, and whose reply is refused."""
        accepted, used, refused = list[Accepted](), list[Message](), list[int]()
        for arrival, given in arrivals:
            client = self.nodes.client(arrival.node)
            try:
                accepted.append(self._accepted(client, arrival, given))
                used.append(arrival.message)
            except BadReplyError as error:
                if not arrival.message.has_error():
                    refused.append(client)
                name = self.nodes.roster.names[client]
                log.warning("fedpace: client %d (%s) is left out: %s", client, name, error)
        return accepted, used, refused

    def _accepted(self, client: int, arrival: Arrival, given: Given) -> Accepted:
        """Return what a client's reply says, and learn its sample count, or raise BadReplyError."""
        message, layout = arrival.message, self.layout
        if message.has_error():
            raise BadReplyError(f"error {message.error.code}: {message.error.reason!s:.200}")
        metrics = metrics_of(message)
        samples = self._samples(metrics.get(self.samples_key))
        loss = self.border.loss(client, metrics[LOSS]) if LOSS in metrics else math.nan
        computing = self.border.seconds(metrics[COMPUTING]) if COMPUTING in metrics else math.nan
        update = layout.vector(arrays_of(message)) - given.sent
        # Counters are no part of what is judged: they grow alike for everyone.
        self.border.update(client, update[layout.floats], length=int(layout.floats.sum()))
        if not np.isfinite(update).all():
            raise BadReplyError("the update is not finite")
        norm = self._grad_norm(client, metrics, update[layout.trained], given.learning_rate)
        if samples is not None:
            self.nodes.roster.learn(client, samples)
        sizes = given.bytes_down, size_of(message)
        return Accepted(client, update, arrival.seconds, norm, loss, computing, *sizes)

    def _samples(self, value: object) -> int | None:
        if value is None:
            self._say(
                f"replies hold no '{self.samples_key}': all clients count alike; "
                "add it to the metrics that the train function returns"
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
        if GRAD_NORM in metrics:
            norm = self.border.grad_norm(client, metrics[GRAD_NORM])
            self._reported = True
            return norm
        length = float(np.linalg.norm(update))
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

    def _say(self, message: str) -> None:
        """Warn, once."""
        if message not in self._said:
            self._said.add(message)
            log.warning("fedpace: %s", message)


def without_failures(replies: Iterable[Message]) -> list[Message]:
    """Return the evaluations that worked, and log how many did not."""
    replies = list(replies)
    failed = [reply.error for reply in replies if reply.has_error()]
    if failed:
        log.warning(
            "fedpace: %d of %d evaluations failed, the first with error %d: %.200s",
            len(failed), len(replies), failed[0].code, failed[0].reason,
        )  # fmt: skip
    return [reply for reply in replies if not reply.has_error()]
