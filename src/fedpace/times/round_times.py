"""How long a task of each client lasts, and who is there, at a time of the clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fedpace.checks import FloatArray, IntArray, positive_column
from fedpace.errors import InputError
from fedpace.seeds import Seeds


class Presence(NamedTuple):
    """Who can be drawn, and after how many seconds of waiting.

    `clients` has one truth value per client; None means everyone.
    """

    clients: NDArray[np.bool_] | None = None
    waited: float = 0.0


EVERYONE = Presence()


class RoundTimes(Protocol):
    """How fast each client is, and when it is there; all by the clock of the run.

    Where clients may leave while they work there is also `leaves(seconds, clients) -> seconds`:
    after how long each of them goes. Where the usual times change for good there is also
    `usual_at(seconds)`, which returns those of a moment.
    """

    @property
    def usual(self) -> FloatArray:
        """The seconds that each client takes without noise, drift and busy spells."""

    def at(self, seconds: float, clients: IntArray, *, round_index: int) -> FloatArray:
        """Return the seconds that these clients take for a task that they get at `seconds`."""

    def present(self, seconds: float) -> Presence:
        """Return who is there at `seconds`, or the first to come and how long that takes."""


def usual_at(times: RoundTimes, seconds: float) -> FloatArray:
    """Return the usual times of a moment."""
    changing = getattr(times, "usual_at", None)
    found: FloatArray = times.usual if changing is None else changing(seconds)
    return found


@dataclass(frozen=True, eq=False)
class Steady:
    """The same time in every round; everyone is always there.

    >>> Steady(np.array([1.0, 2.0, 4.0])).at(60.0, np.array([2, 0]), round_index=7)
    array([4., 1.])
    """

    usual: FloatArray

    def __post_init__(self) -> None:
        object.__setattr__(self, "usual", positive_column("times", self.usual))

    def at(self, seconds: float, clients: IntArray, *, round_index: int) -> FloatArray:  # noqa: ARG002
        """Return the usual times."""
        return self.usual[clients]

    def present(self, seconds: float) -> Presence:  # noqa: ARG002
        """Return everyone."""
        return EVERYONE


@dataclass(frozen=True, eq=False)
class Varying:
    """Steady times with noise, slow drift, and spells of being busy; everyone is always there.

    A task that client i gets at s seconds takes
    t_i · exp(σ z − σ²/2) · exp(d sin(2π (s/P + φ_i))) · (b if busy), with z standard normal and
    drawn for each task. The noise has mean 1. The phase φ_i differs between clients.

    Parameters
    ----------
    usual : array of N, seconds
        t_i.
    seeds : Seeds
        Noise and spells depend on these alone, in whatever order they are asked for.
    noise : float ≥ 0
        σ, the standard deviation of the logarithm.
    drift, period : float ≥ 0, float > 0
        d, and P in seconds: over a period the time swings by factors exp(±d).
    busy, busy_factor : float in [0, 1), float ≥ 1
        Share of its spells in which a client is busy, and how much slower it is then.
    spell : float > 0
        Seconds that a client stays busy, or free.

    Examples
    --------
    >>> times = Varying(np.array([1.0, 2.0]), Seeds(0))  # nothing varies
    >>> times.at(3.0, np.array([1]), round_index=3)
    array([2.])
    """

    usual: FloatArray
    seeds: Seeds
    noise: float = 0.0
    drift: float = 0.0
    period: float = 100.0
    busy: float = 0.0
    busy_factor: float = 10.0
    spell: float = 10.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "usual", positive_column("times", self.usual))
        for name, fine, condition in (
            ("noise", 0 <= self.noise < np.inf, "be at least 0"),
            ("drift", 0 <= self.drift < np.inf, "be at least 0"),
            ("period", 0 < self.period < np.inf, "be positive"),
            ("busy", 0 <= self.busy < 1, "be at least 0 and below 1"),
            ("busy_factor", 1 <= self.busy_factor < np.inf, "be at least 1"),
            ("spell", 0 < self.spell < np.inf, "be positive"),
        ):
            if not fine:
                value = getattr(self, name)
                raise InputError(f"{name} must {condition}, got {value}; see Varying")

    def at(self, seconds: float, clients: IntArray, *, round_index: int) -> FloatArray:
        """Return the times of these clients only: O(K), not O(N)."""
        factors = [self._factor(seconds, int(client), round_index) for client in clients]
        times: FloatArray = self.usual[clients] * np.array(factors)
        return times

    def present(self, seconds: float) -> Presence:  # noqa: ARG002
        """Return everyone."""
        return EVERYONE

    def _factor(self, seconds: float, client: int, round_index: int) -> float:
        log = 0.0
        if self.noise:
            z = self.seeds.stream("time", round_index, client).standard_normal()
            log += self.noise * z - self.noise**2 / 2
        if not (self.drift or self.busy):
            return float(np.exp(log))
        phase = self.seeds.stream("time-phase", client).random()
        if self.drift:
            log += self.drift * np.sin(2 * np.pi * (seconds / self.period + phase))
        if self.busy:
            spell = int(seconds / self.spell + phase)
            if self.seeds.stream("time-busy", spell, client).random() < self.busy:
                log += np.log(self.busy_factor)
        return float(np.exp(log))


@dataclass(frozen=True, eq=False)
class Slower:
    """Times of clients of whom some become slower for good, all at the same moment.

    Parameters
    ----------
    times : RoundTimes
        How long they take without that.
    clients : array of N bool
        Who becomes slower.
    factor, since : float > 0, float ≥ 0
        How many times as long they then take, and from when on, in seconds.

    Examples
    --------
    >>> slower = Slower(Steady(np.array([1.0, 2.0])), np.array([False, True]), 5.0, since=60.0)
    >>> slower.at(59.0, np.array([0, 1]), round_index=0), slower.usual_at(60.0)
    (array([1., 2.]), array([ 1., 10.]))
    """

    times: RoundTimes
    clients: NDArray[np.bool_]
    factor: float
    since: float

    @property
    def usual(self) -> FloatArray:
        """The usual times before that."""
        return self.times.usual

    def usual_at(self, seconds: float) -> FloatArray:
        """Return the usual times of a moment."""
        return usual_at(self.times, seconds) * self._factors(seconds)

    def at(self, seconds: float, clients: IntArray, *, round_index: int) -> FloatArray:
        """Return the times of these clients."""
        times = self.times.at(seconds, clients, round_index=round_index)
        return times * self._factors(seconds)[clients]

    def present(self, seconds: float) -> Presence:
        """Return who is there."""
        return self.times.present(seconds)

    def _factors(self, seconds: float) -> FloatArray:
        return np.where(self.clients & (seconds >= self.since), self.factor, 1.0)


def slower(spec: str, times: RoundTimes, seeds: Seeds) -> Slower:
    """Return times of which a share of the clients becomes slower: SHARE:FACTOR:SECONDS.

    >>> float(slower("0.5:5:60", Steady(np.ones(10)), Seeds(0)).usual_at(60).sum())
    30.0
    """
    try:
        share, factor, since = (float(each) for each in spec.split(":"))
        if not (0 < share <= 1 and 0 < factor < np.inf and 0 <= since < np.inf):
            raise ValueError
    except ValueError:
        problem = f"devices.slower must be SHARE:FACTOR:SECONDS, got '{spec}'"
        raise InputError(f"{problem}; write 0.5:5:60") from None
    n = times.usual.size
    who = np.zeros(n, dtype=np.bool_)
    who[seeds.stream("time-slower").permutation(n)[: round(share * n)]] = True
    return Slower(times, who, factor, since)
