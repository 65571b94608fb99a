"""Designs that draw by a rule instead of a vector of probabilities, and what rivals share."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from fedpace.checks import FloatArray, IntArray
from fedpace.profile import Profile
from fedpace.sampling.design import BaseDesign, Draw
from fedpace.training.backend import Reply
from fedpace.training.history import Row
from fedpace.training.sampler import SamplerContext
from fedpace.training.updates import RoundUpdates

# Draws among the clients present, with a generator.
Rule = Callable[[IntArray, "np.random.Generator"], Draw]


@dataclass(frozen=True, eq=False)
class RuleDesign(BaseDesign):
    """Draw by a rule among the clients present.

    The expected round time and the variance term are unknown.

    Parameters
    ----------
    n : int
        The number of clients.
    rule : function of clients and a generator
        Returns the draw.
    clients : array of int, optional
        The clients present; by default all.
    """

    n: int
    rule: Rule
    clients: IntArray | None = None

    def draw(self, rng: np.random.Generator) -> Draw:
        """Draw by the rule."""
        return self.rule(np.arange(self.n) if self.clients is None else self.clients, rng)

    def expected_round_time(self, times: ArrayLike) -> float:  # noqa: ARG002
        """Return NaN: unknown for a rule."""
        return math.nan

    def variance_term(self, profile: Profile) -> float:  # noqa: ARG002
        """Return NaN: the convergence bound is for unbiased draws from probabilities."""
        return math.nan

    def among(self, present: ArrayLike) -> RuleDesign:
        """Return the same rule among the clients present."""
        there = np.asarray(present)[: self.n]
        if self.clients is not None:
            there = there & np.isin(np.arange(self.n), self.clients)
        return replace(self, clients=np.flatnonzero(there))

    @property
    def largest_weight(self) -> float:
        """1: the weights of a draw sum to 1."""
        return 1.0


def equal_draw(clients: IntArray, take: int | None = None) -> Draw:
    """Return a draw of these clients with equal weights.

    >>> equal_draw(np.array([7, 2])).clients, equal_draw(np.array([7, 2])).weights
    (array([2, 7]), array([0.5, 0.5]))
    """
    count = clients.size if take is None else min(take, clients.size)
    return Draw(np.sort(clients), np.full(clients.size, 1 / count), take=take)


def proportional_draw(clients: IntArray, weights: FloatArray, tier: int = -1) -> Draw:
    """Return a draw of these clients, weighted by their shares of the data of all of them."""
    clients = np.sort(clients)
    return Draw(clients, weights[clients] / weights[clients].sum(), tier)


def sample_uniformly(clients: IntArray, k: int, rng: np.random.Generator) -> IntArray:
    """Return k distinct clients, every set with the same probability; all if they are fewer."""
    return clients if k >= clients.size else rng.choice(clients, k, replace=False)


def sample_proportionally(
    clients: IntArray, shares: FloatArray, k: int, rng: np.random.Generator
) -> IntArray:
    """Return k distinct clients, drawn one after another in proportion to their shares.

    Clients with a share of 0 are drawn only if the others are fewer than k.
    """
    positive = shares > 0
    first, rest = clients[positive], clients[~positive]
    if k < first.size:
        p = shares[positive] / shares[positive].sum()
        return rng.choice(first, k, replace=False, p=p)
    return np.append(first, sample_uniformly(rest, k - first.size, rng))


def extend(values: FloatArray, n: int, fill: float) -> FloatArray:
    """Return at least n values; clients that joined later get `fill`."""
    more = n - values.size
    return np.append(values, np.full(more, fill)) if more > 0 else values


def count_clients(row: Row) -> int:
    """Return the number of clients up to the last one drawn in a round."""
    return int(np.append(row.clients, row.missing).max(initial=-1)) + 1


def known_times(seconds: FloatArray, context: SamplerContext | RoundUpdates) -> FloatArray:
    """Return each client's time as known beforehand, else as last measured, else NaN."""
    n = context.weights.size
    return extend(seconds, n, np.nan) if context.times is None else context.times


def update_times(seconds: FloatArray, row: Row) -> FloatArray:
    """Return the last time of each client after a round; a missing client took all of it."""
    seconds = extend(seconds, count_clients(row), np.nan)
    seconds[row.clients] = row.client_seconds
    seconds[row.missing] = row.round_seconds
    return seconds


def reported_losses(reply: Reply) -> FloatArray:
    """Return root mean square losses, or mean losses, or gradient norms: the first reported."""
    reported = (reply.rms_losses, reply.losses, reply.grad_norms)
    return next((each for each in reported if each.size), reply.grad_norms)
