"""Rivals that choose or weight clients drawn at random: Power-of-Choice, OCS, FedStale, FedAU."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

import numpy as np

from fedpace.checks import FloatArray, IntArray, positive_count
from fedpace.errors import InputError
from fedpace.samplers.rivals.rule import (
    RuleDesign,
    count_clients,
    equal_draw,
    extend,
    sample_proportionally,
    sample_uniformly,
)
from fedpace.sampling.design import Draw, Everyone
from fedpace.servers.average import Mean
from fedpace.servers.memory import Memory
from fedpace.training.backend import Reply
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


# Iterations of AOCS that redistribute probability above 1.
STEPS = 4


def optimal_inclusion(norms: FloatArray, m: int) -> FloatArray:
    """Return the probabilities of least variance with which m clients send [Chen22, Eq. 7].

    With u ascending and l the largest number with 0 < m + l − n ≤ Σ_{j ≤ l} u_j / u_l:
    π_i = (m + l − n) u_i / Σ_{j ≤ l} u_j for i ≤ l, and 1 for the others.

    >>> optimal_inclusion(np.array([1.0, 1.0, 1.0, 9.0]), 2)
    array([0.33333333, 0.33333333, 0.33333333, 1.        ])
    """
    n = norms.size
    if m >= n:
        return np.ones(n)
    order = np.argsort(norms, kind="stable")
    u = norms[order]
    sums = np.cumsum(u)
    places = m - n + np.arange(1, n + 1)
    # As products, since u_l may be 0.
    fits = np.flatnonzero((places > 0) & (places * u <= sums * (1 + 1e-12)))
    last = int(fits[-1])
    inclusion = np.ones(n)
    total = sums[last]
    part = places[last] * u[: last + 1] / total if total > 0 else places[last] / (last + 1)
    inclusion[order[: last + 1]] = np.minimum(part, 1.0)
    return inclusion


def approximate_inclusion(norms: FloatArray, m: int) -> FloatArray:
    """Approximate `optimal_inclusion` from sums, for secure aggregation [Chen22, Alg. 2].

    >>> approximate_inclusion(np.array([1.0, 1.0, 1.0, 9.0]), 2)
    array([0.33333333, 0.33333333, 0.33333333, 1.        ])
    """
    n, total = norms.size, float(norms.sum())
    if m >= n or total == 0:
        return np.full(n, min(m / n, 1.0))
    inclusion = np.minimum(1.0, m * norms / total)
    for _ in range(STEPS):
        free = inclusion < 1
        held = float(inclusion[free].sum())
        scale = (m - n + int(free.sum())) / held if held > 0 else 0.0
        if scale <= 1:
            break
        inclusion[free] = np.minimum(1.0, scale * inclusion[free])
    return inclusion


@dataclass(frozen=True)
class OptimalClients(BaseSampler):
    """Train all clients; client i sends its update with a probability by its norm [Chen22].

    u_i = p_i ‖Δ_i‖ gives π_i, K in sum; each client sends with probability π_i, independently,
    weighted by p_i / π_i: unbiased. Only uploads are saved: a round lasts as long as its slowest
    client, as with full participation.

    Source: TMLR 2022; the approximation (AOCS) as in SamuelHorvath/FL-optimal-client-sampling.
    Differs from it: a client's time is one number, so the time of an upload is never saved.

    Parameters
    ----------
    k : int ≥ 1
        Updates sent, on average.
    approximate : bool
        AOCS instead of OCS.
    """

    k: int
    approximate: bool = False

    def __post_init__(self) -> None:
        positive_count("k", self.k)

    def design(self, state: None, context: SamplerContext) -> Everyone:  # noqa: ARG002
        """Return full participation: all clients train."""
        return Everyone(context.weights)

    def choose(self, state: None, draw: Draw, reply: Reply, rng: np.random.Generator) -> Draw:  # noqa: ARG002
        """Return the clients that send."""
        weights = draw.weights[np.searchsorted(draw.clients, reply.clients)]
        norms = weights * np.linalg.norm(reply.updates, axis=1)
        norms[~np.isfinite(norms)] = 0.0
        rule = approximate_inclusion if self.approximate else optimal_inclusion
        inclusion = rule(norms, self.k)
        sends = rng.random(inclusion.size) < inclusion
        return Draw(reply.clients[sends], weights[sends] / inclusion[sends], draw.tier)


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
