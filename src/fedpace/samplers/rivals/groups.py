"""FederatedScope's group sampler: clients of similar speed, each once per epoch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

import numpy as np

from fedpace.checks import FloatArray, IntArray, positive_count
from fedpace.samplers.rivals.rule import (
    RuleDesign,
    extend,
    known_times,
    proportional_draw,
    update_times,
)
from fedpace.sampling.design import Draw
from fedpace.servers.average import Mean
from fedpace.training.history import Row
from fedpace.training.sampler import BaseSampler, SamplerContext


class GroupState(TypedDict):
    """The epoch, which clients it has drawn so far (0 or 1 each), and their times."""

    epoch: int
    done: FloatArray
    seconds: FloatArray


@dataclass(frozen=True)
class Groups(BaseSampler):
    """Draw K clients at a time from bins of similar speed [Xie23].

    Clients are sorted by speed into ten bins. In every epoch the bins come in a random order,
    shuffled within, and each round takes the next K clients present, each once per epoch. Mean of
    the updates by data size: **biased** within an epoch, as weights are not corrected for the
    clients that are drawn together.

    Source: FederatedScope, `core/sampler.py`, GroupSampler (VLDB 2023). Differs from it: an epoch
    ends when all clients present have been drawn; where times are not known beforehand, those
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

    def design(self, state: GroupState, context: SamplerContext) -> RuleDesign:
        """Return the rule of this round; only the order of the epoch is random."""
        seconds = known_times(state["seconds"], context)
        done = extend(state["done"], context.n, 0.0) > 0

        def rule(clients: IntArray, rng: np.random.Generator) -> Draw:  # noqa: ARG001
            waiting = clients[~done[clients]]
            anew = not waiting.size
            order = self._order(seconds, context.chance, state["epoch"] + anew)
            mine = order[np.isin(order, clients if anew else waiting)]
            return proportional_draw(mine[: self.k], context.weights)

        return RuleDesign(context.n, rule)

    def observe(self, state: GroupState, row: Row) -> GroupState:
        """Record the drawn clients; one that was drawn before begins a new epoch."""
        drawn = np.append(row.clients, row.missing)
        if not drawn.size:
            return state
        state["seconds"] = update_times(state["seconds"], row)
        done = extend(state["done"], state["seconds"].size, 0.0)
        if done[drawn].any():
            state["epoch"] += 1
            done[:] = 0.0
        done[drawn] = 1.0
        state["done"] = done
        return state

    def _order(self, seconds: FloatArray, chance: float, epoch: int) -> IntArray:
        """Return all clients in the order of an epoch, seeded by the run's `chance`."""
        rng = np.random.default_rng([int(chance * 2**53), epoch])
        bins = np.array_split(np.argsort(seconds, kind="stable"), self.bins)
        return np.concatenate([rng.permutation(bins[b]) for b in rng.permutation(self.bins)])
