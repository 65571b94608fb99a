"""Rivals that choose by speed: FedCS, FLANP and TiFL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

import numpy as np

from fedpace.checks import FloatArray, IntArray, positive_count
from fedpace.errors import InputError
from fedpace.samplers.rivals.rule import (
    RuleDesign,
    known_times,
    proportional_draw,
    sample_uniformly,
    update_times,
)
from fedpace.sampling.design import Draw
from fedpace.servers.average import Mean
from fedpace.training.backend import Probe
from fedpace.training.history import Row
from fedpace.training.sampler import BaseSampler, SamplerContext
from fedpace.training.updates import RoundUpdates


class Seconds(TypedDict):
    """The last time of each client; NaN before the first."""

    seconds: FloatArray


@dataclass(frozen=True)
class FedCS(BaseSampler):
    """Train those of some random candidates that finish within a deadline [Nishio19].

    A tenth of the clients, and at least 2 K, are candidates, drawn uniformly. The fastest are added
    until the deadline is reached or K are in; the fastest is always in. Mean of the updates by data
    size: **biased** to fast clients.

    Source: ICC 2019. Differs from it: links are not shared, so that a round lasts as long as its
    slowest client, where the paper adds up the uploads; at most K train, as in the other schemes;
    the deadline is a quantile of the times, where the paper gives minutes. Where times are not
    known beforehand, a client without any counts as fast, or it would never be drawn.

    Parameters
    ----------
    k : int ≥ 1
        Clients of a round, at most.
    candidates : float in (0, 1]
        Share of the clients that are candidates.
    deadline : float in (0, 1]
        Longest time of a round, as a quantile of all times.
    """

    k: int
    candidates: float = 0.1
    deadline: float = 0.5
    biased = True
    server = Mean()

    def __post_init__(self) -> None:
        positive_count("k", self.k)
        for name, value in (("candidates", self.candidates), ("deadline", self.deadline)):
            if not 0 < value <= 1:
                raise InputError(f"{name} must be in (0, 1], got {value}; give 0.5")

    def init(self, n: int) -> Seconds:
        """Return the state before the first round."""
        return Seconds(seconds=np.full(n, np.nan))

    def design(self, state: Seconds, context: SamplerContext) -> RuleDesign:
        """Return the rule of this round."""
        seconds = np.nan_to_num(known_times(state["seconds"], context), nan=0.0)
        limit = np.quantile(seconds, self.deadline)
        wanted = max(2 * self.k, int(np.ceil(self.candidates * context.n)))

        def rule(clients: IntArray, rng: np.random.Generator) -> Draw:
            asked = sample_uniformly(clients, wanted, rng)
            asked = asked[np.argsort(seconds[asked], kind="stable")]
            within = int(np.searchsorted(seconds[asked], limit, side="right"))
            return proportional_draw(asked[: min(max(within, 1), self.k)], context.weights)

        return RuleDesign(context.n, rule)

    def observe(self, state: Seconds, row: Row) -> Seconds:
        """Record times."""
        state["seconds"] = update_times(state["seconds"], row)
        return state


class Stage(TypedDict):
    """Clients of the stage, its rounds so far, and times of clients.

    `square` is the latest ‖Σ weights_i Δ_i / η‖², `first` that of the first round; NaN before.
    """

    count: int
    rounds: int
    first: float
    square: float
    seconds: FloatArray


@dataclass(frozen=True)
class Flanp(BaseSampler):
    """Train the K fastest to their statistical accuracy, then twice as many [Reisizadeh22].

    In a stage of n clients all of them train in every round, until ‖∇F_n(w)‖² ≤ c / n; then n
    doubles, up to all. Mean of the updates by data size: **biased** until all take part.

    Source: IEEE JSAIT 2022. Differs from it: the constants μ and V of c = 2 μ V n are not known, so
    c / K is the share `accuracy` of the first round's squared norm; the gradient is that of the
    aggregate over the learning rate; a stage ends after `longest` rounds at the latest;
    clients take plain local steps, without the tracking of FedGATE.

    Parameters
    ----------
    k : int ≥ 1
        Clients of the first stage.
    accuracy : float in (0, 1)
        The squared gradient norm at which the first stage ends, over that of the first round.
    longest : int ≥ 1
        Rounds of a stage, at most.
    """

    k: int
    accuracy: float = 0.25
    longest: int = 100
    biased = True
    server = Mean()

    def __post_init__(self) -> None:
        positive_count("k", self.k)
        positive_count("longest", self.longest)
        if not 0 < self.accuracy < 1:
            raise InputError(f"accuracy must be in (0, 1), got {self.accuracy}; give 0.25")

    def init(self, n: int) -> Stage:
        """Return the state before the first round."""
        seconds = np.full(n, np.nan)
        return Stage(count=self.k, rounds=0, first=np.nan, square=np.nan, seconds=seconds)

    def design(self, state: Stage, context: SamplerContext) -> RuleDesign:
        """Return the rule of this round."""
        seconds = known_times(state["seconds"], context)

        def rule(clients: IntArray, rng: np.random.Generator) -> Draw:  # noqa: ARG001
            fastest = clients[np.argsort(seconds[clients], kind="stable")]
            return proportional_draw(fastest[: state["count"]], context.weights)

        return RuleDesign(context.n, rule)

    def see(self, state: Stage, updates: RoundUpdates) -> Stage:
        """Record the norm of the gradient."""
        shares = updates.draw.weights / updates.draw.weights.sum()
        gradient = shares @ updates.reply.updates / updates.learning_rate
        state["square"] = float(gradient @ gradient)
        if not np.isfinite(state["first"]):
            state["first"] = state["square"]
        return state

    def observe(self, state: Stage, row: Row) -> Stage:
        """Double the clients when the stage has reached its accuracy."""
        state["seconds"] = update_times(state["seconds"], row)
        if not row.clients.size:
            return state
        state["rounds"] += 1
        enough = self.accuracy * state["first"] * self.k / state["count"]
        reached = state["rounds"] > 1 and state["square"] <= enough
        if (reached or state["rounds"] >= self.longest) and state["count"] < state["seconds"].size:
            state["count"] = min(2 * state["count"], state["seconds"].size)
            state["rounds"] = 0
        return state


class TiersState(TypedDict):
    """Rounds so far, the time of each client, and credits, chance and accuracy of each tier.

    `latest` is the tier of the last round, −1 for none.
    """

    rounds: int
    seconds: FloatArray
    credits: FloatArray
    chances: FloatArray
    accuracies: FloatArray
    latest: int


def tiers_of(seconds: FloatArray, count: int) -> IntArray:
    """Return each client's tier, the fastest first, of nearly equal sizes; NaN is slowest.

    >>> tiers_of(np.array([3.0, 1.0, 2.0, 9.0]), 2)
    array([1, 0, 0, 1])
    """
    tiers = np.empty(seconds.size, dtype=np.int64)
    for tier, clients in enumerate(np.array_split(np.argsort(seconds, kind="stable"), count)):
        tiers[clients] = tier
    return tiers


def chances_by_rank(accuracies: FloatArray) -> FloatArray:
    """Return T, T − 1, …, 1 over their sum, the largest for the tier of the lowest accuracy.

    >>> chances_by_rank(np.array([0.9, 0.5, 0.7]))
    array([0.16666667, 0.5       , 0.33333333])
    """
    count = accuracies.size
    chances = np.empty(count)
    chances[np.argsort(accuracies, kind="stable")] = np.arange(count, 0, -1)
    chances /= chances.sum()
    return chances


@dataclass(frozen=True)
class Tifl(BaseSampler):
    """Draw a tier, then K of its clients [Chai20].

    Five tiers by time. A tier has credits for its share of the rounds, and is drawn with a chance
    that is 1/5 at first. Every ten rounds all clients evaluate the model on held-out samples, which
    costs time; if the accuracy of the tier drawn last has not risen since, tiers of lower accuracy
    get higher chances, by rank. Mean of the updates by data size: **biased** to the tiers that are
    drawn more often.

    Source: HPDC 2020, and fltk-testbed's `tifl.py`. Differs from it: credits are renewed when all
    are used up, as a run may end by the clock; accuracies are measured when they are needed, not
    after every round, and their time counts. Where times are not known beforehand, all clients
    train in the first round, which is the profiling.

    Parameters
    ----------
    k : int ≥ 1
        Clients of a round.
    tiers, every : int ≥ 1
        Number of tiers, and the rounds between two measurements of accuracy.
    rounds : int ≥ 1
        Rounds that the credits are for.
    """

    k: int
    tiers: int = 5
    every: int = 10
    rounds: int = 500
    biased = True
    server = Mean()

    def __post_init__(self) -> None:
        positive_count("k", self.k)
        positive_count("tiers", self.tiers)
        positive_count("every", self.every)
        positive_count("rounds", self.rounds)

    def init(self, n: int) -> TiersState:
        """Return the state before the first round."""
        return TiersState(
            rounds=0,
            seconds=np.full(n, np.nan),
            credits=np.full(self.tiers, float(-(-self.rounds // self.tiers))),
            chances=np.full(self.tiers, 1 / self.tiers),
            accuracies=np.full(self.tiers, -np.inf),
            latest=-1,
        )

    def design(self, state: TiersState, context: SamplerContext) -> RuleDesign:
        """Return the rule of this round."""
        seconds = known_times(state["seconds"], context)
        tiers = tiers_of(seconds, self.tiers)

        def rule(clients: IntArray, rng: np.random.Generator) -> Draw:
            if np.isnan(seconds).all():
                return proportional_draw(clients, context.weights)
            chances = state["chances"]
            if self._is_due(state) and context.probe is not None:
                found = self._accuracies(tiers, context.probe(clients, held_out=True))
                chances = self._chances(state, found)
            there = np.bincount(tiers[clients], minlength=self.tiers) > 0
            open_ones = there & (state["credits"] > 0)
            chances = np.where(open_ones if open_ones.any() else there, chances, 0.0)
            tier = int(rng.choice(self.tiers, p=chances / chances.sum()))
            mine = clients[tiers[clients] == tier]
            return proportional_draw(sample_uniformly(mine, self.k, rng), context.weights, tier)

        return RuleDesign(context.n, rule)

    def see(self, state: TiersState, updates: RoundUpdates) -> TiersState:
        """Record the accuracies measured before the draw, and update the chances."""
        for probe in updates.probes:
            found = self._accuracies(
                tiers_of(known_times(state["seconds"], updates), self.tiers), probe
            )
            state["chances"] = self._chances(state, found)
            state["accuracies"] = found
        return state

    def observe(self, state: TiersState, row: Row) -> TiersState:
        """Use a credit of the tier that was drawn."""
        if not row.round:
            return state
        state["rounds"] += 1
        state["seconds"] = update_times(state["seconds"], row)
        state["latest"] = row.tier
        if row.tier >= 0:
            state["credits"][row.tier] -= 1
            if not (state["credits"] > 0).any():
                state["credits"][:] = -(-self.rounds // self.tiers)
        return state

    def _is_due(self, state: TiersState) -> bool:
        return state["rounds"] > 0 and state["rounds"] % self.every == 0

    def _accuracies(self, tiers: IntArray, probe: Probe) -> FloatArray:
        """Return the mean accuracy of each tier's clients; −∞ without any."""
        fine = np.isfinite(probe.accuracies)
        mine = tiers[probe.clients[fine]]
        counts = np.bincount(mine, minlength=self.tiers)
        sums = np.bincount(mine, probe.accuracies[fine], self.tiers)
        means: FloatArray = np.divide(
            sums, counts, out=np.full(self.tiers, -np.inf), where=counts > 0
        )
        return means

    def _chances(self, state: TiersState, found: FloatArray) -> FloatArray:
        """Return the new chances of the tiers."""
        latest = state["latest"]
        if latest >= 0 and found[latest] > state["accuracies"][latest]:
            return state["chances"]
        return chances_by_rank(found)
