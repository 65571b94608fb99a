"""Power-of-Choice: train those of some random candidates with the largest loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypedDict

import numpy as np

from fedpace.checks import FloatArray, IntArray, positive_count
from fedpace.errors import InputError
from fedpace.samplers.rivals.rule import RuleDesign, equal_draw, extend, sample_proportionally
from fedpace.sampling.design import Draw
from fedpace.servers.average import Mean
from fedpace.training.history import Row
from fedpace.training.sampler import BaseSampler, SamplerContext


class Losses(TypedDict):
    """The last loss that each client reported; ∞ before the first."""

    losses: FloatArray


@dataclass(frozen=True)
class PowerOfChoice(BaseSampler):
    """Draw d candidates in proportion to their data, and train the K with the largest loss [Cho22].

    Candidates are distinct. Plain mean of the updates: **biased** to clients of high loss. `rule`
    selects the source of losses:

    - "all" (pow-d): each candidate evaluates the model on all its samples. This costs time: the
      clock waits for the slowest candidate.
    - "batch" (cpow-d): on one mini-batch.
    - "last" (rpow-d): the loss that the client last reported, ∞ before the first.

    Source: AISTATS 2022. Differs from it: in rpow-d a client reports its loss at the model that it
    received, not the mean over its local steps. For the time of an evaluation see
    `Simulator.probe`.

    Parameters
    ----------
    k : int ≥ 1
        K, clients that train.
    d : int ≥ K, optional
        Candidates; twice K by default. The paper takes up to 5 K.
    rule : "all", "batch" or "last"
        The source of losses.
    batch : int ≥ 1
        Samples of the mini-batch, for "batch".
    """

    k: int
    d: int | None = None
    rule: Literal["all", "batch", "last"] = "all"
    batch: int = 24
    biased = True
    server = Mean()

    def __post_init__(self) -> None:
        object.__setattr__(self, "reads_losses", self.rule == "last")
        positive_count("k", self.k)
        positive_count("batch", self.batch)
        if self.d is not None and self.d < self.k:
            raise InputError(f"d must be at least k = {self.k}, got {self.d}; give {2 * self.k}")

    def init(self, n: int) -> Losses:
        """Return the state before the first round."""
        return Losses(losses=np.full(n if self.reads_losses else 0, np.inf))

    def design(self, state: Losses, context: SamplerContext) -> RuleDesign:
        """Return the rule of this round."""
        wanted = 2 * self.k if self.d is None else self.d

        def rule(clients: IntArray, rng: np.random.Generator) -> Draw:
            shares = context.weights[clients]
            candidates = np.sort(sample_proportionally(clients, shares, wanted, rng))
            losses = self._losses(state, context, candidates)
            # A loss of NaN comes last.
            order = np.argsort(-np.nan_to_num(losses, nan=-np.inf, posinf=np.inf), kind="stable")
            return equal_draw(candidates[order[: self.k]])

        return RuleDesign(context.n, rule)

    def observe(self, state: Losses, row: Row) -> Losses:
        """Record the losses of the clients that trained."""
        if self.reads_losses and row.losses.size:
            losses = extend(state["losses"], int(row.clients.max()) + 1, np.inf)
            losses[row.clients] = row.losses
            state["losses"] = losses
        return state

    def _losses(self, state: Losses, context: SamplerContext, candidates: IntArray) -> FloatArray:
        if self.rule == "last":
            return extend(state["losses"], context.n, np.inf)[candidates]
        if context.probe is None:
            return np.zeros(candidates.size)  # outside of a run
        return context.probe(
            candidates, samples=self.batch if self.rule == "batch" else None
        ).losses
