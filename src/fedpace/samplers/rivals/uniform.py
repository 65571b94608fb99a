"""Schemes that draw K clients uniformly without replacement, and differ in the aggregation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypedDict

import numpy as np

from fedpace.checks import FloatArray, IntArray, positive_count
from fedpace.samplers.rivals.rule import RuleDesign, count_clients, extend, sample_uniformly
from fedpace.sampling.design import Draw
from fedpace.servers.memory import Memory
from fedpace.training.history import Row
from fedpace.training.sampler import BaseSampler, SamplerContext


@dataclass(frozen=True)
class FedStale(BaseSampler):
    """Draw K clients uniformly; the server remembers each client's last update [Rodio24].

    w ← w + β Σ_i p_i h_i + Σ_drawn (N p_i / K) (Δ_i − β h_i), h_i the last update of client i:
    unbiased for any β. β = 1 is FedVARP [Jhunjhunwala22], β = 0 plain sampling. Memory helps less,
    and can hurt, with very uneven participation and similar data.

    Source: FedStale, ECAI 2024 (arXiv 2405.04171); FedVARP, UAI 2022. Differs from them: h_i is
    divided by its learning rate, so that a falling rate does not make it too large.

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

    def design(self, state: Any, context: SamplerContext) -> RuleDesign:  # noqa: ARG002
        """Return the uniform draw, with the weights that make it unbiased."""
        p = context.weights

        def rule(clients: IntArray, rng: np.random.Generator) -> Draw:
            drawn = np.sort(sample_uniformly(clients, self.k, rng))
            weights = p[drawn] / p[clients].sum() * (clients.size / drawn.size)
            return Draw(drawn, weights)

        return RuleDesign(context.n, rule)


class ReplyIntervals(TypedDict):
    """One entry per client: the mean interval, their count, and the rounds of the current one."""

    mean: FloatArray
    count: FloatArray
    running: FloatArray


@dataclass(frozen=True)
class FedAU(BaseSampler):
    """Draw K clients uniformly; weight each by its mean interval between replies [Wang24].

    w ← w + Σ_drawn ω_i p_i Δ_i, where ω_i, an estimate of 1 / (probability to take part), is the
    running mean of the intervals between its rounds, cut at 50, and 1 before the first. **Biased**
    at first, and unbiased in the limit, without knowing participation probabilities.

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

    def init(self, n: int) -> ReplyIntervals:
        """Return the state before the first round."""
        return ReplyIntervals(mean=np.ones(n), count=np.zeros(n), running=np.zeros(n))

    def design(self, state: ReplyIntervals, context: SamplerContext) -> RuleDesign:
        """Return the uniform draw, with the current weights."""
        weights = context.weights * extend(state["mean"], context.n, 1.0)

        def rule(clients: IntArray, rng: np.random.Generator) -> Draw:
            drawn = np.sort(sample_uniformly(clients, self.k, rng))
            return Draw(drawn, weights[drawn])

        return RuleDesign(context.n, rule)

    def observe(self, state: ReplyIntervals, row: Row) -> ReplyIntervals:
        """End the intervals of clients that answered, and those that have become too long."""
        if not row.round:
            return state
        newest = count_clients(row)
        mean = extend(state["mean"], newest, 1.0)
        count, running = (extend(state[name], newest, 0.0) for name in ("count", "running"))
        running += 1
        over = running >= self.longest
        over[row.clients] = True
        mean[over] = (count[over] * mean[over] + running[over]) / (count[over] + 1)
        count[over] += 1
        running[over] = 0.0
        return ReplyIntervals(mean=mean, count=count, running=running)
