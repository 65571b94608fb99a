"""Tiered designs: draw a tier of similar speed, then some of its clients, systematically."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpace.checks import (
    FloatArray,
    IntArray,
    column,
    one_per_client,
    positive_column,
    positive_count,
    refuse_first,
    shares,
    short_repr,
    sum_to_one,
)
from fedpace.errors import InputError
from fedpace.profile import Profile
from fedpace.sampling.design import (
    Among,
    BaseDesign,
    Draw,
    normalise,
    present_clients,
    raise_to_floors,
)
from fedpace.sampling.order import stable_order
from fedpace.sampling.solvers.solution import Solution

# Places on the circle nearer to each other than this, times K, are one: they differ by rounding.
ROUNDING = 1e-13


@dataclass(frozen=True, eq=False)
class Outcomes:
    """Hold the samples of systematic draws, and which of them each client is in.

    A draw with the number u in [0, 1) takes the clients in whose part of the cumulated π one of
    u, u + 1, u + 2, … falls. So as u goes round, client i is in from where π_1 + … + π_{i−1} ends
    to where π_i ends, modulo 1: one run of samples, or two where it passes 0.

    Attributes
    ----------
    low, high : arrays of M
        The u that give each sample; M is at most the number of clients, plus one for each tier.
    tier : integers of M
        Whose sample it is, ascending.
    start, end, who : integers
        Client `who` is in samples start, …, end − 1. A client may have two such runs, or none.
    """

    low: FloatArray
    high: FloatArray
    tier: IntArray
    start: IntArray
    end: IntArray
    who: IntArray

    @classmethod
    def of(cls, cumulated: Sequence[FloatArray]) -> Outcomes:
        """Return the samples of each tier, given the cumulated π of its clients.

        >>> outcomes = Outcomes.of([np.array([1.0, 1.5, 2.0]), np.array([1.0])])
        >>> outcomes.low, outcomes.high, outcomes.tier
        (array([0. , 0.5, 0. ]), array([0.5, 1. , 1. ]), array([0, 0, 1]))
        >>> outcomes.sums(np.array([1.0, 2.0, 4.0, 8.0]))
        array([3., 5., 8.])
        >>> outcomes.largest(np.array([3.0, 5.0, 2.0, 1.0]))
        array([5., 3., 1.])
        """
        return cls.of_joined(np.concatenate(cumulated), np.array([each.size for each in cumulated]))

    @classmethod
    def of_joined(cls, ends: FloatArray, sizes: IntArray) -> Outcomes:
        """As `of`, given the cumulated π of all tiers one after the other, and their sizes."""
        tiers = np.repeat(np.arange(sizes.size), sizes)
        opening = np.cumsum(sizes) - sizes
        near = ROUNDING * max(float(ends.max()), 1.0)
        low, counts, last = _samples(ends % 1.0, tiers, opening, near)
        base = np.cumsum(counts) - counts
        high = np.append(low[1:], 1.0)
        high[base + counts - 1] = 1.0
        first = np.append(0, last[:-1])
        first[opening] = base
        width = np.diff(ends, prepend=0.0)
        width[opening] = ends[opening]
        # Who ends where it began is in all samples, or, with a π of mere rounding, in none.
        whole = (width >= 1 - near) | ((first == last) & (width > 0.5))
        bottom, top = base[tiers], (base + counts)[tiers]
        split = np.flatnonzero(~whole & (first > last))
        end = np.where(whole | (first > last), top, last)
        start = np.concatenate([np.where(whole, bottom, first), bottom[split]])
        end = np.concatenate([end, last[split]])
        who = np.concatenate([np.arange(ends.size), split])
        some = end > start
        number = np.repeat(np.arange(sizes.size), counts)
        return cls(low, high, number, start[some], end[some], who[some])

    def sums(self, values: FloatArray) -> FloatArray:
        """Return the sum of the values of those in each sample."""
        steps = np.zeros(self.low.size + 1)
        np.add.at(steps, self.start, values[self.who])
        np.subtract.at(steps, self.end, values[self.who])
        return np.cumsum(steps[:-1])

    def largest(self, values: FloatArray) -> FloatArray:
        """Return the largest of the values ≥ 0 of those in each sample.

        A run is two overlapping halves whose length is a power of two. Each level of such halves
        is passed on to the next lower, down to single samples.
        """
        levels = np.frexp(self.end - self.start)[1] - 1
        above = np.zeros(self.low.size)
        for level in range(int(levels.max()), -1, -1):
            here = levels == level
            np.maximum.at(above, self.start[here], values[self.who[here]])
            np.maximum.at(above, self.end[here] - 2**level, values[self.who[here]])
            if level:
                half = 2 ** (level - 1)
                below = above.copy()
                np.maximum(below[half:], above[:-half], out=below[half:])
                above = below
        return above

    def mean(self, of_samples: FloatArray) -> FloatArray:
        """Return the mean over the samples of each tier."""
        return totals(self.tier, (self.high - self.low) * of_samples)


def totals(groups: IntArray, values: FloatArray, count: int = 0) -> FloatArray:
    """Return the sum of the values of each group, of which there are at least `count`."""
    return np.asarray(np.bincount(groups, values, count), dtype=np.float64)


def _samples(
    place: FloatArray, tiers: IntArray, opening: IntArray, near: float
) -> tuple[FloatArray, IntArray, IntArray]:
    """Return where each sample begins, how many a tier has, and the sample from each place on.

    A tier has one sample from u = 0 on, and one more from every other place on.
    """
    order = stable_order(place)
    order = order[stable_order(tiers[order])]
    ranked = place[order]
    before = np.append(0.0, ranked[:-1])
    before[opening] = 0.0
    kept = (ranked - before > near) & (ranked < 1 - near)
    at = np.cumsum(kept) + tiers
    counts = np.bincount(tiers[kept], minlength=opening.size) + 1
    low = np.zeros(int(counts.sum()))
    low[at[kept]] = ranked[kept]
    sample = np.empty_like(at)
    sample[order] = at
    round_trip = place >= 1 - near
    sample[round_trip] = (np.cumsum(counts) - counts)[tiers[round_trip]]
    return low, counts, sample


# Most zeros with which parts are padded to the same size, as a factor of what is there.
PADDED = 4
# Sums of inclusion probabilities this close to an integer are treated as that integer.
NEAR_INTEGER = 1e-9
# Smallest inclusion probability that `inclusion_probabilities` returns. Clients with smaller ones
# do not change the sum K in float64, which would leave them 0, and their weights infinite.
LEAST_INCLUSION = 1e-25


@dataclass(frozen=True, eq=False)
class Tiered(BaseDesign):
    """Draw tier g with chance m_g, then client i of it with probability π_i, never twice.

    Within a tier the draw is systematic: one uniform number u, and the clients in whose part of
    the cumulated π the points u, u + 1, u + 2, … fall. The weight p_i / (m_g π_i) makes it
    unbiased, for every partition and all chances. There are at most N + G different draws, so
    times, weights and moments are exact: see `samples`.

    Parameters
    ----------
    tiers : integers of N, from 0 to G − 1
        The tier of each client.
    chances : array of G, > 0, sums to 1
        m_g.
    inclusion : array of N, in (0, 1]
        π_i, given that its tier is drawn.
    weights : array of N
        p_i.
    k : int ≥ 1, optional
        K, the clients per round; by default the most that a tier draws.
    turn : int, optional
        Draw this tier with certainty; weights stay the same. The caller must give tier g the share
        m_g of the turns.
    solution : Solution, optional
        The result of the solver that found the tiers.

    Examples
    --------
    >>> design = Tiered([0, 0, 1], chances=[0.8, 0.2], inclusion=[1, 1, 1], weights=[0.5, 0.3, 0.2])
    >>> for chance, draw in design.samples():
    ...     print(chance, draw.clients, draw.weights)
    0.8 [0 1] [0.625 0.375]
    0.2 [2] [1.]
    """

    tiers: IntArray
    chances: FloatArray
    inclusion: FloatArray
    weights: FloatArray
    k: int
    turn: int | None
    solution: Solution | None

    def __init__(
        self,
        tiers: ArrayLike,
        chances: ArrayLike,
        inclusion: ArrayLike,
        weights: ArrayLike,
        *,
        k: int | None = None,
        turn: int | None = None,
        solution: Solution | None = None,
    ) -> None:
        p = shares(weights)
        m = _chances(chances)
        numbers = _tier_numbers(tiers, p.size, m.size)
        pi = one_per_client("inclusion", positive_column("inclusion", inclusion), p.size)
        refuse_first("inclusion", pi, pi > 1 + NEAR_INTEGER, "be at most 1", "draw a client once")
        for name, value in (
            ("tiers", numbers), ("chances", m), ("inclusion", np.minimum(pi, 1)), ("weights", p)
        ):  # fmt: skip
            value.setflags(write=False)
            object.__setattr__(self, name, value)
        object.__setattr__(self, "k", _room(totals(numbers, pi), k))
        object.__setattr__(self, "turn", None if turn is None else _turn(turn, m.size))
        object.__setattr__(self, "solution", solution)

    @property
    def n(self) -> int:
        """The number of clients."""
        return self.weights.size

    @property
    def q(self) -> FloatArray:
        """The share of each client in all draws: m_g π_i over its sum."""
        return normalise(self._marginals)

    @property
    def largest_weight(self) -> float:
        """The largest p_i / (m_g π_i)."""
        return float((self.weights / self._marginals).max())

    @property
    def largest_round_weight(self) -> float:
        """The largest possible sum of the weights of a round."""
        weights = self.weights / self._marginals
        return float(self.outcomes.sums(weights[self.order]).max())

    @property
    def round_weights(self) -> FloatArray:
        """P_g / m_g, the expected sum of the weights in a round of each tier."""
        return totals(self.tiers, self.weights) / self.chances

    @cached_property
    def order(self) -> IntArray:
        """The clients tier by tier, ascending within each."""
        return stable_order(self.tiers)

    @cached_property
    def outcomes(self) -> Outcomes:
        """All samples, tier by tier, with clients in the order of `order`."""
        return Outcomes.of_joined(self._cumulated, np.diff(self._edges))

    def draw(self, rng: np.random.Generator) -> Draw:
        """Draw a tier, unless `turn` is set, and clients from it."""
        at, u = rng.random(2)
        g = int(np.searchsorted(self._ends, at * self._ends[-1], side="right"))
        return self._sample(min(g, self.chances.size - 1) if self.turn is None else self.turn, u)

    def with_turn(self, tier: int) -> Tiered:
        """Return the same design with `turn` set to a tier, sharing all that is computed."""
        _ = self._cumulated, self._marginals, self._ends  # cached for the copies of all tiers
        design = copy(self)
        object.__setattr__(design, "turn", tier)
        return design

    def samples(self) -> Iterator[tuple[float, Draw]]:
        """Yield every possible draw with its probability, over all tiers, ignoring `turn`."""
        outcomes = self.outcomes
        for g, low, high in zip(outcomes.tier.tolist(), outcomes.low, outcomes.high, strict=True):
            yield float(self.chances[g] * (high - low)), self._sample(g, (low + high) / 2)

    def tier_times(self, times: ArrayLike) -> FloatArray:
        """Return the expected time of the slowest client drawn from each tier."""
        t = one_per_client("times", positive_column("times", times), self.n)
        return self.outcomes.mean(self.outcomes.largest(t[self.order]))

    def expected_round_time(self, times: ArrayLike) -> float:
        """Return Σ_g m_g T_g, or T_g if `turn` is set; exact."""
        if self.turn is None:
            return float(self.chances @ self.tier_times(times))
        t = one_per_client("times", positive_column("times", times), self.n)
        members = self._part(self.turn)
        alone = Outcomes.of([self._cumulated[members]])
        return float(alone.mean(alone.largest(t[self.order[members]]))[0])

    def variance_term(self, profile: Profile) -> float:
        """Return S = Σ_i p_i² G_i² (K / (m_g π_i) − K + 1).

        As for every design, S is K times the variance of the step, plus the squared length of
        its mean, for updates that are orthogonal to each other. If updates of a tier are similar,
        S is larger; `second_moment` is exact for known updates.
        """
        squares = (profile.weights * profile.grad_norms) ** 2
        return float(squares @ (1 + self.k * (1 / self._marginals - 1)))

    def second_moment(self, updates: ArrayLike) -> float:
        """Return E‖Σ weights_i Δ_i‖², exactly, for the updates Δ_i, of shape (N, P)."""
        rows = np.asarray(updates, dtype=np.float64)
        steps = ((chance, draw.weights @ rows[draw.clients]) for chance, draw in self.samples())
        return float(sum(chance * float(step @ step) for chance, step in steps))

    def among(self, present: ArrayLike) -> BaseDesign:
        """Return the tiers restricted to the clients that are present.

        The chance of a tier falls with the share of its data that is absent, so that rounds keep
        their weights up to a common factor, and free places go to the tier's present clients. If a
        tier's rounds would outweigh all those of the full fleet, its chance is raised. If the tier
        of `turn` is empty, a tier is drawn at random.
        """
        clients = present_clients(present, self.weights)
        held = totals(self.tiers, self.weights, self.chances.size)
        left = totals(self.tiers[clients], self.weights[clients], self.chances.size)
        kept = np.flatnonzero(left)
        chances = normalise(self.chances[kept] * left[kept] / held[kept])
        least = normalise(left[kept]) / max(float(self.round_weights.max()), 1.0)
        numbers = np.full(self.chances.size, -1)
        numbers[kept] = np.arange(kept.size)
        tiers = numbers[self.tiers[clients]]
        turn = None if self.turn is None or numbers[self.turn] < 0 else int(numbers[self.turn])
        inner = Tiered(
            tiers,
            raise_to_floors(chances, least),
            inclusion_probabilities(self.inclusion[clients], tiers, self.k),
            normalise(self.weights[clients]),
            k=self.k,
            turn=turn,
        )
        return Among(inner, clients, self.n, tiers=kept if self.chances.size > 1 else None)

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return shares of draws, aggregation weights, tiers and inclusion probabilities."""
        weights = self.weights / self._marginals
        columns = {"q": self.q, "aggregation_weight": weights}
        return {**columns, "tier": self.tiers, "inclusion": self.inclusion}

    @cached_property
    def _marginals(self) -> FloatArray:
        marginals: FloatArray = self.chances[self.tiers] * self.inclusion
        return marginals

    @cached_property
    def _ends(self) -> FloatArray:
        return np.cumsum(self.chances)

    @cached_property
    def _edges(self) -> IntArray:
        """Where each tier begins in `order`, and the end."""
        return np.append(0, np.cumsum(np.bincount(self.tiers, minlength=self.chances.size)))

    def _part(self, tier: int) -> slice:
        """Return the part of `order` that is a tier."""
        return slice(*self._edges[tier : tier + 2].tolist())

    @cached_property
    def _cumulated(self) -> FloatArray:
        """Cumulative π within each tier, in `order`; a total near an integer is set to it."""
        cumulated = cumulate(self.inclusion[self.order], self._edges)
        totals = cumulated[self._edges[1:] - 1]
        nearest = np.round(totals)
        near = np.abs(totals - nearest) < NEAR_INTEGER
        cumulated[self._edges[1:] - 1] = np.where(near, nearest, totals)
        return cumulated

    def _sample(self, tier: int, u: float) -> Draw:
        part = self._part(tier)
        members, cumulated = self.order[part], self._cumulated[part]
        points = np.arange(u, cumulated[-1])
        # Rounding may move the last point to the end, and two points into one part.
        places = np.minimum(np.searchsorted(cumulated, points, side="right"), members.size - 1)
        clients = members[np.unique(places)]
        number = tier if self.chances.size > 1 else -1
        return Draw(clients, self.weights[clients] / self._marginals[clients], number)


