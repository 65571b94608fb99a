"""The border: numbers that clients send are checked here, and nowhere else."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpace.checks import FloatArray

# Times the usual length beyond which an update is none. A diverging fleet grows by less a round.
LONGEST_UPDATE = 100.0
# Or times the client's own first ones: where others have nothing left to learn, one that has may
# move much further. Its later ones do not count, or it could work its way up.
LONGEST_OF_ITS_OWN = 10.0
# Times what the others report that a gradient norm counts for at most: whoever inflates it is
# drawn more often, but not without end.
LARGEST_NORM = 10.0
# The same for a loss, and its inverse at least: one client alone shall not end a run.
WIDEST_LOSS = 10.0
# Replies that tell what is usual, and the latest that are remembered.
FEWEST, MEMORY = 5, 200


class BadReplyError(Exception):
    """A reply cannot be used; the message says why."""


class Border:
    """Check what clients send, and learn what is usual as it comes.

    >>> border = Border()
    >>> border.update(0, np.array([1.0, np.nan]), length=2)
    Traceback (most recent call last):
    fedpace.remote.screening.BadReplyError: the update is not finite
    """

    def __init__(self) -> None:
        self._lengths: deque[float] = deque(maxlen=MEMORY)
        self._first: dict[int, list[float]] = {}
        self._norms = _Latest()
        self._losses = _Latest()

    def update(self, client: int, values: NDArray[Any], *, length: int) -> FloatArray:
        """Return w_i − w in float64, or say why it is none."""
        if values.dtype not in (np.float32, np.float64):
            raise BadReplyError(f"the update has type {values.dtype}, not float32 or float64")
        if values.shape != (length,):
            raise BadReplyError(f"the update has shape {values.shape}, not ({length},)")
        update = values.astype(np.float64)
        norm = float(np.linalg.norm(update))
        if not math.isfinite(norm):
            raise BadReplyError("the update is not finite")
        if norm > self._longest(client):
            raise BadReplyError(f"the update is far longer than usual: {norm:.3g}")
        self._lengths.append(norm)
        first = self._first.setdefault(client, [])
        if len(first) < FEWEST:
            first.append(norm)
        return update

    def _longest(self, client: int) -> float:
        """Return how long an update of this client may be; ∞ as long as too little is known."""
        if len(self._lengths) < FEWEST:
            return math.inf
        usual = LONGEST_UPDATE * float(np.median(self._lengths))
        first = self._first.get(client, [])
        own = LONGEST_OF_ITS_OWN * float(np.median(first)) if len(first) == FEWEST else 0.0
        return max(usual, own) or math.inf  # a fleet that stood still may move again

    def grad_norm(self, client: int, value: object) -> float:
        """Return a reported gradient norm, at most ten times the median of the others."""
        norm = finite("the gradient norm", value, negative=False)
        usual = self._norms.median_of_others(client)
        if usual is not None:
            norm = min(norm, LARGEST_NORM * usual)
        self._norms.put(client, norm)
        return norm

    def seconds(self, value: object) -> float:
        """Return a reported duration."""
        return finite("the time", value, negative=False)

    def count(self, value: object) -> int:
        """Return a number of samples."""
        return whole("the number of samples", value, least=1)

    def loss(self, client: int, value: object) -> float:
        """Return a reported loss, between a tenth and ten times the median of the others'."""
        loss = finite("the loss", value)
        usual = self._losses.median_of_others(client)
        if usual is not None and usual > 0:
            loss = min(max(loss, usual / WIDEST_LOSS), usual * WIDEST_LOSS)
        self._losses.put(client, loss)
        return loss


class _Latest:
    """The latest number of each client, in order, so that a median is no work."""

    def __init__(self) -> None:
        self._of: dict[int, float] = {}
        self._ordered: list[float] = []

    def put(self, client: int, value: float) -> None:
        """Replace a client's number."""
        self._take_out(client)
        self._of[client] = value
        insort(self._ordered, value)

    def median_of_others(self, client: int) -> float | None:
        """Return the median of all but this client's; None if they are too few.

        The client's own is forgotten: it is about to be replaced.
        """
        self._take_out(client)
        count = len(self._ordered)
        if count < FEWEST:
            return None
        return (self._ordered[(count - 1) // 2] + self._ordered[count // 2]) / 2

    def _take_out(self, client: int) -> None:
        if client in self._of:
            del self._ordered[bisect_left(self._ordered, self._of.pop(client))]


def finite(name: str, value: object, *, negative: bool = True) -> float:
    """Return a value that is a finite number, `negative` or not."""
    try:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError
        number = float(value)  # an integer of a thousand digits is none
        if not math.isfinite(number):
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise BadReplyError(f"{name} is no finite number: {value!r:.40}") from None
    if number < 0 and not negative:
        raise BadReplyError(f"{name} is negative: {number:g}")
    return number


def whole(name: str, value: object, *, least: int = 0) -> int:
    """Return a value that is a whole number, 0 or more, or positive with `least` 1."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**53:
        kind = "positive integer" if least else "whole number"
        raise BadReplyError(f"{name} is no {kind}: {value!r:.40}")
    return value
