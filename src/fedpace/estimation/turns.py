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


class Balance(TypedDict):
    """What each client got: its weights summed over `rounds`, and the round before its first."""

    rounds: int
    received: FloatArray
    since: IntArray


def even_balance(n: int) -> Balance:
    """Return the state before the first round."""
    return Balance(rounds=0, received=np.zeros(n), since=np.zeros(n, dtype=np.int64))


def balanced(balance: Balance, row: Row) -> Balance:
    """Add a round."""
    n = int(np.append(row.clients, row.missing).max(initial=-1)) + 1
    balance = _grown(balance, n)
    balance["received"][row.clients] += row.weights
    balance["rounds"] += 1
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
    )


def turn_of(
    design: Tiered, balance: Balance, present: NDArray[np.bool_] | None, chance: float
) -> int:
    """Return the tier whose turn comes first, among those with somebody present.

    Client i is owed p_i a round. Tier g has a turn whenever it is owed a whole round of its, of
    the weight P_g / m_g; so it gets the share m_g of the turns, m_g apart from each other as
    evenly as can be, whatever the designs before were. Where a reply was missing its client is
    still owed. `chance`, uniform in [0, 1), says how near each tier is to its first turn.
    """
    balance = _grown(balance, design.n)
    rounds = balance["rounds"] - balance["since"][: design.n]
    owed = design.weights * rounds - balance["received"][: design.n]
    count = design.chances.size
    held = np.bincount(design.tiers, design.weights, count)
    turns = np.bincount(design.tiers, owed, count) * design.chances / held
    turns += (chance + GOLDEN * np.arange(count)) % 1.0
    wait = (1 - turns) / design.chances
    if present is not None:
        there = np.bincount(design.tiers, present[: design.n], count) > 0
        wait[~there] = np.inf
    return int(np.argmin(wait))
