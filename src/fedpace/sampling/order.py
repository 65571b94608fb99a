"""Sort many clients, with ties in the order of clients."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpace.checks import IntArray

# Up to this many, NumPy's stable sort is as fast.
FEW = 4096
# Integers below this are sorted by their digits.
DIGITS = 2**16


def stable_order(values: NDArray[Any]) -> IntArray:
    """Return `np.argsort(values, kind="stable")`, several times as fast for many values.

    NumPy's sort that is not stable uses vector instructions; ties are put in order afterwards.
    Floats must not be NaN.

    >>> stable_order(np.array([2.0, 1.0, 2.0, 1.0]))
    array([1, 3, 0, 2])
    """
    if values.size <= FEW:
        return np.argsort(values, kind="stable")
    if values.dtype.kind == "i" and values.min() >= 0 and values.max() < DIGITS:
        return np.argsort(values.astype(np.uint16), kind="stable")
    order = np.argsort(values)
    ranked = values[order]
    same = ranked[1:] == ranked[:-1]
    if 2 * np.count_nonzero(same) > same.size:
        return np.argsort(values, kind="stable")
    tied = np.flatnonzero(np.append(same, False) | np.append(False, same))
    run = np.cumsum(np.append(True, ~same))[tied]
    order[tied] = order[tied][np.lexsort((order[tied], run))]
    return order
