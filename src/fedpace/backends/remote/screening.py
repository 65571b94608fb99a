"""Screen the replies of remote clients: every number that they send is checked here."""

from __future__ import annotations

import contextlib
import math
from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from fedpace.errors import InputError

# Shorten an update to this times the usual length: of honest clients, those whose data are unlike
# all others' send the longest. Refuse it beyond this times that limit, as it is no update.
LONGEST_UPDATE, ABSURD = 100.0, 100.0
# Bounds of a gradient norm as multiples of what others report: a client with an inflated norm is
# drawn more often, and one with a small norm weighs more when drawn. Honest clients whose data are
# learned do fall below a tenth.
LARGEST_NORM, SMALLEST_NORM = 10.0, 0.01
# Bound of the norm per length of the update, as a multiple of the others': an update of zero has no
# gradient. The steps of honest clients add up more or less straight.
LARGEST_NORM_PER_LENGTH = 4.0
# Bound of a loss as a multiple of the others' median: a single client must not end a run.
WIDEST_LOSS = 10.0
# Least time as a multiple of the others': limits how fast a client without work appears.
SHORTEST_TIME = 1 / 20
# Do not judge times below this many seconds: scheduling varies them by larger factors.
SHORTEST_JUDGED = 0.02
# Clients needed for a median. Between two and four others, their extremes are used instead.
FEWEST, FEWEST_OTHERS = 5, 2
# The first updates of an asynchronous run are judged once more than this part of the clients have
# answered, or this many: five colluders of forty are a minority even if they answer first.
FIRST_PART, MOST_FIRST = 4, 25
# They are judged with as many as there are after this many replies and failures per client needed.
LONGEST_HOLD = 4


BOUNDED = " bounded"
T = TypeVar("T")


def verdict(reason: str) -> str:
    """Return a refusal's reason as words for a report.

    >>> verdict("loss bounded"), verdict("update")
    ('bounded (loss)', 'refused (update)')
    """
    was = reason.removesuffix(BOUNDED)
    return f"refused ({reason})" if was == reason else f"bounded ({was})"


class BadReplyError(Exception):
    """A reply cannot be used; the message says why."""


