"""Adam and Yogi on the server [Reddi21]."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

import numpy as np

from fedpace.checks import FloatArray
from fedpace.sampling.design import Draw
from fedpace.training.backend import Reply
from fedpace.training.server import BaseServer


class Moments(TypedDict):
    """Running means of the aggregate and of its square."""

    first: FloatArray
    second: FloatArray


@dataclass(frozen=True)
class Adam(BaseServer):
    """FedAdam: Adam on the server, with the aggregate as the gradient [Reddi21, Alg. 2].

    With u = Σ weights_i (w_i − w): m ← β₁ m + (1 − β₁) u, v ← β₂ v + (1 − β₂) u², and
    w ← w + η m / (√v + τ). The aggregate is unbiased; Adam's step is not linear in it, so the
    model is as unbiased as Adam itself is.

    Parameters
    ----------
    rate : float > 0
        η, the server's learning rate.
    betas : two floats in [0, 1)
        β₁ and β₂.
    floor : float > 0
        τ; √v also starts there, as in the paper.
    """

    rate: float = 0.01
    betas: tuple[float, float] = (0.9, 0.99)
    floor: float = 1e-3

    def init(self, parameters: FloatArray) -> Moments:
        """Return m = 0 and v = τ²."""
        return Moments(
            first=np.zeros_like(parameters), second=np.full_like(parameters, self.floor**2)
        )

    def apply(
        self, state: Moments, parameters: FloatArray, draw: Draw, reply: Reply
    ) -> tuple[FloatArray, Moments]:
        """Return the model after one step of Adam."""
        update = draw.weights @ reply.updates
        first = self.betas[0] * state["first"] + (1 - self.betas[0]) * update
        second = self._second(state["second"], update**2)
        step = self.rate * first / (np.sqrt(second) + self.floor)
        return parameters + step, Moments(first=first, second=second)

    def _second(self, second: FloatArray, square: FloatArray) -> FloatArray:
        return self.betas[1] * second + (1 - self.betas[1]) * square


@dataclass(frozen=True)
class Yogi(Adam):
    """FedYogi: Adam whose second moment falls no faster than it rises [Reddi21, Alg. 2].

    v ← v − (1 − β₂) u² sign(v − u²).
    """

    def _second(self, second: FloatArray, square: FloatArray) -> FloatArray:
        moved: FloatArray = second - (1 - self.betas[1]) * square * np.sign(second - square)
        return moved
