"""Round times t_i from what was measured."""

from __future__ import annotations

from typing import TypedDict

import numpy as np

from fedpace.checks import FloatArray
from fedpace.estimation.gradients import grown
from fedpace.rounds.rows import Row

# How much the latest time counts: old ones are forgotten after some ten rounds.
LATEST = 0.2
# A client that was never drawn counts as one of the faster tenth: a reason to look.
OPTIMISTIC_QUANTILE = 0.1


class TimesSeen(TypedDict):
    """The running mean of each client's seconds, and how many there were."""

    mean: FloatArray
    count: FloatArray


def no_times(n: int) -> TimesSeen:
    """Return the state before the first reply."""
    return TimesSeen(mean=np.zeros(n), count=np.zeros(n))


def see_times(seen: TimesSeen, row: Row) -> None:
    """Add a round: t ← t + 0.2 (measured − t).

    The first few count alike: t is the plain mean of up to five. A reply that never came counts
    as the whole round that was waited for it.
    """
    clients = np.concatenate([row.clients, row.missing])
    seconds = np.concatenate([row.client_seconds, np.full(row.missing.size, row.round_seconds)])
    seen["mean"], seen["count"] = grown(seen["mean"], clients), grown(seen["count"], clients)
    mean, count = seen["mean"], seen["count"]
    count[clients] += 1
    mean[clients] += np.maximum(LATEST, 1 / count[clients]) * (seconds - mean[clients])


def estimated_times(seen: TimesSeen, n: int) -> FloatArray:
    """Return t_i; without any, the 0.1 quantile of the others, or 1 if nobody has one."""
    last = np.array([n - 1])
    times, count = grown(seen["mean"], last).copy(), grown(seen["count"], last)
    known = (count > 0) & (times > 0)
    if not known.any():
        return np.ones(n)
    times[~known] = np.quantile(times[known], OPTIMISTIC_QUANTILE)
    return times
