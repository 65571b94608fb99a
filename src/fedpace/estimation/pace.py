"""The sampler `pace`: rounds of clients of like speed, in turn, leaning as far as steps bear."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, TypedDict

import numpy as np

from fedpace.checks import FloatArray, positive_count
from fedpace.estimation.agreement import (
    check_lean,
    leaning,
    measured_ratio,
    no_agreement,
)
from fedpace.estimation.learned import Learned, learn, nothing_learned, snapshot
from fedpace.estimation.lessons import Lessons, taught, times_of
from fedpace.estimation.norms import expected_norms
from fedpace.estimation.solve import WARM_UP, LatestPlan
from fedpace.estimation.stride import Stride, after_round, first_stride
from fedpace.estimation.turns import Balance, balanced, even_balance, grown, turn_of
from fedpace.profile import Profile
from fedpace.rounds.memory import Memory
from fedpace.rounds.rows import Row
from fedpace.rounds.sampler import TRAIN, Known, Phase, Plan
from fedpace.rounds.seen import Seen
from fedpace.sampling.max_time import solve_max_time
from fedpace.sampling.schemes import SCHEMES
from fedpace.sampling.tiered import Systematic, Tiered, filled_places
from fedpace.sampling.tiers import least_moment, solve_tiers, tiers_by_time

# The weight that a round may have at first, and at most: a longer step overshoots.
ROUND_WEIGHTS = (1.5, 10.0)
# This part of all clients must be new for a solution before its time.
NEW_PART = 0.1


class Basis(TypedDict):
    """What a design is solved for."""

    norms: FloatArray
    learned: Learned
    c: float
    pairs: float
    round_weight: float


class PaceState(Lessons):
    """Rounds so far, what they taught, who got how much, and what the design was solved for.

    `solved` is the round of the latest solution.
    """

    rounds: int
    solved: int
    learned: Learned
    balance: Balance
    stride: Stride
    basis: Basis


@dataclass(frozen=True, eq=False)
class Pace:
    """Draw clients of like speed together, in turn, and lean to the fast as far as steps bear.

    No pilots and no setting: after a short warm-up, which counts, clients are sorted by time into
    N/K tiers. A round is a tier's; each gets its share m_g of the rounds, evenly over time. The
    shares minimise the predicted time, P3 over tiers, with c as measured: see `measured_ratio`.
    Norms and times are learned from every reply. Where K leaves room for one tier only, draws
    are systematic, with the probabilities of P2.

    Parameters
    ----------
    k : int ≥ 1
        K, the clients in a round.
    warm_up, refresh : int ≥ 1
        Rounds of weighted sampling at first, and between two solutions at most.
    max_weight : float, optional
        Cap on the weight of one client's update.
    c_over_s0 : float > 0, optional
        c in units of the least second moment that the tiers can have, instead of as measured.
    round_weights : two floats ≥ 1
        Cap on the weight P_g / m_g of a round, at first and at most (never above K). In between it
        follows the evaluated losses: see `after_round`.
    tiers : int ≥ 1, optional
        How many, instead of N/K.
    in_turn : bool
        Whether tiers take turns, or are drawn by chance.
    server : Server
        What runs make of the replies where nobody says otherwise.

    Examples
    --------
    >>> sampler = Pace(k=10)
    >>> sampler.phase(sampler.init(n=100)).name
    'warm-up'
    """

    k: int
    warm_up: int = 3
    refresh: int = 10
    max_weight: float | None = None
    c_over_s0: float | None = None
    round_weights: tuple[float, float] = ROUND_WEIGHTS
    tiers: int | None = None
    in_turn: bool = True
    server: Any = field(default_factory=Memory)
    _latest: LatestPlan = field(default_factory=LatestPlan, repr=False)

    def __post_init__(self) -> None:
        positive_count("k", self.k)
        positive_count("warm_up", self.warm_up, "give 3")
        positive_count("refresh", self.refresh, "give the rounds between two solutions")
        if self.tiers is not None:
            positive_count("tiers", self.tiers)
        check_lean(self.c_over_s0)

    def init(self, n: int) -> PaceState:
        """Return the state before the first round."""
        norms, learned = np.full(n, math.nan), nothing_learned(n)
        basis = Basis(norms=norms, learned=learned, c=math.nan, pairs=0.0, round_weight=1.0)
        return PaceState(
            rounds=0,
            solved=0,
            norms=norms.copy(),
            rate=math.nan,
            learned=snapshot(learned),
            agreement=no_agreement(),
            balance=even_balance(n),
            stride=first_stride(self.round_weights[0]),
            basis=basis,
        )

    def phase(self, state: PaceState) -> Phase:
        """Return warm-up or training."""
        return WARM_UP if state["rounds"] < self.warm_up else TRAIN

    def see(self, state: PaceState, seen: Seen) -> PaceState:
        """Learn from the updates themselves: their lengths, and how they change."""
        state["balance"] = grown(state["balance"], seen.weights.size)
        return taught(state, seen)

    def observe(self, state: PaceState, row: Row) -> PaceState:
        """Learn times from a round; note what is known where the next design is due."""
        if not row.round:
            return state
        state["learned"] = learn(state["learned"], row)
        state["balance"] = balanced(state["balance"], row)
        state["rounds"] += 1
        least, most = self.round_weights
        before = state["stride"]["cap"]
        state["stride"] = after_round(state["stride"], row, (least, min(most, self.k)))
        too_heavy = state["stride"]["cap"] < before
        if state["rounds"] >= self.warm_up and (too_heavy or self._is_due(state)):
            state["solved"] = state["rounds"]
            state["basis"] = _basis(state)
        return state

    def design(self, state: PaceState, known: Known) -> Plan:
        """Return the tier whose turn it is, of the design in use or of the next where it is due."""
        if self.phase(state) is WARM_UP:
            plan = self._latest.of_counts(SCHEMES["weighted"], self.k, known)
            return plan._replace(why="warm-up: weighted sampling, to learn from")
        basis = state["basis"]
        plan = self._latest.get(basis, known, lambda: self._solved(basis, known))
        design = plan.design
        if not (self.in_turn and isinstance(design, Tiered) and design.chances.size > 1):
            return plan
        turn = turn_of(design, state["balance"], known.present, known.chance)
        return plan._replace(design=design.turned(turn))

    def _is_due(self, state: PaceState) -> bool:
        """Tell whether to solve: at first, every `refresh` rounds, and when many clients are new.

        Many are K, and a tenth of all: solving looks at every client.
        """
        since = state["rounds"] - max(state["solved"], self.warm_up)
        if since == 0 or since >= self.refresh:
            return True
        before = int((state["basis"]["learned"]["replies"] > 0).sum())
        known = int((state["learned"]["replies"] > 0).sum())
        return known - before >= max(self.k, NEW_PART * state["norms"].size)

    def _solved(self, basis: Basis, known: Known) -> Plan:
        times = times_of(basis["learned"], known)
        profile = Profile(known.weights, times, expected_norms(basis["norms"], known.n))
        count = max(round(known.n / self.k), 1) if self.tiers is None else self.tiers
        count = min(count, known.n)
        if count == 1:
            return self._without_tiers(profile)
        tiers = tiers_by_time(times, count)
        importance = profile.importance
        unit = least_moment(importance, tiers, filled_places(importance, tiers, self.k))
        lean, reason = leaning(basis["c"], basis["pairs"], unit, given=self.c_over_s0)
        # In the unit of S, which is K times E‖u‖² but for a constant.
        ratio = self.k * lean * unit + (self.k - 1) * float(importance @ importance)
        found = solve_tiers(
            profile.weights,
            profile.times,
            profile.grad_norms,
            ratio,
            self.k,
            max_weight=self.max_weight,
            max_round_weight=basis["round_weight"],
            tiers=count,
        )
        parts = (found.tiers, found.chances, found.inclusion)
        design = Tiered(*parts, profile.weights, k=self.k, solution=found)
        heaviest = f"rounds of weight {basis['round_weight']:.2g} at most"
        why = f"{count} tiers, c = {lean:.2g} S₀: {reason}; {heaviest}"
        return Plan(design, profile, {"lean": lean}, why)

    def _without_tiers(self, profile: Profile) -> Plan:
        fleet = (profile.weights, profile.times, profile.grad_norms, profile.beta_over_alpha)
        found = solve_max_time(*fleet, self.k, max_weight=self.max_weight)
        tiers = np.zeros(profile.n, dtype=np.int64)
        design = Systematic(filled_places(found.q, tiers, self.k), profile.weights, solution=found)
        return Plan(design, profile, {}, "too few clients for tiers: systematic draws, c = S₀")


def _basis(state: PaceState) -> Basis:
    measured = measured_ratio(state["agreement"], state["rate"])
    return Basis(
        norms=state["norms"].copy(),
        learned=snapshot(state["learned"]),
        c=measured.c,
        pairs=measured.pairs,
        round_weight=state["stride"]["cap"],
    )
