"""How long the next update of each client is expected to be, by those that came."""

from __future__ import annotations

import math

import numpy as np

from fedpace.checks import FloatArray
from fedpace.remote.screening import FEWEST, LARGEST_NORM, LONGEST_UPDATE
from fedpace.rounds.seen import Seen

# How much a client's latest update counts in the norm that is expected of it.
LATEST_NORM = 0.5
# Shorter norms than this part of the median count as that: nobody has taught all there is.
SHORTEST_NORM = 1e-3
# Unknown norms count as one of the longer tenth, as in `learned`.
LONG_NORM = 0.9


def believed(seen: Seen, norms: FloatArray) -> Seen:
    """Leave out updates that are not finite, or far longer than usual: one shall not spoil sums.

    `norms` are those known before. What is far longer is as at the border of a network.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        latest = np.sqrt(np.vecdot(seen.residuals, seen.residuals))
    fine = np.isfinite(latest)
    usual = np.concatenate([norms[np.isfinite(norms)], latest[fine]])
    if usual.size >= FEWEST and (middle := float(np.median(usual))) > 0:
        fine &= latest <= LONGEST_UPDATE * middle
    return seen if fine.all() else seen.only(fine)


def with_norms(norms: FloatArray, seen: Seen) -> FloatArray:
    """Return the expected norms after the replies; a first one counts whole."""
    clients, residuals = seen.draw.clients, seen.residuals
    more = int(clients.max(initial=-1)) + 1 - norms.size
    if more > 0:
        norms = np.append(norms, np.full(more, math.nan))
    latest = np.sqrt(np.vecdot(residuals, residuals))
    before = np.where(np.isnan(norms[clients]), latest, norms[clients])
    norms[clients] = before + LATEST_NORM * (latest - before)
    return norms


def expected_norms(norms: FloatArray, n: int) -> FloatArray:
    """Return one norm per client, within what one client may claim."""
    every = np.append(norms, np.full(max(n - norms.size, 0), math.nan))
    known = np.isfinite(every)
    middle = float(np.median(every[known])) if known.any() else 0.0
    if not middle > 0:
        return np.ones(n)
    bounded = np.clip(every[known], SHORTEST_NORM * middle, LARGEST_NORM * middle)
    every[known] = bounded
    every[~known] = np.quantile(bounded, LONG_NORM)
    return every
