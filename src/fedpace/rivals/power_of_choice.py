"""Power-of-Choice: of some candidates, train those with the largest loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypedDict

import numpy as np

from fedpace.checks import FloatArray, IntArray, positive_count
from fedpace.errors import InputError
from fedpace.rivals.chosen import Chosen, even, grown, in_proportion
from fedpace.rounds.rows import Row
from fedpace.rounds.sampler import Known
from fedpace.rounds.server import Mean
from fedpace.sampling.design import Draw


class Losses(TypedDict):
    """The last loss that each client reported; ∞ before the first."""

    losses: FloatArray


@dataclass(frozen=True)
class PowerOfChoice:
    """Draw d candidates in proportion to their data, and train the K with the largest loss [Cho22].

    Candidates are different from each other. Plain mean of the updates: **biased** to clients of
    high loss. `rule` says where losses come from:

    - "all" (pow-d): each candidate evaluates the model on all its samples. That costs time, and
      the clock waits for the slowest candidate.
    - "batch" (cpow-d): on one mini-batch.
    - "last" (rpow-d): none is asked; the loss that it last reported counts, ∞ before the first.

    Source: AISTATS 2022. Differs from it: in rpow-d a client reports its loss at the model that it
    got, not the mean over its local steps. What an evaluation takes is in `Simulator.probe`.

    Parameters
    ----------
    k : int ≥ 1
        K, clients that train.
    d : int ≥ K, optional
        Candidates; twice K by default. The paper takes up to 5 K.
    rule : "all", "batch" or "last"
        Where losses come from.
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
        positive_count("k", self.k)
        positive_count("batch", self.batch)
        if self.d is not None and self.d < self.k:
            raise InputError(f"d must be at least k = {self.k}, got {self.d}; give {2 * self.k}")

    @property
    def reads_losses(self) -> bool:
        """Whether clients that train report their losses."""
        return self.rule == "last"

    def init(self, n: int) -> Losses:
        """Return the state before the first round."""
        return Losses(losses=np.full(n if self.reads_losses else 0, np.inf))

    def design(self, state: Losses, known: Known) -> Chosen:
        """Return the rule of this round."""
        wanted = 2 * self.k if self.d is None else self.d

        def rule(clients: IntArray, rng: np.random.Generator) -> Draw:
            candidates = np.sort(in_proportion(clients, known.weights[clients], wanted, rng))
            losses = self._losses(state, known, candidates)
            # A loss that is no number is no reason to train.
            order = np.argsort(-np.nan_to_num(losses, nan=-np.inf, posinf=np.inf), kind="stable")
            return even(candidates[order[: self.k]])

        return Chosen(known.n, rule)

    def observe(self, state: Losses, row: Row) -> Losses:
        """Note the losses of those who trained."""
        if self.reads_losses and row.losses.size:
            losses = grown(state["losses"], int(row.clients.max()) + 1, np.inf)
            losses[row.clients] = row.losses
            state["losses"] = losses
        return state

    def _losses(self, state: Losses, known: Known, candidates: IntArray) -> FloatArray:
        if self.rule == "last":
            return grown(state["losses"], known.n, np.inf)[candidates]
        if known.probe is None:
            return np.zeros(candidates.size)  # outside of a run nobody can be asked
        return known.probe(candidates, samples=self.batch if self.rule == "batch" else None).losses
