"""One draw from each of K groups: clustered sampling."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from fedpace.checks import FloatArray, IntArray, one_per_client, positive_column
from fedpace.profile import Profile
from fedpace.sampling.bound import variance_term
from fedpace.sampling.design import Among, Design, Draw, WithReplacement
from fedpace.sampling.mean_time import solve_mean_time
from fedpace.sampling.solution import Solution


@dataclass(frozen=True, eq=False)
class Clustered:
    """Pour q into K bins and draw once from each, weighted by p_i / (K q_i) [Fraboni21, Alg. 1].

    Clients in the order of descending q fill bins of size 1 with K q_i each, split at the borders.
    Every client is drawn as often as by K draws with replacement, and the variance is at most
    theirs: a client with K q_i ≥ 1 is drawn at least ⌊K q_i⌋ − 1 times for sure. With q = p it is
    the paper's; its weight is 1/K then.

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

    The first fills a bin of its own; of the other two one is drawn.
    """

    inner: WithReplacement

    def __init__(
        self, q: ArrayLike, k: int, weights: ArrayLike, *, solution: Solution | None = None
    ) -> None:
        object.__setattr__(self, "inner", WithReplacement(q, k, weights, solution=solution))

    @property
    def q(self) -> FloatArray:
        """The probabilities of a single draw, over all bins."""
        return self.inner.q

    @property
    def solution(self) -> Solution | None:
        """How q was found, where a solver found it."""
        return self.inner.solution

    @cached_property
    def _poured(self) -> tuple[IntArray, FloatArray]:
        """Clients in their order, and where each ends in K bins laid side by side."""
        order = np.argsort(-self.q, kind="stable")
        ends = np.cumsum(self.q[order])
        return order, self.inner.k * ends / ends[-1]

    def draw(self, rng: np.random.Generator) -> Draw:
        """Draw one client of each bin, in O(K log N)."""
        order, ends = self._poured
        points = np.arange(self.inner.k) + rng.random(self.inner.k)
        places = np.minimum(np.searchsorted(ends, points, side="right"), order.size - 1)
        clients, counts = np.unique(order[places], return_counts=True)
        return Draw(
            clients, counts * self.inner.weights[clients] / (self.inner.k * self.q[clients])
        )

    def expected_round_time(self, times: ArrayLike) -> float:
        """Return the exact expected slowest: P(slowest ≤ t) is the product over the bins.

        Each bin holds some clients with their parts of it. Going through all of these by time, the
        product changes by a factor at each; it is 0 until every bin has somebody.
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
        """Bin, client and share of the bin, for every client in every bin that it has a part of."""
        order, ends = self._poured
        k = self.inner.k
        cuts = np.unique(np.concatenate([ends[:-1], np.arange(k + 1.0)]))
        middles = (cuts[1:] + cuts[:-1]) / 2
        places = np.minimum(np.searchsorted(ends, middles, side="right"), order.size - 1)
        return middles.astype(np.int64), order[places], np.diff(cuts)

    def variance_term(self, profile: Profile) -> float:
        """Return S(q), which that of the bins does not exceed."""
        return variance_term(self.q, profile.weights, profile.grad_norms)

    def among(self, present: ArrayLike) -> Design:
        """Return K draws from q restricted to those present, poured anew."""
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


def clustered(profile: Profile, k: int, *, max_weight: float | None = None) -> Design:  # noqa: ARG001
    """q_i = p_i, one draw from each of K bins [Fraboni21, Alg. 1]."""
    return Clustered(profile.weights, k, profile.weights)


clustered.needs_counts_only = True  # type: ignore[attr-defined]


def clustered_optimal_mean(profile: Profile, k: int, *, max_weight: float | None = None) -> Design:
    """Draw once from each of K bins, with the paper's probabilities [Luo22, P3]."""
    fleet = (profile.weights, profile.times, profile.grad_norms, profile.beta_over_alpha)
    solution = solve_mean_time(*fleet, max_weight=max_weight, k=k)
    return Clustered(solution.q, k, profile.weights, solution=solution)
