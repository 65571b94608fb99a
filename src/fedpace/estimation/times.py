"""Round times t_i from what was measured."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from fedpace.checks import FloatArray
from fedpace.rounds.history import Row

# How much the latest time counts: old ones are forgotten after some ten rounds.
LATEST = 0.2
# A client that was never drawn counts as one of the faster tenth: a reason to look.
OPTIMISTIC_QUANTILE = 0.1


def estimated_times(rows: Iterable[Row], n: int) -> FloatArray:
    """Return t_i, a running mean of the seconds that client i took: t ← t + 0.2 (measured − t).

    The first few count alike: t is the plain mean of up to five. A reply that never came counts as
    the whole round that was waited for it. A client without any gets the 0.1 quantile of the
    others, or 1 if nobody has one.
    """
    times, count = np.zeros(n), np.zeros(n)
    for row in rows:
        missing = np.full(row.missing.size, row.round_seconds)
        clients = np.concatenate([row.clients, row.missing])
        seconds = np.concatenate([row.client_seconds, missing])
        count[clients] += 1
        times[clients] += np.maximum(LATEST, 1 / count[clients]) * (seconds - times[clients])
    seen = (count > 0) & (times > 0)
    if not seen.any():
        return np.ones(n)
    times[~seen] = np.quantile(times[seen], OPTIMISTIC_QUANTILE)
    return times
