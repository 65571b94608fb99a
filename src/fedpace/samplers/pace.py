"""The sampler `pace`: tiers of similar speed in rotation, favouring fast clients when stable."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from fedpace.checks import FloatArray, IntArray, positive_count
from fedpace.profile import Profile
from fedpace.samplers.client_stats import (
    ClientStats,
    UpdateStats,
    current_times,
    empty_update_stats,
    expected_norms,
    learn,
    learn_from_updates,
    snapshot,
)
from fedpace.samplers.curvature import (
    PRIOR_PAIRS,
    RATIO_LIMITS,
    check_ratio,
    measured_ratio,
    shrink_ratio,
)
from fedpace.samplers.solve import WARM_UP, LatestPlan
from fedpace.samplers.step import RoundWeightCap, initial_round_weight_cap, update_round_weight_cap
from fedpace.sampling.schemes import SCHEMES
from fedpace.sampling.solvers.max_time import solve_max_time
from fedpace.sampling.solvers.tiers import least_moment, solve_tiers, tiers_by_time
from fedpace.sampling.tiers import Systematic, Tiered, inclusion_probabilities
from fedpace.servers.memory import Memory
from fedpace.training.history import Row
from fedpace.training.sampler import TRAIN, BaseSampler, Phase, Plan, SamplerContext
from fedpace.training.updates import RoundUpdates

# Cap on the weight of a round, at first and at most: longer steps overshoot.
ROUND_WEIGHTS = (1.5, 10.0)
# Largest weight of a round for each client of a chosen K: heavier rounds of few clients are noise.
CHOSEN_WEIGHT = 2.0
# Solve as soon as a client has answered for the first time; in large fleets, this part of all.
NEW_PART = 0.01


class Basis(TypedDict):
    """The statistics that a design is solved for; `step` is the cap on rounds, or B; `bend` η λ."""

    stats: ClientStats
    norms: FloatArray
    length: float
    c: float
    pairs: float
    step: float
    bend: float


def take_snapshot(state: UpdateStats, step: float) -> Basis:
    """Return the statistics of a state, as the basis of a design."""
    measured = measured_ratio(state["curvature"], state["rate"])
    bend, moved = state["curvature"]["bend"], state["curvature"]["moved"]
    return Basis(
        stats=snapshot(state["stats"]),
        norms=state["norms"].copy(),
        length=state["curvature"]["length"],
        c=measured.c,
        pairs=measured.pairs,
        step=step,
        bend=state["rate"] * bend / moved if moved > 0 else 0.0,
    )


@dataclass(frozen=True, eq=False)
class BasePace(BaseSampler):
    """What the synchronous and the asynchronous sampler share."""

    k: int
    warm_up: int = 3
    refresh: int = 10
    max_weight: float | None = None
    c_over_s0: float | None = None
    server: Any = field(default_factory=Memory)
    _latest: LatestPlan = field(default_factory=LatestPlan, repr=False)

    def __post_init__(self) -> None:
        positive_count("k", self.k)
        positive_count("warm_up", self.warm_up, "give 3")
        positive_count("refresh", self.refresh, f"give {type(self).refresh}")
        check_ratio(self.c_over_s0)


class PaceState(UpdateStats):
    """Rounds so far and at the latest solution, statistics, and those of that solution."""

    rounds: int
    solved: int
    balance: Balance
    cap: RoundWeightCap
    basis: Basis


@dataclass(frozen=True, eq=False)
class Pace(BasePace):
    """Draw clients of similar speed together; favour fast clients as far as training stays stable.

    It needs no pilots and no settings. After a short warm-up, which counts as training, clients are
    sorted by time into N/K tiers. A round draws from one tier; tier g gets the share m_g of the
    rounds, evenly over time. The shares minimise the predicted time, P3 over tiers, with c as
    measured: see `measured_ratio`. Norms and times are learned from every reply. With a single
    tier, draws are systematic, with the probabilities of P2.

    Parameters
    ----------
    k : int ≥ 1
        K, the clients in a round.
    warm_up, refresh : int ≥ 1
        Rounds of weighted sampling at first, and most rounds between two solutions.
    max_weight : float, optional
        Cap on the weight of one client's update.
    c_over_s0 : float > 0, optional
        c in units of the least second moment that the tiers can have, instead of as measured.
    round_weights : two floats ≥ 1
        Cap on the weight P_g / m_g of a round, at first and at most (never above K). It follows
        the evaluated losses: see `update_round_weight_cap`.
    tiers : int ≥ 1, optional
        Number of tiers, instead of N/K.
    in_turn : bool
        Whether tiers rotate, or are drawn at random.
    server : BaseServer
        The default server.
    k_max : int ≥ 1, optional
        Choose K at every solution, among the powers of two up to this number and the number
        itself: the K with the least predicted time T (E‖u‖² + c). `k` is for the warm-up.

    Examples
    --------
    >>> sampler = Pace(k=10)
    >>> sampler.phase(sampler.init(n=100)).name
    'warm-up'
    """

    round_weights: tuple[float, float] = ROUND_WEIGHTS
    tiers: int | None = None
    in_turn: bool = True
    k_max: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.k_max is not None:
            positive_count("k_max", self.k_max)
        if self.tiers is not None:
            positive_count("tiers", self.tiers)

    def init(self, n: int) -> PaceState:
        """Return the state before the first round."""
        empty = empty_update_stats(n)
        return PaceState(
            **empty,
            rounds=0,
            solved=0,
            balance=empty_balance(n),
            cap=initial_round_weight_cap(self.round_weights[0]),
            basis=take_snapshot(empty, 1.0),
        )

    def phase(self, state: PaceState) -> Phase:
        """Return warm-up or training."""
        return WARM_UP if state["rounds"] < self.warm_up else TRAIN

    def see(self, state: PaceState, updates: RoundUpdates) -> PaceState:
        """Learn norms and curvature from the updates."""
        state["balance"] = extend_balance(state["balance"], updates.weights.size)
        return learn_from_updates(state, updates)

    def observe(self, state: PaceState, row: Row) -> PaceState:
        """Learn times from a round; take a snapshot when the next design is due."""
        if not row.round:
            return state
        state["stats"] = learn(state["stats"], row)
        state["balance"] = add_round(state["balance"], row)
        state["rounds"] += 1
        least, most = self.round_weights
        before = state["cap"]["cap"]
        state["cap"] = update_round_weight_cap(
            state["cap"], row, (least, min(most, self.k_max or self.k))
        )
        too_heavy = state["cap"]["cap"] < before
        if state["rounds"] >= self.warm_up and (too_heavy or self._is_due(state)):
            state["solved"] = state["rounds"]
            state["basis"] = take_snapshot(state, state["cap"]["cap"])
        return state

    def design(self, state: PaceState, context: SamplerContext) -> Plan:
        """Return the tier that is due, of the design in use, or of the next one if it is due."""
        if self.phase(state) is WARM_UP:
            plan = self._latest.of_counts(SCHEMES["weighted"], self.k, context)
            return plan._replace(why="warm-up: weighted sampling, to learn from")
        basis = state["basis"]
        plan = self._latest.get(basis, context, lambda: self._solve(basis, context))
        design = plan.design
        if not (self.in_turn and isinstance(design, Tiered) and design.chances.size > 1):
            return plan
        turn = next_tier(design, state["balance"], context.present, context.chance)
        return plan._replace(design=design.with_turn(turn))

    def _is_due(self, state: PaceState) -> bool:
        """Return whether to solve: at first, every `refresh` rounds, and with new clients."""
        since = state["rounds"] - max(state["solved"], self.warm_up)
        if since == 0 or since >= self.refresh:
            return True
        before = int((state["basis"]["stats"]["replies"] > 0).sum())
        known = int((state["stats"]["replies"] > 0).sum())
        return known - before >= max(1, NEW_PART * state["norms"].size)

    def _solve(self, basis: Basis, context: SamplerContext) -> Plan:
        times = current_times(basis["stats"], context)
        profile = Profile(context.weights, times, expected_norms(basis["norms"], context.n))
        count = self._count(self.k, context.n)
        if count == 1:
            return self._solve_without_tiers(profile)
        tiers = tiers_by_time(times, count)
        importance = profile.importance
        unit = least_moment(importance, tiers, inclusion_probabilities(importance, tiers, self.k))
        lean, reason = self._ratio(basis, unit)
        tried = [
            self._solve_tiers(k, lean, unit, basis["step"], times_with(k, profile, context))
            for k in self._choices(context.n, trusted=basis["pairs"] >= PRIOR_PAIRS)
        ]
        # K is chosen with c as measured: its limits only keep shares from favouring fast clients.
        c = unit * self._ratio(basis, unit, limits=(0.0, math.inf))[0]
        design, used = min(tried, key=lambda each: seconds_per_progress(each[0], each[1], c))
        heaviest = f"rounds of weight {basis['step']:.2g} at most"
        chosen = "" if self.k_max is None else f"K = {design.k} of at most {self.k_max}, "
        count = design.chances.size
        why = f"{chosen}{count} tiers, c = {lean:.2g} S₀: {reason}; {heaviest}"
        return Plan(design, used, {"lean": lean}, why)

    def _ratio(
        self, basis: Basis, unit: float, limits: tuple[float, float] = RATIO_LIMITS
    ) -> tuple[float, str]:
        given = self.c_over_s0
        return shrink_ratio(basis["c"], basis["pairs"], unit, given=given, limits=limits)

    def _count(self, k: int, n: int) -> int:
        """Return the number of tiers for K = k."""
        return min(max(round(n / k), 1) if self.tiers is None else self.tiers, n)

    def _choices(self, n: int, *, trusted: bool = True) -> list[int]:
        """Return the values of K to compare: powers of two and `k_max`, with two tiers at least.

        As long as c is not measured well, K does not grow.
        """
        if self.k_max is None:
            return [self.k]
        powers = [2**power for power in range(self.k_max.bit_length())]
        values = [k for k in sorted({*powers, self.k_max}) if self._count(k, n) > 1]
        return values if trusted else [k for k in values if k <= self.k] or values[:1]

    def _solve_tiers(
        self, k: int, lean: float, unit: float, step: float, profile: Profile
    ) -> tuple[Tiered, Profile]:
        """Return the design with K = k, and its profile."""
        importance, cap = profile.importance, self.max_weight
        if cap is not None and k < self.k:  # no weight can be below 1/K
            cap = max(cap, 1 / k)
        if self.k_max is not None:
            step = min(step, CHOSEN_WEIGHT * k)
        # In the unit of S, which is K times E‖u‖² up to a constant.
        ratio = k * lean * unit + (k - 1) * float(importance @ importance)
        found = solve_tiers(
            profile.weights,
            profile.times,
            profile.grad_norms,
            ratio,
            k,
            max_weight=cap,
            max_round_weight=step,
            tiers=self._count(k, profile.n),
        )
        parts = (found.tiers, found.chances, found.inclusion)
        design = Tiered(*parts, profile.weights, k=k, solution=found)
        return design, profile

    def _solve_without_tiers(self, profile: Profile) -> Plan:
        fleet = (profile.weights, profile.times, profile.grad_norms, profile.beta_over_alpha)
        found = solve_max_time(*fleet, self.k, max_weight=self.max_weight)
        tiers = np.zeros(profile.n, dtype=np.int64)
        inclusion = inclusion_probabilities(found.q, tiers, self.k)
        design = Systematic(inclusion, profile.weights, solution=found)
        return Plan(design, profile, {}, "too few clients for tiers: systematic draws, c = S₀")


def seconds_per_progress(design: Tiered, profile: Profile, c: float) -> float:
    """Return T (E‖u‖² + c), for orthogonal updates."""
    importance, k = profile.importance, design.k
    moment = design.variance_term(profile) + (k - 1) * float(importance @ importance)
    return design.expected_round_time(profile.times) * (moment / k + c)


# Multiples of the golden ratio spread evenly over the circle.
GOLDEN = (5**0.5 - 1) / 2
# Draws in a row without a reply after which a client is owed nothing; the server's correction for
# missing replies reaches as far.
PATIENCE = 5
# Clients above which what is owed is added up by tiers, with other last digits.
MANY = 10_000


class Balance(TypedDict):
    """The weight that each client received, summed over the rounds after `since`.

    `joined` are the rounds before the client was known; `missed` counts its draws in a row without
    a reply.
    """

    rounds: int
    received: FloatArray
    since: IntArray
    joined: IntArray
    missed: IntArray


def empty_balance(n: int) -> Balance:
    """Return the state before the first round."""
    since, joined, missed = np.zeros((3, n), dtype=np.int64)
    return Balance(rounds=0, received=np.zeros(n), since=since, joined=joined, missed=missed)


def add_round(balance: Balance, row: Row) -> Balance:
    """Add a round; reset the account of clients that stopped answering."""
    n = int(np.append(row.clients, row.missing).max(initial=-1)) + 1
    balance = extend_balance(balance, n)
    balance["received"][row.clients] += row.weights
    balance["rounds"] += 1
    balance["missed"][row.clients] = 0
    balance["missed"][row.missing] += 1
    silent = row.missing[balance["missed"][row.missing] >= PATIENCE]
    balance["received"][silent] = 0.0
    balance["since"][silent] = balance["rounds"]
    return balance


def extend_balance(balance: Balance, n: int) -> Balance:
    """Return the balance of at least `n` clients; new clients are owed nothing yet."""
    more = n - balance["received"].size
    if more <= 0:
        return balance
    now = np.full(more, balance["rounds"])
    return Balance(
        rounds=balance["rounds"],
        received=np.append(balance["received"], np.zeros(more)),
        since=np.append(balance["since"], now),
        joined=np.append(balance["joined"], now),
        missed=np.append(balance["missed"], np.zeros(more, dtype=np.int64)),
    )


def next_tier(
    design: Tiered, balance: Balance, present: NDArray[np.bool_] | None, chance: float
) -> int:
    """Return the tier that is due first, among those with a client present.

    Client i is owed p_i per round, or its share among the clients known at the time. Tier g is due
    whenever it is owed a complete round, of the weight P_g / m_g; so it gets the share m_g of the
    rounds, as evenly spaced as possible, whatever the earlier designs were. A client whose reply
    was missing is still owed, but not one that stopped answering: a tier that never answers would
    be drawn in every round. A tier without any answering client is drawn every 1 / m_g rounds.
    `chance`, uniform in [0, 1), places the first round of each tier.
    """
    balance = extend_balance(balance, design.n)
    count = design.chances.size
    if design.n > MANY and _is_plain(balance, design.n):
        held = np.bincount(design.tiers, design.weights, count)
        received = np.bincount(design.tiers, balance["received"][: design.n], count)
        turns = (held * balance["rounds"] - received) * design.chances / held
        return _first_due(design, turns, present, chance, np.ones(count, dtype=np.bool_))
    heard = balance["missed"][: design.n] < PATIENCE
    some_heard = np.bincount(design.tiers, heard, count) > 0
    weights = np.where(heard | ~some_heard[design.tiers], design.weights, 0.0)
    rounds = _rounds_owed(balance, design.weights)
    owed = weights * rounds - balance["received"][: design.n]
    held = np.bincount(design.tiers, weights, count)
    turns = np.bincount(design.tiers, owed, count) * design.chances / held
    return _first_due(design, turns, present, chance, some_heard)


def _is_plain(balance: Balance, n: int) -> bool:
    """Whether all were there from the first round and still answer: then tiers are added up."""
    silent = balance["missed"][:n].max() >= PATIENCE
    return not (silent or balance["joined"][:n].any() or balance["since"][:n].any())


def _first_due(
    design: Tiered,
    turns: FloatArray,
    present: NDArray[np.bool_] | None,
    chance: float,
    some_heard: NDArray[np.bool_],
) -> int:
    """Return the tier that is due first, from the rounds that each is owed."""
    count = design.chances.size
    turns += np.where(some_heard, (chance + GOLDEN * np.arange(count)) % 1.0, 0.0)
    wait = (1 - turns) / design.chances
    if present is not None:
        there = np.bincount(design.tiers, present[: design.n], count) > 0
        wait[~there] = np.inf
    return int(np.argmin(wait))


def _rounds_owed(balance: Balance, weights: FloatArray) -> FloatArray:
    """Return the rounds for which each client is owed p_i; rounds with fewer clients count more.

    Otherwise the first clients would have received too much, and clients that join later would be
    drawn in every round until they had made up for the rounds before.
    """
    n = weights.size
    joined, since = balance["joined"][:n], balance["since"][:n]
    if not joined.any() and not since.any():
        return np.full(n, float(balance["rounds"]))
    starts = np.unique(joined)
    held = np.cumsum(np.bincount(np.searchsorted(starts, joined), weights))
    held[-1] = 1.0  # exactly: all clients known now
    knots = np.append(starts, balance["rounds"])
    counted = np.append(0.0, np.cumsum(np.diff(knots) / held))
    rounds: FloatArray = counted[-1] - np.interp(since, knots, counted)
    return rounds


def times_with(k: int, profile: Profile, context: SamplerContext) -> Profile:
    """Return the profile if K = k clients share the server's link; the same without such a link.

    The part of the times that is not computing grows with the number that shares it.
    """
    sharing, computing = context.shared_by, context.computing
    if sharing is None or computing is None or sharing == k:
        return profile
    times = profile.times * (computing + (1 - computing) * (k / sharing))
    return Profile(profile.weights, times, profile.grad_norms)
