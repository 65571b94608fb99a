"""FederatedScope's group sampler: clients of like speed, everyone once an epoch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

import numpy as np

from fedpace.checks import FloatArray, IntArray, positive_count
from fedpace.rivals.chosen import Chosen, by_size, durations, grown, measured
from fedpace.rounds.rows import Row
from fedpace.rounds.sampler import Known
from fedpace.rounds.server import Mean
from fedpace.sampling.design import Draw


class GroupState(TypedDict):
    """The epoch, who has had a turn in it (0 or 1 each), and the seconds of each client."""

    epoch: int
    done: FloatArray
    seconds: FloatArray


@dataclass(frozen=True)
class Groups:
    """Walk through bins of like speed, K clients at a time [Xie23].

    Clients are sorted by speed into ten bins. In every epoch the bins come in a random order,
    shuffled within, and each round takes the next K who are there: everyone once an epoch. Mean of
    the updates by data size: **biased** within an epoch, as weights are not corrected for who is
    drawn together.

    Source: FederatedScope, `core/sampler.py`, GroupSampler (VLDB 2023). Differs from it: an epoch
    ends when all who are there have had their turn; where times are not known beforehand, those
    measured so far sort the bins, and clients without any come last.

    Parameters
    ----------
    k, bins : int ≥ 1
        Clients of a round, and bins.
    """

    k: int
    bins: int = 10
    biased = True
    server = Mean()

    def __post_init__(self) -> None:
        positive_count("k", self.k)
        positive_count("bins", self.bins)

    def init(self, n: int) -> GroupState:
        """Return the state before the first round."""
        return GroupState(epoch=0, done=np.zeros(n), seconds=np.full(n, np.nan))

    def design(self, state: GroupState, known: Known) -> Chosen:
        """Return the rule of this round: no chance but that of the epoch's order is in it."""
        seconds = durations(state["seconds"], known)

        done = grown(state["done"], known.n, 0.0) > 0

        def rule(clients: IntArray, rng: np.random.Generator) -> Draw:  # noqa: ARG001
            waiting = clients[~done[clients]]
            anew = not waiting.size
            order = self._order(seconds, known.chance, state["epoch"] + anew)
            mine = order[np.isin(order, clients if anew else waiting)]
            return by_size(mine[: self.k], known.weights)

        return Chosen(known.n, rule)

    def observe(self, state: GroupState, row: Row) -> GroupState:
        """Note who has had a turn; where somebody has another, an epoch has begun."""
        drawn = np.append(row.clients, row.missing)
        if not drawn.size:
            return state
        state["seconds"] = measured(state["seconds"], row)
        done = grown(state["done"], state["seconds"].size, 0.0)
        if done[drawn].any():
            state["epoch"] += 1
            done[:] = 0.0
        done[drawn] = 1.0
        state["done"] = done
        return state

    def _order(self, seconds: FloatArray, chance: float, epoch: int) -> IntArray:
        """Return all clients in the order of an epoch, which the run's chance decides on."""
        rng = np.random.default_rng([int(chance * 2**53), epoch])
        bins = np.array_split(np.argsort(seconds, kind="stable"), self.bins)
        return np.concatenate([rng.permutation(bins[b]) for b in rng.permutation(self.bins)])
