"""Servers that step along the average: average, mean, Adam, Yogi [Reddi21] and FedExP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

import numpy as np

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

    scales = False

    def apply(
        self, state: None, parameters: FloatArray, draw: Draw, reply: Reply
    ) -> tuple[FloatArray, None]:
        """Return the mean."""
        shares = draw.weights / draw.weights.sum()
        return add_weighted(parameters, shares, reply.updates), state


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
    scales = False

    def init(self, parameters: FloatArray) -> Moments:
        """Return m = 0 and v = τ²."""
        return Moments(
            first=np.zeros_like(parameters), second=np.full_like(parameters, self.floor**2)
        )

    def apply(
        self, state: Moments, parameters: FloatArray, draw: Draw, reply: Reply
    ) -> tuple[FloatArray, Moments]:
        """Return the model after one step of Adam."""
        update = add_weighted(None, draw.weights, reply.updates)
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


@dataclass(frozen=True)
class FedExp(BaseServer):
    """FedExP: step further, the more the updates disagree [Jhunjhunwala23, Alg. 1].

    w ← w + η_g Σ weights_i Δ_i, with η_g = max(1, Σ π_i ‖Δ_i‖² / (2 (‖Σ π_i Δ_i‖² + M ε))) and
    π_i the weights of the M updates over their sum.

    Source: ICLR 2023 (arXiv 2301.09604), and the authors' code. Differs from it: the latest model
    is evaluated, not the mean of the last two.

    Parameters
    ----------
    epsilon : float > 0
        ε.
    """

    epsilon: float = 1e-3

    def apply(
        self, state: None, parameters: FloatArray, draw: Draw, reply: Reply
    ) -> tuple[FloatArray, None]:
        """Return the model after the extrapolated step."""
        shares, updates = draw.weights / draw.weights.sum(), reply.updates
        mean = shares @ updates
        squares = shares @ np.vecdot(updates, updates)
        length = 2 * (mean @ mean + shares.size * self.epsilon)
        return parameters + max(1.0, squares / length) * (draw.weights @ updates), state
