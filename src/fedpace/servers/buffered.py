"""Asynchronous servers that give old updates less weight, as published."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedpace.checks import FloatArray
from fedpace.servers.average import Average
from fedpace.training.updates import RoundUpdates


def staleness(updates: RoundUpdates) -> FloatArray:
    """Return τ_i, the steps taken while each update was made; 0 in a round."""
    if updates.started is None:
        return np.zeros(updates.draw.clients.size)
    return (updates.version - updates.started.versions).astype(np.float64)


@dataclass(frozen=True)
class FedBuff(Average):
    """w ← w + Σ s_i Δ_i / Σ s_i over the buffer, with s_i = (1 + τ_i)^−1/2 [Nguyen22].

    Biased: slow clients are drawn less often, as they are less often free, and their updates are
    older. Divided by Σ s_i as in FedScale [Lai22], so that steps keep their length; Nguyen divides
    by the buffer, which shortens steps the more the older updates are.

    Parameters
    ----------
    oldest : int ≥ 0
        Updates that are more steps old than this are refused.
    """

    oldest: int = 100

    def weigh(self, updates: RoundUpdates) -> FloatArray:
        """Return s_i / Σ s."""
        fresh = (1 + staleness(updates)) ** -0.5
        weights: FloatArray = fresh / fresh.sum()
        return weights


@dataclass(frozen=True)
class StaleMean(Average):
    """w ← w + Σ (n_i / Σ n) (1 + τ_i)^−β Δ_i over the updates that came [Jiang22].

    Biased, as `FedBuff`; steps are the shorter the older their updates.

    Parameters
    ----------
    exponent : float ≥ 0
        β.
    """

    exponent: float = 0.5

    def weigh(self, updates: RoundUpdates) -> FloatArray:
        """Return the share of the samples of each, less for an old update."""
        p = updates.weights[updates.draw.clients]
        weights: FloatArray = p / p.sum() * (1 + staleness(updates)) ** -self.exponent
        return weights


@dataclass(frozen=True)
class FedAsync(Average):
    """w ← (1 − α_i) w + α_i w_i, with α_i = α (1 + τ_i)^−a, after every update [Xie19, Alg. 1].

    w_i is the model that the client came to, from the one that it was sent. Biased, as `FedBuff`.
    Differs from [Xie19]: local steps have no proximal term.

    Parameters
    ----------
    mixing, exponent : float in (0, 1), float ≥ 0
        α and a; Xie's are 0.6 and 0.5.
    """

    mixing: float = 0.6
    exponent: float = 0.5

    def weigh(self, updates: RoundUpdates) -> FloatArray:
        """Return α_i."""
        weights: FloatArray = self.mixing * (1 + staleness(updates)) ** -self.exponent
        return weights

    def step(self, state: None, updates: RoundUpdates) -> tuple[FloatArray, None]:
        """Mix the models in, one after the other."""
        parameters = updates.parameters
        sent = (updates.draw.weights, updates.models, updates.reply.updates)
        for weight, model, update in zip(*sent, strict=True):
            parameters = parameters + weight * (model + update - parameters)
        return parameters, state
