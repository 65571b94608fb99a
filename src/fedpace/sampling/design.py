"""Designs: ways to draw clients, and one round's draw with its aggregation weights."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpace.adapt import adapt, default_property, defines, refuse_misspelt
from fedpace.checks import (
    FloatArray,
    IntArray,
    one_per_client,
    positive_column,
    positive_count,
    positive_probabilities,
    shares,
    short_repr,
)
from fedpace.errors import InputError
from fedpace.profile import Profile
from fedpace.sampling.bound import expected_round_time, variance_term
from fedpace.sampling.solvers.solution import Solution


class Draw(NamedTuple):
    """One round's distinct clients, ascending, and the weights of their updates.

    The aggregate is w + Σ_i weights_i (w_i − w), for every design. A client drawn m times
    is listed once, with m times the weight. `tier` is the tier that was drawn, −1 for a design
    without tiers. If `take` is given, the round ends after that number of replies.
    """

    clients: IntArray
    weights: FloatArray
    tier: int = -1
    take: int | None = None


class Design(Protocol):
    """What an object must have to be used as a design; `BaseDesign` documents each member.

    The aggregate must be unbiased: E[Σ weights_i Δ_i] = Σ p_i Δ_i.
    """

    def draw(self, rng: np.random.Generator) -> Draw: ...  # noqa: D102

    def expected_round_time(self, times: ArrayLike) -> float: ...  # noqa: D102

    def variance_term(self, profile: Profile) -> float: ...  # noqa: D102

    def among(self, present: NDArray[np.bool_]) -> Design: ...  # noqa: D102

    @property
    def n(self) -> int: ...  # noqa: D102

    @property
    def largest_weight(self) -> float: ...  # noqa: D102


class BaseDesign:
    """Base class of designs: every hook with its default.

    A design must be unbiased: E[Σ weights_i Δ_i] = Σ p_i Δ_i. Define `draw`, `n`,
    `expected_round_time`, `variance_term`, `among` and `largest_weight`; `columns` and `solution`
    are optional. Objects that have these without subclassing are accepted, too: see `as_design`.

    Attributes
    ----------
    q : array of N
        The probabilities of a single draw. A design without a fixed distribution, such as full
        participation, raises AttributeError; `columns().get("q")` gives None there.
    solution : Solution or None
        The result of the solver that found the probabilities.
    """

    solution: Solution | None = None

    @default_property
    def q(self) -> FloatArray:
        """The probabilities of a single draw."""
        problem = "has no probabilities q: it does not draw from a fixed distribution"
        raise AttributeError(f"{type(self).__name__} {problem}")

    @default_property
    def n(self) -> int:
        """The number of clients that the design was made for, present or not."""
        raise NotImplementedError(_undefined(self, "n"))

    def draw(self, rng: np.random.Generator) -> Draw:
        """Draw the clients of one round."""
        raise NotImplementedError(_undefined(self, "draw"))

    def expected_round_time(self, times: ArrayLike) -> float:
        """Return the expected time of the slowest client drawn."""
        raise NotImplementedError(_undefined(self, "expected_round_time"))

    def variance_term(self, profile: Profile) -> float:
        """Return S, what sampling adds to the convergence bound."""
        raise NotImplementedError(_undefined(self, "variance_term"))

    def among(self, present: NDArray[np.bool_]) -> Design:
        """Return the same design restricted to the clients that are present.

        p and q are divided by their sums over those present; clients keep their numbers. Clients
        that joined after the design was made are not drawn.
        """
        raise NotImplementedError(_undefined(self, "among"))

    @property
    def largest_weight(self) -> float:
        """The largest weight that a single draw can give one client's update."""
        raise NotImplementedError(_undefined(self, "largest_weight"))

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return one array per column of the table of clients, "q" among them if there is one."""
        try:
            return {"q": self.q}
        except AttributeError:
            return {}


def as_design(value: object, *, argument: str = "design") -> BaseDesign:
    """Return a design, or any object with its methods, as a `BaseDesign`; see `fedpace.adapt`."""
    refuse_misspelt(value, BaseDesign, argument=argument)
    if not defines(value, BaseDesign, "draw"):
        got = f"{type(value).__name__}; define it, choose another scheme, or mode asynchronous"
        raise InputError(f"{argument} must have `draw` in synchronous training, got {got}")
    return adapt(value, BaseDesign, argument=argument, required=("n",))


def _undefined(design: object, name: str) -> str:
    return f"{type(design).__name__} does not define {name}; see fedpace.BaseDesign"


@dataclass(frozen=True, eq=False)
class Everyone(BaseDesign):
    """Full participation: every client, every round, with its own weight p_i.

    >>> draw = Everyone([0.75, 0.25]).draw(np.random.default_rng(0))
    >>> draw.clients, draw.weights
    (array([0, 1]), array([0.75, 0.25]))
    """

    weights: FloatArray

    def __init__(self, weights: ArrayLike) -> None:
        object.__setattr__(self, "weights", shares(weights))

    def draw(self, rng: np.random.Generator) -> Draw:
        """Return all clients; `rng` is not used."""
        return Draw(np.arange(self.weights.size), self.weights)

    def expected_round_time(self, times: ArrayLike) -> float:
        """Return the time of the slowest client."""
        return float(one_per_client("times", positive_column("times", times), self.n).max())

    def variance_term(self, profile: Profile) -> float:
        """Return 0: nothing is sampled."""
        return 0.0

    def among(self, present: ArrayLike) -> BaseDesign:
        """Return full participation of the clients that are present."""
        clients = present_clients(present, self.weights)
        return Among(Everyone(normalise(self.weights[clients])), clients, self.n)

    @property
    def n(self) -> int:
        """The number of clients."""
        return self.weights.size

    @property
    def largest_weight(self) -> float:
        """The largest p_i."""
        return float(self.weights.max())


@dataclass(frozen=True, eq=False)
class WithReplacement(BaseDesign):
    """Draw K times with replacement from q, and weight by p_i / (K q_i) [Luo22, Lemma 1].

    Parameters
    ----------
    q : array of N, > 0, sums to 1
        Probabilities.
    k : int ≥ 1
        K, the number of draws.
    weights : array of N
        p_i.
    solution : Solution, optional
        The result of the solver that found q.

    Examples
    --------
    >>> design = WithReplacement([0.5, 0.5], k=4, weights=[0.75, 0.25])
    >>> draw = design.draw(np.random.default_rng(1))
    >>> draw.clients, draw.weights
    (array([0, 1]), array([0.375, 0.375]))

    One draw of the first client, weight 1 · 0.75/(4 · 0.5), three of the second.
    """

    q: FloatArray
    k: int
    weights: FloatArray
    solution: Solution | None

    def __init__(
        self, q: ArrayLike, k: int, weights: ArrayLike, *, solution: Solution | None = None
    ) -> None:
        p = shares(weights)
        object.__setattr__(self, "q", positive_probabilities(q, p.size, "drawn"))
        object.__setattr__(self, "k", positive_count("k", k))
        object.__setattr__(self, "weights", p)
        object.__setattr__(self, "solution", solution)

    @cached_property
    def _cdf(self) -> FloatArray:
        return np.cumsum(self.q)

    def draw(self, rng: np.random.Generator) -> Draw:
        """Draw K clients in O(K log N)."""
        uniform = rng.random(self.k) * self._cdf[-1]
        drawn = np.searchsorted(self._cdf, uniform, side="right")
        clients, counts = np.unique(drawn, return_counts=True)
        return Draw(clients, counts * self.weights[clients] / (self.k * self.q[clients]))

    def expected_round_time(self, times: ArrayLike) -> float:
        """Return the exact expected slowest of K draws."""
        return expected_round_time(self.q, times, self.k)

    def variance_term(self, profile: Profile) -> float:
        """Return S(q)."""
        return variance_term(self.q, profile.weights, profile.grad_norms)

    def among(self, present: ArrayLike) -> BaseDesign:
        """Return K draws from q restricted to the clients that are present.

        If the absent clients hold a larger share of the data than of the draws, a weight may exceed
        the largest weight of the full design; q is then raised so that no weight does.
        """
        clients = present_clients(present, self.weights)
        q, weights = normalise(self.q[clients]), normalise(self.weights[clients])
        q = raise_to_floors(q, weights / max(self.k * self.largest_weight, 1.0))
        return Among(WithReplacement(q, self.k, weights), clients, self.n)

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return q_i and the aggregation weight of one draw, p_i / (K q_i)."""
        return {"q": self.q, "aggregation_weight": self.weights / (self.k * self.q)}

    @property
    def n(self) -> int:
        """The number of clients."""
        return self.weights.size

    @property
    def largest_weight(self) -> float:
        """The largest p_i / (K q_i)."""
        return float((self.weights / (self.k * self.q)).max())


