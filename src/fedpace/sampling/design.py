"""A way to draw clients, and this round's draw with its aggregation weights."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpace.checks import (
    FloatArray,
    IntArray,
    one_per_client,
    positive_column,
    positive_count,
    positive_probabilities,
    shares,
    shown,
)
from fedpace.errors import InputError
from fedpace.profile import Profile
from fedpace.sampling.bound import variance_term
from fedpace.sampling.round_time import expected_round_time
from fedpace.sampling.solution import Solution


class Draw(NamedTuple):
    """One round's distinct clients, ascending, and the weights of their updates.

    The aggregate is w + Σ_i weights_i (w_i − w), for every design. A client drawn m times
    stands here once, with m times the weight. `tier` is the one that they were drawn from, −1
    where the design has none. Where more are asked than are needed, the round is over when `take`
    have answered.
    """

    clients: IntArray
    weights: FloatArray
    tier: int = -1
    take: int | None = None


class Design(Protocol):
    """A way to draw whose aggregate is unbiased: E[Σ weights_i Δ_i] = Σ p_i Δ_i."""

    def draw(self, rng: np.random.Generator) -> Draw:
        """Draw the clients of one round."""

    def expected_round_time(self, times: ArrayLike) -> float:
        """Return the expected time of the slowest client drawn."""

    def variance_term(self, profile: Profile) -> float:
        """Return S, what sampling adds to the convergence bound."""

    def among(self, present: NDArray[np.bool_]) -> Design:
        """Return the same way to draw from those present, for what they hold together.

        p and q are divided by their sums over those present; clients keep their numbers. Whoever
        came later than the design was made is not drawn.
        """

    @property
    def n(self) -> int:
        """The number of clients that it knows, present or not."""

    @property
    def largest_weight(self) -> float:
        """The largest weight that a single draw can give one client's update."""


@dataclass(frozen=True, eq=False)
class Everyone:
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

    def among(self, present: ArrayLike) -> Design:
        """Return everyone who is present."""
        clients = those_present(present, self.weights)
        return Among(Everyone(divided(self.weights[clients])), clients, self.n)

    @property
    def n(self) -> int:
        """The number of clients."""
        return self.weights.size

    @property
    def largest_weight(self) -> float:
        """The largest p_i."""
        return float(self.weights.max())


@dataclass(frozen=True, eq=False)
class WithReplacement:
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
        How q was found, where a solver found it.

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

    def among(self, present: ArrayLike) -> Design:
        """Return K draws from q restricted to those present.

        Where the others took more of the data with them than of the draws, a weight may come out
        larger than any that the whole fleet has; q is then raised to what keeps that cap.
        """
        clients = those_present(present, self.weights)
        q, weights = divided(self.q[clients]), divided(self.weights[clients])
        q = raised(q, weights / max(self.k * self.largest_weight, 1.0))
        return Among(WithReplacement(q, self.k, weights), clients, self.n)

    def columns(self) -> dict[str, FloatArray]:
        """Return what there is to say of each client, by name."""
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
class Among:
    """Draw from some of the clients; they and their tiers keep their numbers in the whole fleet."""

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
        """Return that of the inner design; `times` are the whole fleet's."""
        whole = one_per_client("times", positive_column("times", times), self.n)
        return self.design.expected_round_time(whole[self.clients])

    def variance_term(self, profile: Profile) -> float:
        """Return that of the inner design; `profile` is the whole fleet's."""
        weights = divided(profile.weights[self.clients])
        inner = Profile(weights, profile.times[self.clients], profile.grad_norms[self.clients])
        return self.design.variance_term(inner)

    def among(self, present: ArrayLike) -> Design:
        """Return the inner design among those who are also present here."""
        inner = self.design.among(_truth_values(present, self.n)[self.clients])
        if not isinstance(inner, Among):
            return Among(inner, self.clients, self.n, self.tiers)
        tiers = self.tiers
        if inner.tiers is not None:
            tiers = inner.tiers if tiers is None else tiers[inner.tiers]
        return Among(inner.design, self.clients[inner.clients], self.n, tiers)

    @property
    def largest_weight(self) -> float:
        """That of the inner design."""
        return self.design.largest_weight


def _truth_values(present: ArrayLike, n: int) -> NDArray[np.bool_]:
    """Return who of n clients is present; those beyond the end came later and are not drawn."""
    try:
        array = np.asarray(present)
    except ValueError:  # rows of different length
        array = np.asarray(None)
    if array.dtype != np.bool_ or array.ndim != 1 or array.size < n:
        raise InputError(
            f"present must be one truth value per client, got {shown(present)} for {n} clients; "
            "give an array of True and False"
        )
    return array[:n]


def those_present(present: ArrayLike, weights: FloatArray) -> IntArray:
    """Return the numbers of those present."""
    clients = np.flatnonzero(_truth_values(present, weights.size))
    if clients.size == 0:
        raise InputError("present must hold somebody, got nobody; wait for clients")
    return clients


def divided(values: FloatArray) -> FloatArray:
    """Return the values over their sum."""
    parts: FloatArray = values / values.sum()
    return parts


def raised(q: FloatArray, least: FloatArray) -> FloatArray:
    """Return probabilities of at least `least`, Σ least ≤ 1, at the cost of those with more.

    >>> raised(np.array([0.1, 0.3, 0.6]), least=np.array([0.2, 0.2, 0.2]))
    array([0.2 , 0.28, 0.52])
    """
    if not (q < least).any():
        return q
    spare = np.maximum(q - least, 0.0)
    scale = (1 - least.sum()) / max(float(spare.sum()), np.finfo(float).tiny)
    return divided(least + scale * spare)
