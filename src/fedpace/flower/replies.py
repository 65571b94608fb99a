"""What a Flower reply says, screened."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from flwr.app import Message

from fedpace.flower.client import COMPUTING, GRAD_NORM, LOSS, SAMPLES, STEPS
from fedpace.flower.records import Layout, arrays_of, metrics_of, size_of
from fedpace.profile import FloatArray
from fedpace.rounds.backend import NOTHING, Reply
from fedpace.rounds.screening import BadReplyError, Border

log = logging.getLogger("flwr")


class Reading(NamedTuple):
    """What one client sent; NaN where it says nothing."""

    client: int
    update: FloatArray
    seconds: float
    grad_norm: float
    loss: float
    computing_seconds: float
    bytes_up: int
    samples: int | None


@dataclass
class Reader:
    """Read replies to a model; `samples_key` is where clients say how many samples they have."""

    samples_key: str = SAMPLES
    local_steps: int | None = None
    border: Border = field(default_factory=Border)
    _reported: bool = False
    _said: set[str] = field(default_factory=set)

    def read(
        self,
        client: int,
        message: Message,
        seconds: float,
        *,
        layout: Layout,
        sent: FloatArray,
        learning_rate: float | None,
    ) -> Reading:
        """Return what a client's reply says, or raise BadReplyError."""
        if message.has_error():
            raise BadReplyError(f"error {message.error.code}: {message.error.reason!s:.200}")
        metrics = metrics_of(message)
        samples = self._samples(metrics.get(self.samples_key))
        loss = self.border.loss(metrics[LOSS]) if LOSS in metrics else math.nan
        computing = self.border.loss(metrics[COMPUTING]) if COMPUTING in metrics else math.nan
        update = layout.vector(arrays_of(message)) - sent
        # Counters are no part of what is judged: they grow alike for everyone.
        trained = self.border.update(
            client, update[layout.trained], length=int(layout.trained.sum())
        )
        if not np.isfinite(update).all():
            raise BadReplyError("the update is not finite")
        norm = self._grad_norm(client, metrics, trained, learning_rate)
        return Reading(client, update, seconds, norm, loss, computing, size_of(message), samples)

    def _samples(self, value: object) -> int | None:
        if value is None:
            self.say(
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
            self._reported = True
            return self.border.grad_norm(client, metrics[GRAD_NORM])
        length = float(np.linalg.norm(update))
        steps = metrics.get(STEPS, self.local_steps)
        if steps is not None and rate is not None and rate > 0:
            self.say(
                f"replies hold no '{GRAD_NORM}': taken from the updates, their length over "
                "steps and learning rate; add the mod fedpace.flower.measured for the real one"
            )
            return self.border.grad_norm(client, length / (self.border.count(steps) * rate))
        if self._reported:
            return math.nan
        self.say(
            f"replies hold no '{GRAD_NORM}': the length of the updates stands in for it; "
            "add the mod fedpace.flower.measured, or give local_steps and a learning rate"
        )
        return self.border.grad_norm(client, length)

    def say(self, message: str) -> None:
        """Warn, once."""
        if message not in self._said:
            self._said.add(message)
            log.warning("fedpace: %s", message)


def as_reply(
    readings: Sequence[Reading], *, refused: Sequence[int], bytes_down: int, waited: float
) -> Reply:
    """Put readings together, clients ascending."""
    ordered = sorted(readings, key=lambda each: each.client)
    losses = np.array([each.loss for each in ordered])
    computing = np.array([each.computing_seconds for each in ordered])
    return Reply(
        np.array([each.client for each in ordered], dtype=np.int64),
        np.array([each.update for each in ordered]),
        np.array([each.seconds for each in ordered]),
        np.array([each.grad_norm for each in ordered]),
        losses=losses if np.isfinite(losses).all() else NOTHING,
        computing_seconds=computing if np.isfinite(computing).all() else NOTHING,
        bytes_down=np.full(len(ordered), bytes_down, dtype=np.int64),
        bytes_up=np.array([each.bytes_up for each in ordered], dtype=np.int64),
        refused=np.array(sorted(refused), dtype=np.int64),
        waited=waited,
    )
