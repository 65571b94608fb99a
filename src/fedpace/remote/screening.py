"""The border: numbers that clients send are checked here, and nowhere else."""

from __future__ import annotations

import contextlib
import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedpace.checks import FloatArray

# Times the usual length beyond which an update is none. A diverging fleet grows by less a round.
LONGEST_UPDATE = 100.0
# Or times the client's own first ones: where others have nothing left to learn, one that has may
# move much further. Its later ones do not count, or it could work its way up.
LONGEST_OF_ITS_OWN = 10.0
# Times what the others report that a gradient norm counts for at most, and at least: whoever
# inflates it is drawn more often, and whoever belittles it weighs more when drawn, but neither
# without end. Honest clients whose data are learned do fall below a tenth.
LARGEST_NORM, SMALLEST_NORM = 10.0, 0.01
# And times what the others report for each length of their updates: whoever sends nothing has no
# gradient to speak of. The steps of honest clients add up more or less straight.
LARGEST_NORM_PER_LENGTH = 4.0
# The same for a loss: one client alone shall not end a run.
WIDEST_LOSS = 10.0
# The part of what the others take that a time counts for at least: whoever answers without work
# looks fast, but not without end.
SHORTEST_TIME = 1 / 20
# Seconds below which times are not judged: a scheduler's whim is a factor of more than that.
SHORTEST_JUDGED = 0.02
# Replies that tell what is usual, and the latest that are remembered. Of fewer others, but not of
# one alone, the extremes tell it.
FEWEST, MEMORY = 5, 200
FEWEST_OTHERS = 2


BOUNDED = " bounded"


def verdict(reason: str) -> str:
    """Return what became of something that a client said, by the reason that it is counted under.

    >>> verdict("loss bounded"), verdict("update")
    ('bounded (loss)', 'refused (update)')
    """
    was = reason.removesuffix(BOUNDED)
    return f"refused ({reason})" if was == reason else f"bounded ({was})"


class BadReplyError(Exception):
    """A reply cannot be used; the message says why."""


