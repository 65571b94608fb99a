"""What is trained, and how long it may take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord

CentralEvaluation: TypeAlias = Callable[[int, ArrayRecord], MetricRecord | None]


@dataclass
class Job:
    """Hold the arguments of a strategy's `start`.

    Parameters
    ----------
    initial : ArrayRecord
        The model to start from.
    deadline : float, seconds
        How long replies are waited for.
    rounds : int
        How many.
    train_config, evaluate_config : ConfigRecord
        What clients are told.
    evaluate_fn : function, optional
        The server's own evaluation.
    evaluate_every : int ≥ 0
        Clients evaluate in every so many rounds and in the last; 0 for never.
    scheduled : bool
        Whether the server sets the learning rate.
    target_loss : float, optional
        Where training or a pilot ends. If the clients' own losses promise it, they evaluate at
        once.
    """

    initial: ArrayRecord
    deadline: float
    rounds: int
    train_config: ConfigRecord
    evaluate_config: ConfigRecord = field(default_factory=ConfigRecord)
    evaluate_fn: CentralEvaluation | None = None
    evaluate_every: int = 0
    scheduled: bool = False
    target_loss: float | None = None

    def evaluates_after(self, index: int) -> bool:
        """Tell whether clients evaluate after a round; Flower lets them not before the first."""
        every = self.evaluate_every
        return every > 0 and index > 0 and (index % every == 0 or index == self.rounds)

    def promises(self, estimate: float) -> bool:
        """Tell whether an estimate of the loss would end the run, and so is to be checked."""
        return self.target_loss is not None and estimate <= self.target_loss
