"""Replies that were accepted, put together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from fedpace.checks import FloatArray
from fedpace.rounds.backend import NOTHING, Reply


class Accepted(NamedTuple):
    """An update that counts; NaN where the client said nothing.

    `seconds` run from sending to arrival, `computing_seconds` are those of them spent on training.
    """

    client: int
    update: FloatArray
    seconds: float
    grad_norm: float
    loss: float
    computing_seconds: float
    bytes_down: int
    bytes_up: int


def as_reply(
    accepted: Iterable[Accepted],
    *,
    length: int,
    refused: Sequence[int] = (),
    waited: float | None = None,
    missing: Sequence[int] = (),
) -> Reply:
    """Put accepted updates of `length` numbers together, clients ascending.

    Losses and computing seconds count only if all have them.
    """
    ordered = sorted(accepted, key=lambda each: each.client)
    losses = np.array([each.loss for each in ordered], dtype=np.float64)
    computing = np.array([each.computing_seconds for each in ordered], dtype=np.float64)
    return Reply(
        np.array([each.client for each in ordered], dtype=np.int64),
        np.array([each.update for each in ordered]).reshape(len(ordered), length),
        np.array([each.seconds for each in ordered], dtype=np.float64),
        np.array([each.grad_norm for each in ordered], dtype=np.float64),
        losses=losses if np.isfinite(losses).all() else NOTHING,
        computing_seconds=computing if np.isfinite(computing).all() else NOTHING,
        bytes_down=np.array([each.bytes_down for each in ordered], dtype=np.int64),
        bytes_up=np.array([each.bytes_up for each in ordered], dtype=np.int64),
        refused=np.array(sorted(refused), dtype=np.int64),
        waited=waited,
        missing=np.array(sorted(missing), dtype=np.int64),
    )