class Border:
    """Check the replies of clients against what is usual, as learned from replies or `memory`.

    >>> border = Border()
    >>> border.update(0, math.nan)
    Traceback (most recent call last):
    fedpace.backends.remote.screening.BadReplyError: the update is not finite
    """

    def __init__(self, memory: Mapping[str, Any] | None = None) -> None:
        known = memory or {}
        try:
            self._usual = finite_number("the usual length", known.get("usual", 0.0), negative=False)
            self._lengths, self._norms, self._ratios, self._losses, self._seconds = (
                _Latest(known.get(name, {}))
                for name in ("lengths", "norms", "ratios", "losses", "seconds")
            )
        except (AttributeError, TypeError, ValueError, BadReplyError) as error:
            raise InputError(
                f"memory must be that of a border, got another: {error}; remove the checkpoint"
            ) from None

    @property
    def memory(self) -> dict[str, Any]:
        """What is usual, as JSON values; pass it to the constructor after a restart."""
        return {
            "usual": self._usual,
            "lengths": self._lengths.values,
            "norms": self._norms.values,
            "ratios": self._ratios.values,
            "losses": self._losses.values,
            "seconds": self._seconds.values,
        }

    @property
    def clients(self) -> set[int]:
        """The clients that have sent an update, other than zeros."""
        return self._lengths.clients

    def meet(self, round_: Iterable[Claims]) -> None:
        """Note the claims of all clients of a round before any is judged by the others."""
        for said in round_:
            length = math.nan if said.length is None else self._note(said.client, said.length)
            for latest, value, negative in (
                (self._norms, said.grad_norm, False),
                (self._losses, said.loss, True),
                (self._seconds, said.seconds, False),
            ):
                with contextlib.suppress(BadReplyError):
                    number = finite_number("the claim", value, negative=negative)
                    latest.put(said.client, number)
                    if latest is self._norms and 0 < length < math.inf:
                        self._ratios.put(said.client, number / length)

    def forget(self, client: int) -> None:
        """Forget the numbers of a reply that is refused, except the length of its update.

        Lengths are compared by their median over clients. If those of refused updates did not
        count, the first clients could shut out all others.
        """
        for latest in (self._norms, self._ratios, self._losses, self._seconds):
            latest.drop(client)

    def update(self, client: int, norm: float) -> float:
        """Judge an update by its length, and return the factor to shorten it by, 1 for most.

        BadReplyError if it cannot be used.
        """
        self._note(client, norm)
        if not math.isfinite(norm):
            raise BadReplyError("the update is not finite")
        most = self._longest(client)
        if norm > ABSURD * most:
            raise BadReplyError(f"the update is far longer than usual: {norm:.3g}")
        return min(1.0, most / norm) if norm else 1.0

    def _note(self, client: int, norm: float) -> float:
        """Note the length of an update if it is the client's longest, and return it.

        Updates of zeros say nothing of what is usual.
        """
        if 0 < norm < math.inf:
            self._lengths.put(client, max(norm, self._lengths.get(client)))
        return norm

    def _longest(self, client: int) -> float:
        """Return how long an update of this client may be; ∞ while nothing is known of others.

        A hundred times the usual: the median over all clients of the longest update of each so
        far, where it was highest. Latest lengths would be too short where most clients have
        converged, and others have not. A client that answers often counts once. Among fewer than
        five clients the longest of the others decides; the shortest or the median would let one
        tiny update bind all others.
        """
        lengths = self._lengths
        if len(lengths) >= FEWEST:
            self._usual = max(self._usual, lengths.median)
        usual = self._usual or lengths.most_of_others(client)
        return LONGEST_UPDATE * usual or math.inf

    def grad_norm(self, client: int, value: object, length: float | None = None) -> float:
        """Return a reported gradient norm, between a hundredth and ten times what is usual.

        With the `length` of its update, it is at most four times what is usual for that length.
        """
        norm = finite_number("the gradient norm", value, negative=False)
        if length is not None:
            ratio = norm / length if length > 0 else math.inf
            most = self._ratios.bound(client, ratio, least=0.0, most=LARGEST_NORM_PER_LENGTH)
            if length > 0 and most < ratio:  # otherwise keep it exact, without rounding
                norm = most * length
            if length > 0 and math.isfinite(most):
                self._ratios.put(client, most)
            elif self._ratios.known:
                norm = 0.0  # an update of zero has no gradient
        norm = self._norms.bound(client, norm, least=SMALLEST_NORM, most=LARGEST_NORM)
        self._norms.put(client, norm)
        return norm

    def took(self, client: int, seconds: float) -> float:
        """Return a client's measured seconds, at least a twentieth of what is usual."""
        bounded = self._seconds.bound(client, seconds, least=SHORTEST_TIME)
        seconds = seconds if bounded < SHORTEST_JUDGED else bounded
        self._seconds.put(client, seconds)
        return seconds

    def seconds(self, value: object) -> float:
        """Return a reported duration."""
        return finite_number("the time", value, negative=False)

    def count(self, value: object) -> int:
        """Return a number of samples."""
        return whole_number("the number of samples", value, least=1)

    def loss(self, client: int, value: object) -> float:
        """Return a reported loss, between a tenth and ten times the median of the others'."""
        loss = finite_number("the loss", value)
        usual = self._losses.median_of_others(client)
        if usual is not None and usual > 0:
            loss = min(max(loss, usual / WIDEST_LOSS), usual * WIDEST_LOSS)
        self._losses.put(client, loss)
        return loss


