"""A scheme as a sampler: learn, solve, and solve again at intervals; asynchronous schemes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypedDict

import numpy as np

from fedpace.checks import FloatArray, positive_count
from fedpace.profile import Profile
from fedpace.samplers.client_stats import (
    ClientStats,
    empty_client_stats,
    learn,
    profile_of,
    snapshot,
)
from fedpace.sampling.dispatch import AmongFree, Dispatch, turns_of
from fedpace.sampling.schemes import SCHEMES, Scheme, needs_counts_only
from fedpace.training.history import Row
from fedpace.training.sampler import TRAIN, BaseSampler, Phase, Plan, SamplerContext

WARM_UP = Phase("warm-up", ("pilot-draw", 1))
# Asynchronous schemes that draw at random among the free clients, as published.
BY_CHANCE = ("fedbuff", "fedasync", "ca2fl")
# Asynchronous schemes that need sample counts and times only.
BY_COUNTS = ("uniform", "weighted")


class LatestPlan:
    """Cache of the latest plan, so that each design is solved for once."""

    def __init__(self) -> None:
        self._plan: Plan | None = None
        self._basis: object = None
        self._counts: tuple[Scheme, FloatArray] | None = None

    def get(self, basis: object, context: SamplerContext, make: Callable[[], Plan]) -> Plan:
        """Return the plan for this basis; make it if the basis is new, or all its clients away."""
        if self._plan is None or basis is not self._basis or not _covers(self._plan, context):
            self._plan, self._basis = make(), basis
        return self._plan

    def of_counts(self, scheme: Scheme, k: int, context: SamplerContext) -> Plan:
        """Return the plan of a scheme that needs sample counts only; they may have changed."""
        before, weights = self._counts, context.weights
        if before is None or before[0] is not scheme or not _equal(before[1], weights):
            self._counts = (scheme, weights)
        return self.get(self._counts, context, lambda: Plan(scheme(context.blank_profile, k)))


def _equal(before: FloatArray, weights: FloatArray) -> bool:
    return before is weights or np.array_equal(before, weights)


def _covers(plan: Plan, context: SamplerContext) -> bool:
    return context.present is None or bool(context.present[: plan.design.n].any())


def is_due(rounds: int, refresh: int | None) -> bool:
    """Return whether to solve: at the beginning, and after every `refresh` rounds.

    >>> [rounds for rounds in range(7) if is_due(rounds, 3)]
    [0, 3, 6]
    """
    return rounds == 0 or (refresh is not None and rounds > 0 and rounds % refresh == 0)


class SolveState(TypedDict):
    """Rounds so far, statistics of clients, and those that the design was last solved for."""

    rounds: int
    stats: ClientStats
    basis: ClientStats


@dataclass(frozen=True, eq=False)
class Solve(BaseSampler):
    """Draw by a scheme, with statistics of the clients from their replies.

    A scheme that needs sample counts only is called again when they change. Any other begins with a
    warm-up: rounds of weighted sampling, which count as training.

    Parameters
    ----------
    scheme : Scheme
        Profile → Design.
    k : int ≥ 1
        K, the draws per round.
    warm_up : int ≥ 1
        Rounds of weighted sampling before the first design.
    refresh : int ≥ 1, optional
        Solve again after every `refresh` rounds; None: never.
    max_weight : float, optional
        Cap on p_i / (K q_i).
    c_over_s0 : float, optional
        c = β/α in units of S_0; 1 by default.
    profile : Profile, optional
        The clients, if known beforehand: no warm-up, and nothing is learned.
    first : Scheme
        The scheme of the warm-up.
    server, buffer : optional
        The default server, and the updates per asynchronous step.

    Examples
    --------
    >>> sampler = Solve(SCHEMES["optimal-mean"], k=10, warm_up=5, refresh=10)
    >>> sampler.phase(sampler.init(n=100)).name
    'warm-up'
    """

    scheme: Scheme
    k: int
    warm_up: int = 10
    refresh: int | None = None
    max_weight: float | None = None
    c_over_s0: float | None = None
    profile: Profile | None = None
    first: Scheme = SCHEMES["weighted"]
    server: Any = None
    buffer: int | None = None
    _latest: LatestPlan = field(default_factory=LatestPlan, repr=False)

    def __post_init__(self) -> None:
        positive_count("k", self.k)
        positive_count("warm_up", self.warm_up, "give 10")
        if self.refresh is not None:
            positive_count("refresh", self.refresh, "give the rounds between two solutions")

    def init(self, n: int) -> SolveState:
        """Return the state before the first round."""
        size = n if self._learns else 0
        return SolveState(rounds=0, stats=empty_client_stats(size), basis=empty_client_stats(size))

    def phase(self, state: SolveState) -> Phase:
        """Return warm-up or training."""
        return WARM_UP if self._learns and state["rounds"] < self.warm_up else TRAIN

    def observe(self, state: SolveState, row: Row) -> SolveState:
        """Learn from a round; take a snapshot when the next design is due."""
        if self._learns and row.round:
            state["stats"] = learn(state["stats"], row)
            state["rounds"] += 1
            if is_due(state["rounds"] - self.warm_up, self.refresh):
                state["basis"] = snapshot(state["stats"])
        return state

    def design(self, state: SolveState, context: SamplerContext) -> Plan:
        """Return the design in use, or the next one if it is due."""
        plan = self._plan(state, context)
        return plan if self.buffer is None else plan._replace(buffer=self.buffer)

    def _plan(self, state: SolveState, context: SamplerContext) -> Plan:
        if self.profile is not None:
            profile = self.profile
            return self._latest.get(profile, context, lambda: self._solve(profile))
        if not self._learns:
            return self._latest.of_counts(self.scheme, self.k, context)
        if self.phase(state) is WARM_UP:
            return self._latest.of_counts(self.first, self.k, context)
        basis = state["basis"]
        return self._latest.get(
            basis,
            context,
            lambda: self._solve(profile_of(basis, context, c_over_s0=self.c_over_s0)),
        )

    def _solve(self, profile: Profile) -> Plan:
        return Plan(self.scheme(profile, self.k, max_weight=self.max_weight), profile)

    @property
    def _learns(self) -> bool:
        return self.profile is None and not needs_counts_only(self.scheme)


def optimal_mean_no_pilots(k: int, **settings: Any) -> Solve:
    """Return the paper's scheme with a warm-up in place of the pilots, and c = S_0."""
    return Solve(SCHEMES["optimal-mean"], k, **settings)


