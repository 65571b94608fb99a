"""Gradient norms G_i from what clients reported."""

from collections.abc import Iterable

import numpy as np

from fedpace.checks import FloatArray
from fedpace.rounds.history import Row
from fedpace.rounds.screening import LARGEST_NORM

# A client that was never drawn counts as one of the more instructive tenth: not knowing is a
# reason to look, not to look away.
OPTIMISTIC_QUANTILE = 0.9


def estimated_grad_norms(rows: Iterable[Row], n: int) -> FloatArray:
    """Return G_i, the root mean square of the norms that client i reported.

    A client without a report gets the 0.9 quantile of the others, or 1 if nobody reported. More
    than ten times the median is cut to that, so that nobody buys draws without end by reporting a
    large norm.

    Differs from the paper's published code, which takes the largest full-batch norm at the global
    model: a maximum grows with the number of rounds in which a client happened to be drawn.
    """
    total, count = np.zeros(n), np.zeros(n)
    for row in rows:
        fine = np.isfinite(row.grad_norms)
        total[row.clients[fine]] += row.grad_norms[fine] ** 2
        count[row.clients[fine]] += 1
    seen = count > 0
    if not seen.any():
        return np.ones(n)
    norms = np.sqrt(total / np.maximum(count, 1))
    norms[seen] = np.minimum(norms[seen], LARGEST_NORM * np.median(norms[seen]))
    norms[~seen] = np.quantile(norms[seen], OPTIMISTIC_QUANTILE)
    return norms
