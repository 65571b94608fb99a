"""A draw by a rule, where no vector of probabilities says who is drawn."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from fedpace.checks import FloatArray, IntArray
from fedpace.profile import Profile
from fedpace.rounds.rows import Row
from fedpace.rounds.sampler import Known
from fedpace.rounds.seen import Seen
from fedpace.sampling.design import Draw

# Of the clients who are there, and with a generator, makes this round's draw.
Rule = Callable[[IntArray, "np.random.Generator"], Draw]


@dataclass(frozen=True, eq=False)
class Chosen:
    """Draw by a rule among those who are there.

    How long a round is expected to last, and what the draw adds to the variance, is not known.

    Parameters
    ----------
    n : int
        The number of clients.
    rule : function of clients and a generator
        Returns the draw.
    clients : array of int, optional
        Those who are there; by default all.
    """

    n: int
    rule: Rule
    clients: IntArray | None = None

    def draw(self, rng: np.random.Generator) -> Draw:
        """Draw by the rule."""
        return self.rule(np.arange(self.n) if self.clients is None else self.clients, rng)

    def expected_round_time(self, times: ArrayLike) -> float:  # noqa: ARG002
        """Return NaN: a rule does not say."""
        return math.nan

    def variance_term(self, profile: Profile) -> float:  # noqa: ARG002
        """Return NaN: the convergence bound is for unbiased draws from probabilities."""
        return math.nan

    def among(self, present: ArrayLike) -> Chosen:
        """Return the same rule among those present."""
        there = np.asarray(present)[: self.n]
        if self.clients is not None:
            there = there & np.isin(np.arange(self.n), self.clients)
        return replace(self, clients=np.flatnonzero(there))

    @property
    def largest_weight(self) -> float:
        """No update counts for more than all."""
        return 1.0


def even(clients: IntArray, take: int | None = None) -> Draw:
    """Return a draw of these clients with equal weights.

    >>> even(np.array([7, 2])).clients, even(np.array([7, 2])).weights
    (array([2, 7]), array([0.5, 0.5]))
    """
    count = clients.size if take is None else min(take, clients.size)
    return Draw(np.sort(clients), np.full(clients.size, 1 / count), take=take)


def by_size(clients: IntArray, weights: FloatArray, tier: int = -1) -> Draw:
    """Return a draw of these clients, each with its share of the data that they hold together."""
    clients = np.sort(clients)
    return Draw(clients, weights[clients] / weights[clients].sum(), tier)


def without_replacement(clients: IntArray, k: int, rng: np.random.Generator) -> IntArray:
    """Return k different clients, all sets alike; all where they are fewer."""
    return clients if k >= clients.size else rng.choice(clients, k, replace=False)


def in_proportion(
    clients: IntArray, shares: FloatArray, k: int, rng: np.random.Generator
) -> IntArray:
    """Return k different clients, drawn one after the other in proportion to their shares.

    Those whose share is 0 only where the others do not suffice.
    """
    positive = shares > 0
    first, rest = clients[positive], clients[~positive]
    if k < first.size:
        p = shares[positive] / shares[positive].sum()
        return rng.choice(first, k, replace=False, p=p)
    return np.append(first, without_replacement(rest, k - first.size, rng))


def grown(values: FloatArray, n: int, fill: float) -> FloatArray:
    """Return one value per client, also for those who came later."""
    more = n - values.size
    return np.append(values, np.full(more, fill)) if more > 0 else values


def durations(seconds: FloatArray, known: Known | Seen) -> FloatArray:
    """Return how long each client takes: as known beforehand, else as last measured, else NaN."""
    n = known.weights.size
    return grown(seconds, n, np.nan) if known.times is None else known.times


def measured(seconds: FloatArray, row: Row) -> FloatArray:
    """Return the last seconds of each client, with a round's; who is missing took all of it."""
    newest = int(np.append(row.clients, row.missing).max(initial=-1)) + 1
    seconds = grown(seconds, newest, np.nan)
    seconds[row.clients] = row.client_seconds
    seconds[row.missing] = row.round_seconds
    return seconds