class FirstReplies(Generic[T]):
    """Hold the first replies of an asynchronous run until they can be judged together.

    An update is judged by those of other clients, and the first of a run has none. Replies are held
    until more than a quarter of the clients have answered, at least five and at most 25; in smaller
    fleets all but one, at least three. The hold ends early when no other client can answer, or
    after four times as many replies and failures. A border that remembers enough clients, as after
    a restart, holds nothing.

    >>> first = FirstReplies[str](Border())
    >>> first.release({0: "zero"}, reachable={0, 1, 2})
    []
    >>> first.release({1: "one"}, reachable={0, 1, 2}), first.clients
    ([], [0, 1])
    >>> first.release({2: "two"}, reachable={0, 1, 2})
    ['zero', 'one', 'two']
    """

    def __init__(self, border: Border) -> None:
        self._border = border
        self._held: dict[int, T] = {}
        self._answered: set[int] = set()
        self._collected = 0

    @property
    def clients(self) -> list[int]:
        """The clients whose replies are held."""
        return sorted(self._held)

    def release(
        self, replies: Mapping[int, T], *, reachable: Collection[int], failed: int = 0
    ) -> list[T]:
        """Add replies by client; return those to judge now, all or none.

        `reachable` are the clients at work or free to be asked, and `failed` counts those that were
        asked and did not answer.
        """
        self._held.update(replies)
        self._answered.update(replies)
        self._collected += len(replies) + failed
        answered = self._answered | self._border.clients
        fleet = len(answered.union(reachable))
        needed = min(max(FEWEST, fleet // FIRST_PART + 1), MOST_FIRST)
        needed = min(needed, max(FEWEST_OTHERS + 1, fleet - 1))
        others = set(reachable) - self._held.keys()
        if others and len(answered) < needed and self._collected < LONGEST_HOLD * needed:
            return []
        released, self._held, self._collected = [*self._held.values()], {}, 0
        return released

    def drop(self, clients: Iterable[int]) -> None:
        """Forget what is held of clients that are asked again."""
        for client in clients:
            self._held.pop(client, None)


class Claims(NamedTuple):
    """The content of a client's reply, before any of it is judged: the length of its update."""

    client: int
    length: float | None = None
    grad_norm: object = None
    loss: object = None
    seconds: object = None


class _Latest:
    """The latest number of each client, sorted for fast medians."""

    def __init__(self, values: Mapping[Any, float]) -> None:
        self._of: dict[int, float] = {}
        self._ordered: list[float] = []
        for client, value in values.items():
            self.put(int(client), finite_number("a number of it", value))

    @property
    def values(self) -> dict[str, float]:
        """The numbers by client, as JSON values."""
        return {str(client): value for client, value in self._of.items()}

    @property
    def clients(self) -> set[int]:
        """The clients with a number."""
        return {*self._of}

    def __len__(self) -> int:
        return len(self._ordered)

    def get(self, client: int) -> float:
        """Return a client's number, 0 without one."""
        return self._of.get(client, 0.0)

    @property
    def median(self) -> float:
        """The median over all clients, 0 without any."""
        ordered, count = self._ordered, len(self._ordered)
        # Halved first, so that the sum does not overflow.
        return ordered[(count - 1) // 2] / 2 + ordered[count // 2] / 2 if count else 0.0

    def most_of_others(self, client: int) -> float:
        """Return the largest number of the other clients, 0 without any."""
        return max((value for i, value in self._of.items() if i != client), default=0.0)

    @property
    def known(self) -> bool:
        """Whether enough is known to judge by."""
        return len(self._ordered) >= FEWEST_OTHERS

    def put(self, client: int, value: float) -> None:
        """Replace a client's number."""
        self.drop(client)
        self._of[client] = value
        insort(self._ordered, value)

    def bound(self, client: int, value: float, *, least: float, most: float = math.inf) -> float:
        """Return a value within these multiples of the median of the others.

        Of two to four others, their smallest and largest are used. With one other the value stays:
        of two clients, it is unknown which is right.
        """
        self.drop(client)
        if len(self._ordered) < FEWEST_OTHERS:
            return value
        low = high = self.median_of_others(client)
        if low is None or high is None:
            low, high = self._ordered[0], self._ordered[-1]
        return min(max(value, least * low), most * high) if high > 0 else value

    def median_of_others(self, client: int) -> float | None:
        """Return the median of the others; None if they are too few. Forget the client's own."""
        self.drop(client)
        return self.median if len(self._ordered) >= FEWEST else None

    def drop(self, client: int) -> None:
        """Forget a client's number."""
        if client in self._of:
            del self._ordered[bisect_left(self._ordered, self._of.pop(client))]


def finite_number(name: str, value: object, *, negative: bool = True) -> float:
    """Return a value as a finite number, or raise BadReplyError."""
    try:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError
        number = float(value)  # OverflowError for an integer of a thousand digits
        if not math.isfinite(number):
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise BadReplyError(f"{name} is no finite number: {value!r:.40}") from None
    if number < 0 and not negative:
        raise BadReplyError(f"{name} is negative: {number:g}")
    return number


def whole_number(name: str, value: object, *, least: int = 0) -> int:
    """Return a value as a whole number of at least `least`, or raise BadReplyError."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**53:
        kind = "positive integer" if least else "whole number"
        raise BadReplyError(f"{name} is no {kind}: {value!r:.40}")
    return value
