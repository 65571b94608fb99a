"""A scheme as a sampler: learn, solve, and solve again now and then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypedDict

import numpy as np

from fedpace.checks import FloatArray, positive_count
from fedpace.estimation.learned import Learned, learn, nothing_learned, profile_of, snapshot
from fedpace.profile import Profile
from fedpace.rounds.rows import Row
from fedpace.rounds.sampler import TRAIN, Known, Phase, Plan
from fedpace.sampling.schemes import SCHEMES, Scheme, needs_counts_only

WARM_UP = Phase("warm-up", ("pilot-draw", 1))


class LatestPlan:
    """Keeps the latest plan, so that a design is solved for once."""

    def __init__(self) -> None:
        self._plan: Plan | None = None
        self._basis: object = None
        self._counts: tuple[Scheme, FloatArray] | None = None

    def get(self, basis: object, known: Known, make: Callable[[], Plan]) -> Plan:
        """Return the plan made on this basis; make it where it is new, or knows nobody present."""
        if self._plan is None or basis is not self._basis or not _covers(self._plan, known):
            self._plan, self._basis = make(), basis
        return self._plan

    def of_counts(self, scheme: Scheme, k: int, known: Known) -> Plan:
        """Return the plan of a scheme that looks at sample counts alone; they may be news."""
        before, weights = self._counts, known.weights
        if before is None or before[0] is not scheme or not _equal(before[1], weights):
            self._counts = (scheme, weights)
        return self.get(self._counts, known, lambda: Plan(scheme(known.blank_profile, k)))


def _equal(before: FloatArray, weights: FloatArray) -> bool:
    return before is weights or np.array_equal(before, weights)


def _covers(plan: Plan, known: Known) -> bool:
    return known.present is None or bool(known.present[: plan.design.n].any())


def is_due(rounds: int, refresh: int | None) -> bool:
    """Tell whether to solve: at the beginning, and after every `refresh` rounds.

    >>> [rounds for rounds in range(7) if is_due(rounds, 3)]
    [0, 3, 6]
    """
    return rounds == 0 or (refresh is not None and rounds > 0 and rounds % refresh == 0)


class SolveState(TypedDict):
    """Rounds so far, what they taught, and what was known when the design was last solved for."""

    rounds: int
    learned: Learned
    basis: Learned


@dataclass(frozen=True, eq=False)
class Solve:
    """Draw by a scheme, with what has been learned of the clients.

    A scheme that looks at sample counts alone needs to learn nothing: it is asked again when they
    change. Any other begins with a warm-up: rounds of weighted sampling, which count as training.

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
        What is known of the clients beforehand: no warm-up, and nothing is learned.
    first : Scheme
        What the warm-up draws by.
    server, buffer : optional
        What runs make of the replies where nobody says otherwise, and, without a barrier, of how
        many.

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
        positive_count("warm_up", self.warm_up, "give 10, or a scheme that learns nothing")
        if self.refresh is not None:
            positive_count("refresh", self.refresh, "give the rounds between two solutions")

    def init(self, n: int) -> SolveState:
        """Return the state before the first round."""
        size = n if self._learns else 0
        return SolveState(rounds=0, learned=nothing_learned(size), basis=nothing_learned(size))

    def phase(self, state: SolveState) -> Phase:
        """Return warm-up or training."""
        return WARM_UP if self._learns and state["rounds"] < self.warm_up else TRAIN

    def observe(self, state: SolveState, row: Row) -> SolveState:
        """Learn from a round; note what is known where the next design is due."""
        if self._learns and row.round:
            state["learned"] = learn(state["learned"], row)
            state["rounds"] += 1
            if is_due(state["rounds"] - self.warm_up, self.refresh):
                state["basis"] = snapshot(state["learned"])
        return state

    def design(self, state: SolveState, known: Known) -> Plan:
        """Return the design in use, or the next one where it is due."""
        plan = self._plan(state, known)
        return plan if self.buffer is None else plan._replace(buffer=self.buffer)

    def _plan(self, state: SolveState, known: Known) -> Plan:
        if self.profile is not None:
            profile = self.profile
            return self._latest.get(profile, known, lambda: self._solved(profile))
        if not self._learns:
            return self._latest.of_counts(self.scheme, self.k, known)
        if self.phase(state) is WARM_UP:
            return self._latest.of_counts(self.first, self.k, known)
        basis = state["basis"]
        return self._latest.get(
            basis, known, lambda: self._solved(profile_of(basis, known, c_over_s0=self.c_over_s0))
        )

    def _solved(self, profile: Profile) -> Plan:
        return Plan(self.scheme(profile, self.k, max_weight=self.max_weight), profile)

    @property
    def _learns(self) -> bool:
        return self.profile is None and not needs_counts_only(self.scheme)
