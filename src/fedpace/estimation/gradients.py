"""Gradient norms G_i from what clients reported."""

from __future__ import annotations

from typing import TypedDict

import numpy as np

from fedpace.checks import FloatArray
from fedpace.remote.screening import LARGEST_NORM
from fedpace.rounds.rows import Row

# A client that was never drawn counts as one of the more instructive tenth: not knowing is a
# reason to look, not to look away.
OPTIMISTIC_QUANTILE = 0.9


class NormsSeen(TypedDict):
    """The sum of the squared norms that each client reported, and how many they are."""

    total: FloatArray
    count: FloatArray


def no_norms(n: int) -> NormsSeen:
    """Return the state before the first report."""
    return NormsSeen(total=np.zeros(n), count=np.zeros(n))


def see_norms(seen: NormsSeen, row: Row) -> None:
    """Add what a round's clients reported."""
    fine = np.isfinite(row.grad_norms)
    clients = row.clients[fine]
    seen["total"], seen["count"] = grown(seen["total"], clients), grown(seen["count"], clients)
    seen["total"][clients] += row.grad_norms[fine] ** 2
    seen["count"][clients] += 1


def estimated_grad_norms(seen: NormsSeen, n: int) -> FloatArray:
    """Return G_i, the root mean square of the norms that client i reported.

    A client without a report gets the 0.9 quantile of the others, or 1 if nobody reported. More
    than ten times the median is cut to that.

    Differs from the paper's published code, which takes the largest full-batch norm at the global
    model: a maximum grows with the number of rounds in which a client happened to be drawn.
    """
    last = np.array([n - 1])
    total, count = grown(seen["total"], last), grown(seen["count"], last)
    known = count > 0
    if not known.any():
        return np.ones(n)
    norms: FloatArray = np.sqrt(total / np.maximum(count, 1))
    norms[known] = np.minimum(norms[known], LARGEST_NORM * np.median(norms[known]))
    norms[~known] = np.quantile(norms[known], OPTIMISTIC_QUANTILE)
    return norms


def grown(values: FloatArray, clients: np.ndarray[tuple[int], np.dtype[np.int64]]) -> FloatArray:
    """Return the values, with zeros for clients that have come since."""
    more = int(clients.max(initial=-1)) + 1 - values.size
    return np.concatenate([values, np.zeros(more)]) if more > 0 else values
