"""What trains on a device, and how its answers are written down."""

from __future__ import annotations

import math
import time
from typing import Protocol

import numpy as np

from fedpace.checks import FloatArray
from fedpace.network.devices_pb2 import Said
from fedpace.network.wire import Received, written
from fedpace.rounds.local import Counted


class Trainer(Protocol):
    """What trains on a device; `fedpace.rounds.local.LocalTrainer` is one."""

    @property
    def samples(self) -> int:
        """n_i."""

    def train(
        self, parameters: FloatArray, *, round_index: int, learning_rate: float
    ) -> tuple[FloatArray, float]:
        """Return the update w_i − w and the gradient norm of one round."""

    def loss(self, parameters: FloatArray) -> float:
        """Return F_i(w)."""

    def evaluate(self, parameters: FloatArray) -> Counted:
        """Return the mean training loss, and how many of those held out are right."""


def trained(trainer: Trainer, asked: Received) -> list[bytes]:
    """Train from the model that was sent; return the messages of the answer."""
    parameters = asked.floats.astype(np.float64)
    start = time.perf_counter()
    loss = trainer.loss(parameters)
    update, grad_norm = trainer.train(
        parameters, round_index=asked.fields.round, learning_rate=asked.fields.learning_rate
    )
    with np.errstate(over="ignore"):  # a diverging update is refused by the server
        floats = update.astype(np.float32)
    said = {
        "computing_seconds": time.perf_counter() - start,
        "grad_norm": float(grad_norm),
        "loss": _finite(loss),
    }
    return written(Said(task=asked.task, update=said), floats)


def counted(trainer: Trainer, asked: Received) -> list[bytes]:
    """Evaluate the model that was sent; return the messages of the answer."""
    counts = trainer.evaluate(asked.floats.astype(np.float64))
    said = counts._asdict() | {"loss": _finite(counts.loss)}
    return written(Said(task=asked.task, counts=said))


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
