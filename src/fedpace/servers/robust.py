"""Servers that tolerate a few faulty clients, at the price of a bias."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedpace.checks import FloatArray, number
from fedpace.errors import InputError
from fedpace.sampling.design import Draw
from fedpace.training.backend import Reply
from fedpace.training.server import BaseServer
from fedpace.training.updates import RoundUpdates, add_weighted, inner_products

NEEDS_ROUNDS = "it compares the updates of a round; in asynchronous mode take clip:2"


@dataclass(frozen=True)
class Clipped(BaseServer):
    """Average updates, clipped to `factor` times the usual norm.

    Δ_i ← Δ_i min(1, factor · η_i median / ‖Δ_i‖). The median is over the latest ‖Δ_j‖/η_j of all
    clients that have answered, so this also works in asynchronous steps of a single update. Bias:
    long updates, and so clients whose data differ most from the model, count for less. If no update
    is longer, this is the average.

    >>> reply = Reply(np.arange(3), np.array([[1.0], [1.0], [-50.0]]), np.ones(3), np.ones(3))
    >>> draw = Draw(np.arange(3), np.full(3, 0.5))
    >>> Clipped(2.0).step(np.empty(0), RoundUpdates(np.ones(1), 1.0, draw, reply, np.ones(3)))[0]
    array([1.])
    """

    factor: float = 2.0

    def __post_init__(self) -> None:
        _check("clip", self.factor, low=0.0, high=np.inf)

    def init(self, parameters: FloatArray) -> FloatArray:  # noqa: ARG002
        """Return the lengths before the first round: none."""
        return np.empty(0)

    def step(self, state: FloatArray, updates: RoundUpdates) -> tuple[FloatArray, FloatArray]:
        """Return the average of the clipped updates, and the latest length of each client."""
        clients = updates.draw.clients
        found = self.residual_norms(state, updates)
        lengths = np.full(max(state.size, int(clients.max()) + 1), np.nan)
        lengths[: state.size] = state
        lengths[clients] = found
        most = self.factor * float(np.nanmedian(lengths))
        scale = np.minimum(1.0, most / np.maximum(found, np.finfo(float).tiny))
        weights = updates.step_weights * scale
        return add_weighted(updates.parameters, weights, updates.reply.updates), lengths


@dataclass(frozen=True)
class Trimmed(BaseServer):
    """Leave out the largest and the smallest values of each coordinate, a `share` of each.

    The weights of the others are scaled to the sum of all. Bias: in a coordinate with a skewed
    distribution the long tail is cut, so that clients with unusual data do not count. At least one
    value is left out on each side of three or more replies, none of fewer [Yin18].

    >>> reply = Reply(np.arange(3), np.array([[1.0], [2.0], [-50.0]]), np.ones(3), np.ones(3))
    >>> Trimmed().apply(None, np.zeros(1), Draw(np.arange(3), np.full(3, 0.5)), reply)[0]
    array([1.5])
    """

    share: float = 0.1
    needs_rounds = NEEDS_ROUNDS

    def __post_init__(self) -> None:
        _check("trimmed", self.share, low=0.0, high=0.5)

    def apply(
        self, state: None, parameters: FloatArray, draw: Draw, reply: Reply
    ) -> tuple[FloatArray, None]:
        """Return the trimmed mean, coordinate by coordinate."""
        count = draw.clients.size
        cut = min(max(int(self.share * count), 1), (count - 1) // 2)
        order = np.argsort(reply.updates, axis=0, kind="stable")
        kept = order[cut : count - cut]
        weights = draw.weights[kept]
        values = np.take_along_axis(reply.updates, kept, axis=0)
        mean = (weights * values).sum(axis=0) / weights.sum(axis=0)
        return parameters + draw.weights.sum() * mean, state


@dataclass(frozen=True)
class Krum(BaseServer):
    """Leave out the `liars` updates that are farthest from their neighbours: multi-Krum.

    Each update has the score Σ ‖Δ_i − Δ_j‖² over its m − liars − 2 nearest of m; those with the
    largest scores are left out, and the weights of the others are scaled to the sum of all
    [Blanchard17]. Bias: honest clients with unusual data are left out as well. With fewer than
    liars + 3 replies none is.

    >>> updates = np.array([[1.0], [1.1], [0.9], [-50.0]])
    >>> reply = Reply(np.arange(4), updates, np.ones(4), np.ones(4))
    >>> Krum(1).apply(None, np.zeros(1), Draw(np.arange(4), np.full(4, 0.25)), reply)[0]
    array([1.])
    """

    liars: float = 1
    needs_rounds = NEEDS_ROUNDS

    def __post_init__(self) -> None:
        _check("krum", self.liars, low=0.0, high=np.inf)
        if self.liars != int(self.liars):
            raise InputError(f"server must be krum:COUNT, got krum:{self.liars:g}; write krum:1")

    def apply(
        self, state: None, parameters: FloatArray, draw: Draw, reply: Reply
    ) -> tuple[FloatArray, None]:
        """Return the average of the updates that are kept."""
        updates, count = reply.updates, draw.clients.size
        near = count - int(self.liars) - 2
        if near < 1:
            return add_weighted(parameters, draw.weights, updates), state
        products = inner_products(updates)
        squares = np.diag(products)
        distances = np.maximum(squares[:, None] + squares - 2 * products, 0.0)
        scores = np.sort(distances, axis=1)[:, 1 : near + 1].sum(axis=1)  # without itself
        kept = np.sort(np.argsort(scores, kind="stable")[: count - int(self.liars)])
        weights = draw.weights[kept]
        scale = draw.weights.sum() / weights.sum()
        return add_weighted(parameters, scale * weights, updates[kept]), state


def is_robust(server: BaseServer) -> bool:
    """Tell whether a server is one of these."""
    return isinstance(server, (Clipped, Trimmed, Krum))


def _check(name: str, value: float, *, low: float, high: float) -> None:
    found = number(name, value, f"write {name}")
    if not low < found < high:
        raise InputError(
            f"server must be {name}:NUMBER above {low:g} and below {high:g}, got {found:g}; "
            f"write {name}"
        )
