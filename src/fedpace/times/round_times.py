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
    after how long each of them goes.
    """

    @property
    def usual(self) -> FloatArray:
        """The seconds that each client takes without noise, drift and busy spells."""

    def at(self, seconds: float, clients: IntArray, *, round_index: int) -> FloatArray:
        """Return the seconds that these clients take for a task that they get at `seconds`."""

    def present(self, seconds: float) -> Presence:
        """Return who is there at `seconds`, or the first to come and how long that takes."""


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
