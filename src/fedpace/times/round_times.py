"""How long a round of each client lasts, round by round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fedpace.checks import FloatArray, IntArray, positive_column
from fedpace.errors import InputError
from fedpace.seeds import Seeds


class RoundTimes(Protocol):
    """Seconds per client and round."""

    @property
    def usual(self) -> FloatArray:
        """What is known of each client beforehand: its time without the ups and downs."""

    def at(self, round_index: int, clients: IntArray) -> FloatArray:
        """Return the seconds that these clients take in this round."""


@dataclass(frozen=True, eq=False)
class Steady:
    """The same time every round.

    >>> Steady(np.array([1.0, 2.0, 4.0])).at(7, np.array([2, 0]))
    array([4., 1.])
    """

    usual: FloatArray

    def __post_init__(self) -> None:
        object.__setattr__(self, "usual", positive_column("times", self.usual))

    def at(self, round_index: int, clients: IntArray) -> FloatArray:  # noqa: ARG002
        """Return the usual times."""
        return self.usual[clients]


@dataclass(frozen=True, eq=False)
class Varying:
    """Steady times with per-round noise, slow drift, and spells of being busy.

    In round r client i takes t_i · exp(σ z − σ²/2) · exp(d sin(2π (r/P + φ_i))) · (b if busy), with
    z standard normal. The noise has mean 1; the drift's phase φ_i differs between clients.

    Parameters
    ----------
    usual : array of N, seconds
        t_i.
    seeds : Seeds
        The noise of a round and client depends on these alone, in whatever order it is asked for.
    noise : float ≥ 0
        σ, the standard deviation of the logarithm.
    drift, period : float ≥ 0, float > 0
        d and P in rounds: over a period the time swings by factors exp(±d).
    busy, busy_factor : float in [0, 1), float ≥ 1
        Share of rounds in which a client is busy with something else, and how much slower it is.

    Examples
    --------
    >>> times = Varying(np.array([1.0, 2.0]), Seeds(0))  # nothing varies
    >>> times.at(3, np.array([1]))
    array([2.])
    """

    usual: FloatArray
    seeds: Seeds
    noise: float = 0.0
    drift: float = 0.0
    period: float = 100.0
    busy: float = 0.0
    busy_factor: float = 10.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "usual", positive_column("times", self.usual))
        for name, fine, condition in (
            ("noise", 0 <= self.noise < np.inf, "be at least 0"),
            ("drift", 0 <= self.drift < np.inf, "be at least 0"),
            ("period", 0 < self.period < np.inf, "be positive"),
            ("busy", 0 <= self.busy < 1, "be at least 0 and below 1"),
            ("busy_factor", 1 <= self.busy_factor < np.inf, "be at least 1"),
        ):
            if not fine:
                value = getattr(self, name)
                raise InputError(f"{name} must {condition}, got {value}; see Varying")

    def at(self, round_index: int, clients: IntArray) -> FloatArray:
        """Return this round's times of these clients only: O(K), not O(N)."""
        factors = np.array([self._factor(round_index, int(client)) for client in clients])
        times: FloatArray = self.usual[clients] * factors
        return times

    def _factor(self, round_index: int, client: int) -> float:
        rng = self.seeds.stream("time", round_index, client)
        phase = self.seeds.stream("time-phase", client).random() if self.drift else 0.0
        log = self.noise * rng.standard_normal() - self.noise**2 / 2
        log += self.drift * np.sin(2 * np.pi * (round_index / self.period + phase))
        if rng.random() < self.busy:
            log += np.log(self.busy_factor)
        return float(np.exp(log))
