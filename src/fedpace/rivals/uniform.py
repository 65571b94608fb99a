"""Schemes that draw K different clients, all sets alike, and differ in what becomes of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypedDict

import numpy as np

from fedpace.checks import FloatArray, IntArray, positive_count
from fedpace.rivals.chosen import Chosen, grown, without_replacement
from fedpace.rounds.memory import Memory
from fedpace.rounds.rows import Row
from fedpace.rounds.sampler import Known
from fedpace.sampling.design import Draw


@dataclass(frozen=True)
class FedStale:
    """Draw K clients uniformly; the server remembers everyone's last update [Rodio24].

    w ← w + β Σ_i p_i h_i + Σ_drawn (N p_i / K) (Δ_i − β h_i), h_i the last update of client i:
    unbiased for any β. β = 1 is FedVARP [Jhunjhunwala22], β = 0 plain sampling. Memory helps less,
    and can hurt, where participation is very uneven and data are alike.

    Source: FedStale, ECAI 2024 (arXiv 2405.04171); FedVARP, UAI 2022. Differs from them: h_i is
    kept over its learning rate, so that a falling rate does not make it too large.

    Parameters
    ----------
    k : int ≥ 1
        Clients of a round.
    beta : float in [0, 1]
        β.
    """

    k: int
    beta: float = 0.5
    server: Memory = field(init=False, repr=False)

    def __post_init__(self) -> None:
        positive_count("k", self.k)
        object.__setattr__(self, "server", Memory(beta=self.beta))

    def init(self, n: int) -> Any:
        """Return None: the memory is the server's."""

    def design(self, state: Any, known: Known) -> Chosen:  # noqa: ARG002
        """Return the uniform draw, with the weights that make it unbiased."""
        p = known.weights

        def rule(clients: IntArray, rng: np.random.Generator) -> Draw:
            drawn = np.sort(without_replacement(clients, self.k, rng))
            # For what those who are there hold together, as every design does.
            weights = p[drawn] / p[clients].sum() * (clients.size / drawn.size)
            return Draw(drawn, weights)

        return Chosen(known.n, rule)

    def observe(self, state: Any, row: Row) -> Any:  # noqa: ARG002
        """Learn nothing."""
        return state


class Intervals(TypedDict):
    """One entry per client: the mean interval, how many, and the rounds of the one that runs."""

    mean: FloatArray
    count: FloatArray
    running: FloatArray


@dataclass(frozen=True)
class FedAU:
    """Draw K clients uniformly; weight by how seldom each has answered so far [Wang24].

    w ← w + Σ_drawn ω_i p_i Δ_i, where ω_i, an estimate of 1 / (probability to take part), is the
    running mean of the intervals between its rounds, cut at 50, and 1 before the first. **Biased**
    at first, and unbiased in the limit, without knowing who takes part how often.

    Source: ICLR 2024, and IBM/fedau. Differs from it: p_i stands for the paper's 1/N.

    Parameters
    ----------
    k, longest : int ≥ 1
        Clients of a round, and the longest interval that counts.
    """

    k: int
    longest: int = 50
    biased = True

    def __post_init__(self) -> None:
        positive_count("k", self.k)
        positive_count("longest", self.longest)

    def init(self, n: int) -> Intervals:
        """Return the state before the first round."""
        return Intervals(mean=np.ones(n), count=np.zeros(n), running=np.zeros(n))

    def design(self, state: Intervals, known: Known) -> Chosen:
        """Return the uniform draw, with the weights of now."""
        weights = known.weights * grown(state["mean"], known.n, 1.0)

        def rule(clients: IntArray, rng: np.random.Generator) -> Draw:
            drawn = np.sort(without_replacement(clients, self.k, rng))
            return Draw(drawn, weights[drawn])

        return Chosen(known.n, rule)

    def observe(self, state: Intervals, row: Row) -> Intervals:
        """End the intervals of those who answered, and those that have become too long."""
        if not row.round:
            return state
        newest = int(np.append(row.clients, row.missing).max(initial=-1)) + 1
        mean = grown(state["mean"], newest, 1.0)
        count, running = (grown(state[name], newest, 0.0) for name in ("count", "running"))
        running += 1
        over = running >= self.longest
        over[row.clients] = True
        mean[over] = (count[over] * mean[over] + running[over]) / (count[over] + 1)
        count[over] += 1
        running[over] = 0.0
        return Intervals(mean=mean, count=count, running=running)
