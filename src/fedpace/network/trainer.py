"""What trains on a device, and how its answers are written down."""

from __future__ import annotations

import math
import time
from typing import Protocol

import numpy as np

from fedpace.checks import FloatArray
from fedpace.network.wire import Frame, encoded
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


def trained(trainer: Trainer, frame: Frame) -> bytes:
    """Train from the model in the frame; return the answer to send."""
    header = frame.header
    parameters = frame.floats.astype(np.float64)
    start = time.perf_counter()
    loss = trainer.loss(parameters)
    update, grad_norm = trainer.train(
        parameters, round_index=header["round"], learning_rate=header["learning_rate"]
    )
    with np.errstate(over="ignore"):  # a diverging update is refused by the server
        floats = update.astype(np.float32)
    return encoded(
        "update",
        floats,
        task=header["task"],
        computing_seconds=time.perf_counter() - start,
        grad_norm=_plain(grad_norm),
        loss=_plain(loss),
    )


def counted(trainer: Trainer, frame: Frame) -> bytes:
    """Evaluate the model in the frame; return the answer to send."""
    counts = trainer.evaluate(frame.floats.astype(np.float64))
    said = counts._asdict() | {"loss": _plain(counts.loss)}
    return encoded("counts", task=frame.header["task"], **said)


def _plain(value: float) -> float | None:
    """Return a number that JSON has, or None."""
    return float(value) if math.isfinite(value) else None
