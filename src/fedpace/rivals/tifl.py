"""TiFL: tiers of like speed, chosen by their accuracy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

import numpy as np

from fedpace.checks import FloatArray, IntArray, positive_count
from fedpace.rivals.chosen import Chosen, by_size, durations, measured, without_replacement
from fedpace.rounds.backend import Probe
from fedpace.rounds.rows import Row
from fedpace.rounds.sampler import Known
from fedpace.rounds.seen import Seen
from fedpace.rounds.server import Mean
from fedpace.sampling.design import Draw


class TiersState(TypedDict):
    """Rounds so far, seconds of each client, and of each tier its credits, chance and accuracy.

    `latest` is the tier of the last round, −1 for none.
    """

    rounds: int
    seconds: FloatArray
    credits: FloatArray
    chances: FloatArray
    accuracies: FloatArray
    latest: int


def tiers_of(seconds: FloatArray, count: int) -> IntArray:
    """Return each client's tier, the fastest first, of sizes as equal as can be; NaN is slowest.

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
class Tifl:
    """Draw a tier, then K of its clients [Chai20].

    Five tiers by time. A tier has credits for its share of the rounds, and is drawn with a chance
    that is 1/5 at first. Every ten rounds all clients evaluate the model on what they hold back,
    which costs time; if the accuracy of the tier drawn last has not risen since, tiers of lower
    accuracy get higher chances, by rank. Mean of the updates by data size: **biased** to the tiers
    that are drawn more often.

    Source: HPDC 2020, and fltk-testbed's `tifl.py`. Differs from it: credits begin anew when all
    are used up, as a run may end by the clock; accuracies are asked for when they are needed, not
    after every round, and the time that takes is counted. Where times are not known beforehand,
    everyone trains in the first round, which is the profiling.

    Parameters
    ----------
    k : int ≥ 1
        Clients of a round.
    tiers, every : int ≥ 1
        Number of tiers, and the rounds after which accuracies are looked at.
    rounds : int ≥ 1
        That the credits are for.
    """

    k: int
    tiers: int = 5
    every: int = 10
    rounds: int = 500
    biased = True
    server = Mean()

    def __post_init__(self) -> None:
        for name in ("k", "tiers", "every", "rounds"):
            positive_count(name, getattr(self, name))

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

    def design(self, state: TiersState, known: Known) -> Chosen:
        """Return the rule of this round."""
        seconds = durations(state["seconds"], known)
        tiers = tiers_of(seconds, self.tiers)

        def rule(clients: IntArray, rng: np.random.Generator) -> Draw:
            if np.isnan(seconds).all():
                return by_size(clients, known.weights)
            chances = state["chances"]
            if self._looks(state) and known.probe is not None:
                found = self._accuracies(tiers, known.probe(clients, held_out=True))
                chances = self._chances(state, found)
            there = np.bincount(tiers[clients], minlength=self.tiers) > 0
            open_ones = there & (state["credits"] > 0)
            chances = np.where(open_ones if open_ones.any() else there, chances, 0.0)
            tier = int(rng.choice(self.tiers, p=chances / chances.sum()))
            mine = clients[tiers[clients] == tier]
            return by_size(without_replacement(mine, self.k, rng), known.weights, tier)

        return Chosen(known.n, rule)

    def see(self, state: TiersState, seen: Seen) -> TiersState:
        """Note the accuracies that were asked for before the draw, and what follows from them."""
        for probe in seen.probes:
            found = self._accuracies(tiers_of(durations(state["seconds"], seen), self.tiers), probe)
            state["chances"] = self._chances(state, found)
            state["accuracies"] = found
        return state

    def observe(self, state: TiersState, row: Row) -> TiersState:
        """Take a credit of the tier that was drawn."""
        if not row.round:
            return state
        state["rounds"] += 1
        state["seconds"] = measured(state["seconds"], row)
        state["latest"] = row.tier
        if row.tier >= 0:
            state["credits"][row.tier] -= 1
            if not (state["credits"] > 0).any():
                state["credits"][:] = -(-self.rounds // self.tiers)
        return state

    def _looks(self, state: TiersState) -> bool:
        return state["rounds"] > 0 and state["rounds"] % self.every == 0

    def _accuracies(self, tiers: IntArray, probe: Probe) -> FloatArray:
        """Return the mean accuracy of each tier's clients; −∞ where nobody says."""
        fine = np.isfinite(probe.accuracies)
        mine = tiers[probe.clients[fine]]
        counts = np.bincount(mine, minlength=self.tiers)
        sums = np.bincount(mine, probe.accuracies[fine], self.tiers)
        means: FloatArray = np.divide(
            sums, counts, out=np.full(self.tiers, -np.inf), where=counts > 0
        )
        return means

    def _chances(self, state: TiersState, found: FloatArray) -> FloatArray:
        """Return the chances of the tiers from now on."""
        latest = state["latest"]
        if latest >= 0 and found[latest] > state["accuracies"][latest]:
            return state["chances"]
        return chances_by_rank(found)