@dataclass(frozen=True, eq=False)
class Among(BaseDesign):
    """Draw from a subset of clients; they and their tiers keep their numbers in the full fleet."""

    design: Design
    clients: IntArray
    n: int
    tiers: IntArray | None = None

    def draw(self, rng: np.random.Generator) -> Draw:
        """Draw as the inner design does."""
        draw = self.design.draw(rng)
        tier = draw.tier if self.tiers is None else int(self.tiers[draw.tier])
        return draw._replace(clients=self.clients[draw.clients], tier=tier)

    def expected_round_time(self, times: ArrayLike) -> float:
        """Return the inner design's; `times` has one entry for every client of the fleet."""
        everyone = one_per_client("times", positive_column("times", times), self.n)
        return self.design.expected_round_time(everyone[self.clients])

    def variance_term(self, profile: Profile) -> float:
        """Return the inner design's; `profile` is that of the full fleet."""
        weights = normalise(profile.weights[self.clients])
        inner = Profile(weights, profile.times[self.clients], profile.grad_norms[self.clients])
        return self.design.variance_term(inner)

    def among(self, present: ArrayLike) -> BaseDesign:
        """Return the inner design among its clients that are present."""
        inner = self.design.among(_truth_values(present, self.n)[self.clients])
        if not isinstance(inner, Among):
            return Among(inner, self.clients, self.n, self.tiers)
        tiers = self.tiers
        if inner.tiers is not None:
            tiers = inner.tiers if tiers is None else tiers[inner.tiers]
        return Among(inner.design, self.clients[inner.clients], self.n, tiers)

    @property
    def largest_weight(self) -> float:
        """The inner design's."""
        return self.design.largest_weight


