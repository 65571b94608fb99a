"""TiFL: tiers of similar speed, drawn by their accuracy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

import numpy as np

from fedpace.checks import FloatArray, IntArray, positive_count
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