class Systematic(Tiered):
    """Draw client i with probability π_i, never twice in a round, and weight by p_i / π_i.

    Parameters
    ----------
    inclusion : array of N, in (0, 1]
        π_i; their sum is K, the clients in a round.
    weights, solution
        As in `Tiered`; this design has a single tier.

    Examples
    --------
    >>> design = Systematic([1.0, 0.5, 0.5], weights=[0.5, 0.25, 0.25])
    >>> [(chance, draw.clients.tolist()) for chance, draw in design.samples()]
    [(0.5, [0, 1]), (0.5, [0, 2])]
    """

    def __init__(
        self, inclusion: ArrayLike, weights: ArrayLike, *, solution: Solution | None = None
    ) -> None:
        n = np.size(weights)
        super().__init__(np.zeros(n, int), [1.0], inclusion, weights, solution=solution)


def cumulate(values: FloatArray, edges: IntArray) -> FloatArray:
    """Return the sums of the values from the beginning of each part on.

    Parts of similar size are added up as the rows of a matrix, padded with zeros.

    >>> cumulate(np.array([1.0, 2.0, 3.0, 4.0]), np.array([0, 1, 4]))
    array([1., 2., 5., 9.])
    """
    sizes = np.diff(edges)
    width = int(sizes.max())
    if sizes.size * width > PADDED * values.size:
        parts = pairwise(edges.tolist())
        return np.concatenate([np.cumsum(values[begin:end]) for begin, end in parts])
    filled = np.arange(width) < sizes[:, None]
    rows = np.zeros(filled.shape)
    rows[filled] = values
    sums: FloatArray = np.cumsum(rows, axis=1)[filled]
    return sums