@dataclass(frozen=True)
class Shares:
    """An asynchronous scheme: Profile → shares of completions, for `at_once` clients at work.

    A device does one task at a time, so that its time limits its share. uniform and weighted give
    equal shares, and p_i; statistical p_i G_i; optimal-mean solves P3, which is exact here: see
    `solve_shares`. fedbuff, fedasync and ca2fl draw at random among the free clients, the first in
    proportion to p_i and the others uniformly, as published.
    """

    name: str
    at_once: int
    times_known: bool = True

    @property
    def needs_counts_only(self) -> bool:
        """Whether sample counts and known times are enough."""
        return self.name in BY_CHANCE or (self.name in BY_COUNTS and self.times_known)

    def __call__(self, profile: Profile, k: int, *, max_weight: float | None = None) -> Dispatch:
        """Return the design for steps of K = `k` updates; `max_weight` caps p_i / (K f_i)."""
        p, ones = profile.weights, np.ones(profile.n)
        if self.name == "fedbuff":
            return AmongFree(p, p, self.at_once)
        if self.name in BY_CHANCE:
            return AmongFree(ones / profile.n, p, self.at_once)
        cap = None if max_weight is None else max(k * max_weight, 1.0)
        return turns_of(self.name, profile, self.at_once, max_weight=cap)
