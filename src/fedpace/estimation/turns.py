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

    `joined` are the rounds before it was known; `missed` counts the draws in a row that it did not
    answer.
    """

    rounds: int
    received: FloatArray
    since: IntArray
    joined: IntArray
    missed: IntArray


def even_balance(n: int) -> Balance:
    """Return the state before the first round."""
    since, joined, missed = np.zeros((3, n), dtype=np.int64)
    return Balance(rounds=0, received=np.zeros(n), since=since, joined=joined, missed=missed)


def balanced(balance: Balance, row: Row) -> Balance:
    """Add a round; close the account of those who are silent."""
    n = int(np.append(row.clients, row.missing).max(initial=-1)) + 1
    balance = grown(balance, n)
    balance["received"][row.clients] += row.weights
    balance["rounds"] += 1
    balance["missed"][row.clients] = 0
    balance["missed"][row.missing] += 1
    silent = row.missing[balance["missed"][row.missing] >= PATIENCE]
    balance["received"][silent] = 0.0
    balance["since"][silent] = balance["rounds"]
    return balance


def grown(balance: Balance, n: int) -> Balance:
    """Return the balance of at least `n` clients; those who are new are owed nothing yet."""
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


def turn_of(
    design: Tiered, balance: Balance, present: NDArray[np.bool_] | None, chance: float
) -> int:
    """Return the tier whose turn comes first, among those with somebody present.

    Client i is owed p_i a round, and before others joined its share among those known. Tier g has
    a turn whenever it is owed a whole round of its, of the weight P_g / m_g; so it gets the share
    m_g of the turns, m_g apart from each other as evenly as can be, whatever the designs before
    were. Where a reply was missing its client is still owed, but not where it is silent: or a tier
    that never answers would have every turn. A tier of which all are silent has a turn every
    1 / m_g rounds. `chance`, uniform in [0, 1), says how near each tier is to its first turn.
    """
    balance = grown(balance, design.n)
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
    """Return the rounds that each client is owed p_i for; those of fewer clients count for more.

    Otherwise all who were there before others joined would have had too much ever since, and the
    newcomers every turn, until they had made up for rounds that they were not there for.
    """
    n = weights.size
    joined, since = balance["joined"][:n], balance["since"][:n]
    if not joined.any() and not since.any():
        return np.full(n, float(balance["rounds"]))
    starts = np.unique(joined)
    held = np.cumsum(np.bincount(np.searchsorted(starts, joined), weights))
    held[-1] = 1.0  # those known now hold all, without rounding
    knots = np.append(starts, balance["rounds"])
    counted = np.append(0.0, np.cumsum(np.diff(knots) / held))
    rounds: FloatArray = counted[-1] - np.interp(since, knots, counted)
    return rounds