def inclusion_probabilities(shape: FloatArray, tiers: IntArray, k: int) -> FloatArray:
    """Return π ∝ shape within each tier, at most 1, whose sum is K, or the tier if it is smaller.

    >>> inclusion_probabilities(np.array([8.0, 1.0, 1.0, 5.0]), np.array([0, 0, 0, 1]), k=2)
    array([1. , 0.5, 0.5, 1. ])
    """
    sizes = np.bincount(tiers)
    whole = (sizes <= k)[tiers]
    while not whole.all():
        free = ~whole
        places = k - np.bincount(tiers, whole)
        total = totals(tiers[free], shape[free], sizes.size)
        scale = np.divide(places, total, out=np.zeros(sizes.size), where=total > 0)
        joined = free & (shape * scale[tiers] >= 1)
        if not joined.any():
            return np.where(whole, 1.0, np.maximum(shape * scale[tiers], LEAST_INCLUSION))
        whole |= joined
    return np.ones(shape.size)


def _tier_numbers(tiers: ArrayLike, n: int, count: int) -> IntArray:
    values = one_per_client("tiers", column("tiers", tiers), n)
    wrong = (values != np.floor(values)) | (values < 0) | (values >= count)
    condition = f"be an integer from 0 to {count - 1}"
    refuse_first("tiers", values, wrong, condition, "give chances for each tier")
    numbers = values.astype(np.int64)
    if np.bincount(numbers, minlength=count).min() == 0:
        empty = int(np.argmin(np.bincount(numbers, minlength=count)))
        raise InputError(f"tiers must all have a client, got none in tier {empty}; leave it out")
    return numbers