class Border:
    """Check what clients send, and learn what is usual as it comes, or from `memory`.

    >>> border = Border()
    >>> border.update(0, np.array([1.0, np.nan]), length=2)
    Traceback (most recent call last):
    fedpace.remote.screening.BadReplyError: the update is not finite
    """

    def __init__(self, memory: Mapping[str, Any] | None = None) -> None:
        known = memory or {}
        self._lengths: deque[float] = deque(known.get("lengths", ()), maxlen=MEMORY)
        self._first = {int(i): list(each) for i, each in known.get("first", {}).items()}
        self._round: dict[int, float] = {}
        self._norms, self._ratios, self._losses, self._seconds = (
            _Latest(known.get(name, {})) for name in ("norms", "ratios", "losses", "seconds")
        )

    @property
    def memory(self) -> dict[str, Any]:
        """What is usual, as JSON values: a border that is made with it knows as much."""
        return {
            "lengths": list(self._lengths),
            "first": {str(client): each for client, each in self._first.items()},
            "norms": self._norms.values,
            "ratios": self._ratios.values,
            "losses": self._losses.values,
            "seconds": self._seconds.values,
        }

    def meet(self, round_: Iterable[Said]) -> None:
        """Know what all clients of a round say before any is judged by the others."""
        self._round = {}
        for said in round_:
            length = math.nan
            if said.update is not None:
                with np.errstate(over="ignore", invalid="ignore"):
                    length = self._round[said.client] = float(np.linalg.norm(said.update))
            for latest, value, negative in (
                (self._norms, said.grad_norm, False),
                (self._losses, said.loss, True),
                (self._seconds, said.seconds, False),
            ):
                with contextlib.suppress(BadReplyError):
                    number = finite("what is said", value, negative=negative)
                    latest.put(said.client, number)
                    if latest is self._norms and 0 < length < math.inf:
                        self._ratios.put(said.client, number / length)

    def forget(self, client: int) -> None:
        """Forget the numbers of a reply that is refused."""
        for latest in (self._norms, self._ratios, self._losses, self._seconds):
            latest.drop(client)

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
        """Return how long an update of this client may be; ∞ as long as nothing is known.

        Before enough is remembered the longest of the others in the round tells it: were it the
        shortest or the middle one, one that is next to nothing would shut out all others.
        """
        if len(self._lengths) < FEWEST:
            others = [norm for other, norm in self._round.items() if other != client]
            others = [norm for norm in others if math.isfinite(norm)]
            return LONGEST_UPDATE * max(others, default=0.0) or math.inf
        usual = LONGEST_UPDATE * float(np.median(self._lengths))
        first = self._first.get(client, [])
        own = LONGEST_OF_ITS_OWN * float(np.median(first)) if len(first) == FEWEST else 0.0
        return max(usual, own) or math.inf  # a fleet that stood still may move again

    def grad_norm(self, client: int, value: object, length: float | None = None) -> float:
        """Return a reported gradient norm, between a hundredth and ten times what is usual.

        With the `length` of the update that came with it, at most four times what is usual for
        that length: a norm is believed as far as the update bears it out.
        """
        norm = finite("the gradient norm", value, negative=False)
        if length is not None:
            ratio = norm / length if length > 0 else math.inf
            most = self._ratios.bounded(client, ratio, least=0.0, most=LARGEST_NORM_PER_LENGTH)
            if length > 0 and most < ratio:  # else rounding alone could make it another number
                norm = most * length
            if length > 0 and math.isfinite(most):
                self._ratios.put(client, most)
            elif self._ratios.known:
                norm = 0.0  # it learned nothing that it could have had from a gradient
        norm = self._norms.bounded(client, norm, least=SMALLEST_NORM, most=LARGEST_NORM)
        self._norms.put(client, norm)
        return norm

    def took(self, client: int, seconds: float) -> float:
        """Return how long a client took, as measured, at least a twentieth of what is usual."""
        bounded = self._seconds.bounded(client, seconds, least=SHORTEST_TIME)
        seconds = seconds if bounded < SHORTEST_JUDGED else bounded
        self._seconds.put(client, seconds)
        return seconds

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


class Said(NamedTuple):
    """What a client's reply holds, before anything of it is judged."""

    client: int
    update: NDArray[Any] | None = None
    grad_norm: object = None
    loss: object = None
    seconds: object = None


class _Latest:
    """The latest number of each client, in order, so that a median is no work."""

    def __init__(self, values: Mapping[str, float] | None = None) -> None:
        self._of: dict[int, float] = {}
        self._ordered: list[float] = []
        for client, value in (values or {}).items():
            self.put(int(client), value)

    @property
    def values(self) -> dict[str, float]:
        """The numbers by client, as JSON has them."""
        return {str(client): value for client, value in self._of.items()}

    @property
    def known(self) -> bool:
        """Whether enough is known to judge by."""
        return len(self._ordered) >= FEWEST_OTHERS

    def put(self, client: int, value: float) -> None:
        """Replace a client's number."""
        self.drop(client)
        self._of[client] = value
        insort(self._ordered, value)

    def bounded(self, client: int, value: float, *, least: float, most: float = math.inf) -> float:
        """Return a value within these multiples of the median of the others.

        Where they are few, of the least and the largest of them, and where there is but one, the
        value as it is: nobody can tell who of two is right.
        """
        self.drop(client)
        if len(self._ordered) < FEWEST_OTHERS:
            return value
        low = high = self.median_of_others(client)
        if low is None or high is None:
            low, high = self._ordered[0], self._ordered[-1]
        return min(max(value, least * low), most * high) if high > 0 else value

    def median_of_others(self, client: int) -> float | None:
        """Return the median of all but this client's; None if they are too few.

        The client's own is forgotten: it is about to be replaced.
        """
        self.drop(client)
        count = len(self._ordered)
        if count < FEWEST:
            return None
        return (self._ordered[(count - 1) // 2] + self._ordered[count // 2]) / 2

    def drop(self, client: int) -> None:
        """Forget a client's number."""
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
