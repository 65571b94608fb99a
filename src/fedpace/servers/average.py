"""The weighted average of the updates, and their mean."""

from __future__ import annotations

from dataclasses import dataclass

from fedpace.checks import FloatArray
from fedpace.sampling.design import Draw
from fedpace.training.backend import Reply
from fedpace.training.server import BaseServer
from fedpace.training.updates import add_weighted


@dataclass(frozen=True)
class Average(BaseServer):
    """w ← w + Σ_i weights_i (w_i − w) [Luo22, Lemma 1]: what `BaseServer` does."""


@dataclass(frozen=True)
class Mean(BaseServer):
    """w ← w + Σ_i weights_i (w_i − w) / Σ_i weights_i: the mean of those who answered.

    As in FedAvg. Biased: clients that are drawn or answer more often count for more.
    """

    def apply(
        self, state: None, parameters: FloatArray, draw: Draw, reply: Reply
    ) -> tuple[FloatArray, None]:
        """Return the mean."""
        shares = draw.weights / draw.weights.sum()
        return add_weighted(parameters, shares, reply.updates), state