def _truth_values(present: ArrayLike, n: int) -> NDArray[np.bool_]:
    """Return which of n clients are present; entries beyond n joined later and are ignored."""
    try:
        array = np.asarray(present)
    except ValueError:  # rows of different length
        array = np.asarray(None)
    if array.dtype != np.bool_ or array.ndim != 1 or array.size < n:
        raise InputError(
            f"present must be one truth value per client, got {short_repr(present)} for {n} "
            "clients; give an array of True and False"
        )
    return array[:n]


def present_clients(present: ArrayLike, weights: FloatArray) -> IntArray:
    """Return the numbers of the clients that are present."""
    clients = np.flatnonzero(_truth_values(present, weights.size))
    if clients.size == 0:
        raise InputError("present must have at least one client, got none; wait for clients")
    return clients


def normalise(values: FloatArray) -> FloatArray:
    """Return the values over their sum."""
    parts: FloatArray = values / values.sum()
    return parts


def raise_to_floors(q: FloatArray, least: FloatArray) -> FloatArray:
    """Return probabilities of at least `least`, Σ least ≤ 1, taking from those with more.

    >>> raise_to_floors(np.array([0.1, 0.3, 0.6]), least=np.array([0.2, 0.2, 0.2]))
    array([0.2 , 0.28, 0.52])
    """
    if not (q < least).any():
        return q
    spare = np.maximum(q - least, 0.0)
    scale = (1 - least.sum()) / max(float(spare.sum()), np.finfo(float).tiny)
    return normalise(least + scale * spare)
