"""Whose turn it is: give every tier its share of the rounds, evenly over time."""

from __future__ import annotations

from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from fedpace.checks import FloatArray, IntArray
from fedpace.rounds.rows import Row
from fedpace.sampling.tiered import Tiered

# Multiples of it fill the circle as evenly as can be.
GOLDEN = (5**0.5 - 1) / 2
# Draws in a row without a reply after which a client is owed nothing more; as rare as the
# server's correction for missing replies reaches.
PATIENCE = 5


class Balance(TypedDict):
    """What each client got: its weights summed over the rounds after `since`.

    `missed` counts the draws in a row that it did not answer.
    """

    rounds: int
    received: FloatArray
    since: IntArray
    missed: IntArray


def even_balance(n: int) -> Balance:
    """Return the state before the first round."""
    since, missed = np.zeros((2, n), dtype=np.int64)
    return Balance(rounds=0, received=np.zeros(n), since=since, missed=missed)


def balanced(balance: Balance, row: Row) -> Balance:
    """Add a round; close the account of those who are silent."""
    n = int(np.append(row.clients, row.missing).max(initial=-1)) + 1
    balance = _grown(balance, n)
    balance["received"][row.clients] += row.weights
    balance["rounds"] += 1
    balance["missed"][row.clients] = 0
    balance["missed"][row.missing] += 1
    silent = row.missing[balance["missed"][row.missing] >= PATIENCE]
    balance["received"][silent] = 0.0
    balance["since"][silent] = balance["rounds"]
    return balance


def _grown(balance: Balance, n: int) -> Balance:
    more = n - balance["received"].size
    if more <= 0:
        return balance
    since = np.full(more, balance["rounds"])
    return Balance(
        rounds=balance["rounds"],
        received=np.append(balance["received"], np.zeros(more)),
        since=np.append(balance["since"], since),
        missed=np.append(balance["missed"], np.zeros(more, dtype=np.int64)),
    )


def turn_of(
    design: Tiered, balance: Balance, present: NDArray[np.bool_] | None, chance: float
) -> int:
    """Return the tier whose turn comes first, among those with somebody present.

    Client i is owed p_i a round. Tier g has a turn whenever it is owed a whole round of its, of
    the weight P_g / m_g; so it gets the share m_g of the turns, m_g apart from each other as
    evenly as can be, whatever the designs before were. Where a reply was missing its client is
    still owed, but not where it is silent: or a tier that never answers would have every turn.
    A tier of which all are silent has a turn every 1 / m_g rounds. `chance`, uniform in [0, 1),
    says how near each tier is to its first turn.
    """
    balance = _grown(balance, design.n)
    count = design.chances.size
    heard = balance["missed"][: design.n] < PATIENCE
    some_heard = np.bincount(design.tiers, heard, count) > 0
    weights = np.where(heard | ~some_heard[design.tiers], design.weights, 0.0)
    rounds = balance["rounds"] - balance["since"][: design.n]
    owed = weights * rounds - balance["received"][: design.n]
    held = np.bincount(design.tiers, weights, count)
    turns = np.bincount(design.tiers, owed, count) * design.chances / held
    turns += np.where(some_heard, (chance + GOLDEN * np.arange(count)) % 1.0, 0.0)
    wait = (1 - turns) / design.chances
    if present is not None:
        there = np.bincount(design.tiers, present[: design.n], count) > 0
        wait[~there] = np.inf
    return int(np.argmin(wait))
