"""How long a task of each client takes, and which clients are available, by the run's clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fedpace.adapt import adapt, default_property
from fedpace.checks import FloatArray, IntArray, positive_column
from fedpace.errors import InputError
from fedpace.seeds import Seeds


class Presence(NamedTuple):
    """Which clients can be drawn, after waiting for some seconds.

    `clients` has one truth value per client; None means everyone.
    """

    clients: NDArray[np.bool_] | None = None
    waited: float = 0.0


EVERYONE = Presence()
# Share of computing where times do not say: FedScale's devices with the defaults of a study.
COMPUTING = 0.9


class RoundTimes(Protocol):
    """What an object must have to give times; `BaseTimes` has all hooks and defaults."""

    @property
    def usual(self) -> FloatArray: ...  # noqa: D102

    def at(self, seconds: float, clients: IntArray, *, round_index: int) -> FloatArray: ...  # noqa: D102


class BaseTimes:
    """Base class of times: how fast each client is, and when it is available.

    Define `usual` and `at`. Without other hooks all clients are always available.
    """

    @default_property
    def usual(self) -> FloatArray:
        """The seconds that each client takes without noise, drift and busy spells."""
        raise NotImplementedError(f"{type(self).__name__} must define usual")

    def at(self, seconds: float, clients: IntArray, *, round_index: int) -> FloatArray:
        """Return the seconds that these clients take for a task received at `seconds`."""
        raise NotImplementedError(f"{type(self).__name__} must define at")

    def usual_at(self, seconds: float) -> FloatArray:  # noqa: ARG002
        """Return the usual times at `seconds`, for clients whose times change for good."""
        return self.usual

    @default_property
    def computing(self) -> FloatArray | float:
        """The share of the usual times that is computing, for all or for each client.

        It grows with the local steps; the rest, the link and whatever is fixed, does not.
        """
        return COMPUTING

    def computing_of(self, clients: IntArray, *, round_index: int) -> FloatArray:  # noqa: ARG002
        """Return the share of computing in the times of these clients' tasks."""
        shares: FloatArray = np.broadcast_to(self.computing, self.usual.size)[clients]
        return shares

    def present(self, seconds: float) -> Presence:  # noqa: ARG002
        """Return who is available at `seconds`, or the first to come and the wait for them."""
        return EVERYONE

    def leaves(self, seconds: float, clients: IntArray) -> FloatArray:  # noqa: ARG002
        """Return after how many seconds each of these clients leaves, even while it works."""
        return np.full(clients.size, np.inf)


def as_times(value: object) -> BaseTimes:
    """Return times, or any object with `usual` and `at`, as a `BaseTimes`."""
    return adapt(value, BaseTimes, argument="times", required=("usual", "at"))


@dataclass(frozen=True, eq=False)
class Steady(BaseTimes):
    """The same time in every round; all clients are always available.

    >>> Steady(np.array([1.0, 2.0, 4.0])).at(60.0, np.array([2, 0]), round_index=7)
    array([4., 1.])
    """

    usual: FloatArray
    computing: FloatArray | float = COMPUTING

    def __post_init__(self) -> None:
        object.__setattr__(self, "usual", positive_column("times", self.usual))

    def at(self, seconds: float, clients: IntArray, *, round_index: int) -> FloatArray:  # noqa: ARG002
        """Return the usual times."""
        return self.usual[clients]


@dataclass(frozen=True, eq=False)
class Varying(BaseTimes):
    """Steady times with noise, slow drift and busy spells; all clients are always available.

    A task that client i receives at s seconds takes
    t_i · exp(σ z − σ²/2) · exp(d sin(2π (s/P + φ_i))) · (b if busy), with z standard normal and
    drawn for each task. The noise has mean 1. The phase φ_i differs between clients.

    Parameters
    ----------
    usual : array of N, seconds
        t_i.
    seeds : Seeds
        Noise and spells depend only on these, not on the order of the calls.
    noise : float ≥ 0
        σ, the standard deviation of the logarithm.
    drift, period : float ≥ 0, float > 0
        d, and P in seconds: over a period the time varies by factors exp(±d).
    busy, busy_factor : float in [0, 1), float ≥ 1
        Share of its spells in which a client is busy, and how much slower it is then.
    spell : float > 0
        Seconds that a client stays busy, or free.
    computing : float or array of N, in [0, 1]
        Share of the usual times that grows with the local steps.

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
    computing: FloatArray | float = COMPUTING

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