def _chances(values: ArrayLike) -> FloatArray:
    chances = column("chances", values)
    if (least := float(chances.min())) <= 0:
        got = f"{least:g} for tier {int(np.argmin(chances))}; a tier never drawn biases the model"
        raise InputError(f"chances must be positive, got {got}")
    sum_to_one("chances", chances, "divide by the sum")
    return chances


def _room(taken: FloatArray, k: int | None) -> int:
    """Return K; raise InputError if a tier takes more clients, or may take none."""
    if (least := float(taken.min())) < 1 - NEAR_INTEGER:
        got = f"{least:g} for tier {int(np.argmin(taken))}; raise them, or join it with another"
        raise InputError(f"inclusion must sum to at least 1 in each tier, got {got}")
    fullest = int(np.ceil(taken.max() - NEAR_INTEGER))
    room = fullest if k is None else positive_count("k", k)
    if room < fullest:
        got = f"{room}; a tier draws up to {fullest} clients"
        raise InputError(f"k must be at least what the fullest tier takes, got {got}")
    return room


def _turn(turn: object, count: int) -> int:
    if isinstance(turn, bool) or not isinstance(turn, int | np.integer) or not 0 <= turn < count:
        got = f"{short_repr(turn)}; give one, or None to draw it"
        raise InputError(f"turn must be a tier from 0 to {count - 1}, got {got}")
    return int(turn)
