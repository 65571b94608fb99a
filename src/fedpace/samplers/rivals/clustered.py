"""Rivals that group clients: clustered sampling, and FederatedScope's group sampler."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TypedDict

import numpy as np
from numpy.typing import ArrayLike

from fedpace.checks import FloatArray, IntArray, one_per_client, positive_column, positive_count
from fedpace.profile import Profile
from fedpace.samplers.rivals.rule import (
    RuleDesign,
    extend,
    known_times,
    proportional_draw,
    update_times,
)
from fedpace.sampling.bound import variance_term
from fedpace.sampling.design import Among, BaseDesign, Draw, WithReplacement
from fedpace.sampling.solvers.mean_time import solve_mean_time
from fedpace.sampling.solvers.solution import Solution
from fedpace.servers.average import Mean
from fedpace.training.history import Row
from fedpace.training.sampler import BaseSampler, SamplerContext


@dataclass(frozen=True, eq=False)
class Clustered(BaseDesign):
    """Pour q into K bins and draw once from each, weighted by p_i / (K q_i) [Fraboni21, Alg. 1].

    Clients in the order of descending q fill bins of size 1 with K q_i each, split at the borders.
    Every client is drawn as often as by K draws with replacement, and the variance is at most
    theirs: a client with K q_i ≥ 1 is drawn at least ⌊K q_i⌋ − 1 times in every round. With q = p
    it is the paper's design, and every weight is 1/K.

    Parameters
    ----------
    q, k, weights, solution
        As in `WithReplacement`.

    Examples
    --------
    >>> design = Clustered([0.5, 0.25, 0.25], k=2, weights=[0.5, 0.25, 0.25])
    >>> draw = design.draw(np.random.default_rng(0))
    >>> draw.clients[0], draw.clients.size, draw.weights
    (np.int64(0), 2, array([0.5, 0.5]))

    The first client fills a bin; one of the other two is drawn from the second bin.
    """

    inner: WithReplacement
    q: FloatArray
    solution: Solution | None

    def __init__(
        self, q: ArrayLike, k: int, weights: ArrayLike, *, solution: Solution | None = None
    ) -> None:
        inner = WithReplacement(q, k, weights, solution=solution)
        for name, value in (("inner", inner), ("q", inner.q), ("solution", solution)):
            object.__setattr__(self, name, value)

    @cached_property
    def _poured(self) -> tuple[IntArray, FloatArray]:
        """The clients by descending q, and where each ends in K bins laid side by side."""
        order = np.argsort(-self.q, kind="stable")
        ends = np.cumsum(self.q[order])
        return order, self.inner.k * ends / ends[-1]

    def draw(self, rng: np.random.Generator) -> Draw:
        """Draw one client from each bin, in O(K log N)."""
        order, ends = self._poured
        points = np.arange(self.inner.k) + rng.random(self.inner.k)
        places = np.minimum(np.searchsorted(ends, points, side="right"), order.size - 1)
        clients, counts = np.unique(order[places], return_counts=True)
        return Draw(
            clients, counts * self.inner.weights[clients] / (self.inner.k * self.q[clients])
        )

    def expected_round_time(self, times: ArrayLike) -> float:
        """Return the exact expected slowest: P(slowest ≤ t) is the product over the bins.

        Each bin holds parts of some clients. Taking these in the order of time, the product changes
        by a factor at each; it is 0 until every bin has a client.
        """
        t = one_per_client("times", positive_column("times", times), self.n)
        bins, clients, parts = self._parts
        by_time = np.lexsort((bins, t[clients]))
        bins, parts, t = bins[by_time], parts[by_time], t[clients][by_time]
        by_bin = np.argsort(bins, kind="stable")
        filled = np.cumsum(parts[by_bin])
        first = np.append(True, np.diff(bins[by_bin]) > 0)
        before = (filled - parts[by_bin])[first][np.cumsum(first) - 1]
        filled = np.maximum(filled - before, np.finfo(float).tiny)
        earlier = np.where(first, 1.0, np.append(1.0, filled[:-1]))
        factors, begun = np.empty(t.size), np.zeros(t.size)
        factors[by_bin], begun[by_bin] = np.log(filled / earlier), first
        everyone = np.cumsum(begun) == self.inner.k
        below = np.where(everyone, np.exp(np.minimum(np.cumsum(factors), 0.0)), 0.0)
        below[-1] = 1.0
        return float(t @ np.diff(below, prepend=0.0))

    @cached_property
    def _parts(self) -> tuple[IntArray, IntArray, FloatArray]:
        """The bin, client and share of the bin of every part."""
        order, ends = self._poured
        k = self.inner.k
        cuts = np.unique(np.concatenate([ends[:-1], np.arange(k + 1.0)]))
        middles = (cuts[1:] + cuts[:-1]) / 2
        places = np.minimum(np.searchsorted(ends, middles, side="right"), order.size - 1)
        return middles.astype(np.int64), order[places], np.diff(cuts)

    def variance_term(self, profile: Profile) -> float:
        """Return S(q), an upper bound on that of the bins."""
        return variance_term(self.q, profile.weights, profile.grad_norms)

    def among(self, present: ArrayLike) -> BaseDesign:
        """Return the bins of q restricted to the clients that are present."""
        among = self.inner.among(present)
        assert isinstance(among, Among)
        assert isinstance(among.design, WithReplacement)
        inner = Clustered(among.design.q, self.inner.k, among.design.weights)
        return Among(inner, among.clients, self.n)

    @property
    def n(self) -> int:
        """The number of clients."""
        return self.inner.n

    @property
    def largest_weight(self) -> float:
        """The largest p_i / (K q_i)."""
        return self.inner.largest_weight


def clustered(profile: Profile, k: int, *, max_weight: float | None = None) -> BaseDesign:  # noqa: ARG001
    """q_i = p_i, one draw from each of K bins [Fraboni21, Alg. 1]."""
    return Clustered(profile.weights, k, profile.weights)


clustered.needs_counts_only = True  # type: ignore[attr-defined]


def clustered_optimal_mean(
    profile: Profile, k: int, *, max_weight: float | None = None
) -> BaseDesign:
    """Draw once from each of K bins, with the paper's probabilities [Luo22, P3]."""
    fleet = (profile.weights, profile.times, profile.grad_norms, profile.beta_over_alpha)
    solution = solve_mean_time(*fleet, max_weight=max_weight, k=k)
    return Clustered(solution.q, k, profile.weights, solution=solution)


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
