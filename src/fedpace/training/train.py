"""Train until the stopping rule ends the run."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from fedpace.errors import InputError, nearest
from fedpace.registry import MODES, SYNCHRONOUS
from fedpace.training.asynchronous import AsynchronousTraining
from fedpace.training.backend import BaseBackend
from fedpace.training.sampler import BaseSampler
from fedpace.training.synchronous import SynchronousTraining
from fedpace.training.training import Outcome, Training, checkpoint_errors


def train(
    backend: BaseBackend, sampler: BaseSampler, *, mode: str = SYNCHRONOUS, **settings: Any
) -> Outcome:
    """Train until `stop` ends the run.

    `mode` is "synchronous" or "asynchronous"; the other arguments are those of
    `SynchronousTraining` or `AsynchronousTraining`. A sampler made for the mode "auto" begins with
    rounds and may continue asynchronously.
    """
    if mode not in MODES:
        got = f"'{mode}'; {nearest(str(mode), MODES)}"
        raise InputError(f"mode must be synchronous or asynchronous, got {got}")
    kind = SynchronousTraining if mode == SYNCHRONOUS else AsynchronousTraining
    training: Training = kind(backend, sampler, **settings)
    unproven = training.resumed
    training = training.hand_over()
    try:
        while not training.ended:
            # A crafted checkpoint may hold counts of -1, by which the first step would divide.
            divide: Literal["raise", "warn"] = "raise" if unproven else "warn"
            errors = np.errstate(over="ignore", invalid="ignore", divide=divide)
            with errors, checkpoint_errors(unproven):
                training.advance()
                unproven = False
            training = training.hand_over()
        training.finish()
    finally:
        training.flush()
    return training.outcome()
