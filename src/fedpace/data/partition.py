"""Who holds how much, and of what."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedpace.errors import InputError


def power_law_sizes(
    n: int,
    total: int,
    rng: np.random.Generator,
    *,
    exponent: float = 1.5,
    smallest: int = 1,
) -> NDArray[np.int64]:
    """Draw N sizes from a power law that sum to `total` exactly, none below `smallest`.

    >>> sizes = power_law_sizes(10, 1000, np.random.default_rng(0), smallest=5)
    >>> int(sizes.sum()), bool(sizes.min() >= 5)
    (1000, True)
    """
    spare = total - n * smallest
    if spare < 0:
        raise InputError(
            f"total must be at least n × smallest = {n * smallest}, got {total}; "
            "give more samples or fewer clients"
        )
    shares = rng.pareto(exponent, n)
    exact = spare * shares / shares.sum()
    extra = np.floor(exact).astype(np.int64)
    # The largest remainders get what rounding down left over.
    short = spare - int(extra.sum())
    extra[np.argsort(extra - exact, kind="stable")[:short]] += 1
    return smallest + extra
