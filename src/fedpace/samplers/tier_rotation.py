"""Tier rotation: give every tier its share of the rounds, evenly over time."""

from __future__ import annotations

from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from fedpace.checks import FloatArray, IntArray
from fedpace.sampling.tiers import Tiered
from fedpace.training.history import Row

# Multiples of the golden ratio spread evenly over the circle.
GOLDEN = (5**0.5 - 1) / 2
# Draws in a row without a reply after which a client is owed nothing; the server's correction for
# missing replies reaches as far.
PATIENCE = 5


class Balance(TypedDict):
    """The weight that each client received, summed over the rounds after `since`.

    `joined` are the rounds before the client was known; `missed` counts its draws in a row without
    a reply.
    """

    rounds: int
    received: FloatArray
    since: IntArray
    joined: IntArray
    missed: IntArray


def empty_balance(n: int) -> Balance:
    """Return the state before the first round."""
    since, joined, missed = np.zeros((3, n), dtype=np.int64)
    return Balance(rounds=0, received=np.zeros(n), since=since, joined=joined, missed=missed)


def add_round(balance: Balance, row: Row) -> Balance:
    """Add a round; reset the account of clients that stopped answering."""
    n = int(np.append(row.clients, row.missing).max(initial=-1)) + 1
    balance = extend_balance(balance, n)
    balance["received"][row.clients] += row.weights
    balance["rounds"] += 1
    balance["missed"][row.clients] = 0
    balance["missed"][row.missing] += 1
    silent = row.missing[balance["missed"][row.missing] >= PATIENCE]
    balance["received"][silent] = 0.0
    balance["since"][silent] = balance["rounds"]
    return balance


def extend_balance(balance: Balance, n: int) -> Balance:
    """Return the balance of at least `n` clients; new clients are owed nothing yet."""
    more = n - balance["received"].size
    if more <= 0:
        return balance
    now = np.full(more, balance["rounds"])
    return Balance(
        rounds=balance["rounds"],
        received=np.append(balance["received"], np.zeros(more)),
        since=np.append(balance["since"], now),
        joined=np.append(balance["joined"], now),
        missed=np.append(balance["missed"], np.zeros(more, dtype=np.int64)),
    )


def next_tier(
    design: Tiered, balance: Balance, present: NDArray[np.bool_] | None, chance: float
) -> int:
    """Return the tier that is due first, among those with a client present.

    Client i is owed p_i per round, or its share among the clients known at the time. Tier g is due
    whenever it is owed a complete round, of the weight P_g / m_g; so it gets the share m_g of the
    rounds, as evenly spaced as possible, whatever the earlier designs were. A client whose reply
    was missing is still owed, but not one that stopped answering: a tier that never answers would
    be drawn in every round. A tier without any answering client is drawn every 1 / m_g rounds.
    `chance`, uniform in [0, 1), places the first round of each tier.
    """
    balance = extend_balance(balance, design.n)
    count = design.chances.size
    heard = balance["missed"][: design.n] < PATIENCE
    some_heard = np.bincount(design.tiers, heard, count) > 0
    weights = np.where(heard | ~some_heard[design.tiers], design.weights, 0.0)
    rounds = _rounds_owed(balance, design.weights)
    owed = weights * rounds - balance["received"][: design.n]
    held = np.bincount(design.tiers, weights, count)
    turns = np.bincount(design.tiers, owed, count) * design.chances / held
    turns += np.where(some_heard, (chance + GOLDEN * np.arange(count)) % 1.0, 0.0)
    wait = (1 - turns) / design.chances
    if present is not None:
        there = np.bincount(design.tiers, present[: design.n], count) > 0
        wait[~there] = np.inf
    return int(np.argmin(wait))


def _rounds_owed(balance: Balance, weights: FloatArray) -> FloatArray:
    """Return the rounds for which each client is owed p_i; rounds with fewer clients count more.

    Otherwise the first clients would have received too much, and clients that join later would be
    drawn in every round until they had made up for the rounds before.
    """
    n = weights.size
    joined, since = balance["joined"][:n], balance["since"][:n]
    if not joined.any() and not since.any():
        return np.full(n, float(balance["rounds"]))
    starts = np.unique(joined)
    held = np.cumsum(np.bincount(np.searchsorted(starts, joined), weights))
    held[-1] = 1.0  # exactly: all clients known now
    knots = np.append(starts, balance["rounds"])
    counted = np.append(0.0, np.cumsum(np.diff(knots) / held))
    rounds: FloatArray = counted[-1] - np.interp(since, knots, counted)
    return rounds
