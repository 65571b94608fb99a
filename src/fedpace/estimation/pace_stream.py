"""The sampler `pace` where no round is waited for: turns by P3, and steps as small as is borne."""

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
from fedpace.estimation.stride import Tempo, after_step, first_tempo, steps_at
from fedpace.profile import Profile
from fedpace.rounds.memory import Memory
from fedpace.rounds.rows import Row
from fedpace.rounds.sampler import TRAIN, Known, Phase, Plan
from fedpace.rounds.seen import Seen
from fedpace.sampling.shares import bounded_shares, solve_shares
from fedpace.sampling.solution import check_cap
from fedpace.sampling.turns import InTurn

# c is this part of what it is in rounds, within limits in units of S_0: noise is older here.
PART_OF_LEAN, LIMITS = 0.1, (0.03, 0.3)
# Cap on the weight of a completion, next to its weight under weighted sampling.
MAX_WEIGHT = 1.5


class Basis(TypedDict):
    """What a design is solved for."""

    norms: FloatArray
    learned: Learned
    c: float
    length: float
    pairs: float
    buffer: int


class PaceStreamState(Lessons):
    """Completions so far and at the latest solution, what was learned, and how long steps are."""

    completions: int
    solved: int
    learned: Learned
    tempo: Tempo
    basis: Basis


@dataclass(frozen=True, eq=False)
class PaceStream:
    """Keep C clients at work, in turn, by shares that P3 finds, and step with few updates.

    No pilots and no setting: the run begins with weighted shares and a step of C updates. Norms and
    times are learned from every reply; the shares minimise the time per progress, P3, which is
    exact here, with c as measured. Steps are made of ever fewer updates, down to one, as the
    learning rate falls; where it does not, as long as the loss falls, and of more where it rises:
    see `steps_at` and `after_step`.

    Parameters
    ----------
    at_once : int ≥ 1
        C, the clients at work.
    warm_up, refresh : int ≥ 1
        Completions, in units of C, before the first solution and between two.
    max_weight : float ≥ 1
        Cap on the weight of a completion, next to its weight under weighted sampling.
    c_over_s0 : float > 0, optional
        c in units of the least second moment of a step, instead of as measured.
    buffer : int ≥ 1, optional
        B, the updates in a step, instead of as the loss bears.
    server : Server
        What runs make of the replies where nobody says otherwise.

    Examples
    --------
    >>> sampler = PaceStream(at_once=10)
    >>> sampler.phase(sampler.init(n=100)).name
    'warm-up'
    """

    at_once: int
    warm_up: int = 3
    refresh: int = 2
    max_weight: float = MAX_WEIGHT
    c_over_s0: float | None = None
    buffer: int | None = None
    server: Any = field(default_factory=Memory)
    _latest: LatestPlan = field(default_factory=LatestPlan, repr=False)

    def __post_init__(self) -> None:
        positive_count("at_once", self.at_once)
        positive_count("warm_up", self.warm_up, "give 3")
        positive_count("refresh", self.refresh, "give 2")
        if self.buffer is not None:
            positive_count("buffer", self.buffer, "leave it out to have it steered")
        check_cap("max_weight", self.max_weight, 1)
        check_lean(self.c_over_s0)

    def init(self, n: int) -> PaceStreamState:
        """Return the state before the first task."""
        return PaceStreamState(
            completions=0,
            solved=0,
            norms=np.full(n, math.nan),
            rate=math.nan,
            learned=nothing_learned(n),
            agreement=no_agreement(),
            tempo=first_tempo(1.0),
            basis=Basis(
                norms=np.full(n, math.nan),
                learned=nothing_learned(n),
                c=math.nan,
                length=math.nan,
                pairs=0.0,
                buffer=self.at_once,
            ),
        )

    def phase(self, state: PaceStreamState) -> Phase:
        """Return warm-up or training."""
        return WARM_UP if state["completions"] < self.warm_up * self.at_once else TRAIN

    def see(self, state: PaceStreamState, seen: Seen) -> PaceStreamState:
        """Learn from the updates themselves: their lengths, and how they change."""
        return taught(state, seen)

    def observe(self, state: PaceStreamState, row: Row) -> PaceStreamState:
        """Learn times and how long steps may be; note what is known where a solution is due."""
        state["tempo"] = after_step(state["tempo"], row, self._limits, rate=state["rate"])
        if not row.round:
            return state
        state["learned"] = learn(state["learned"], row)
        state["completions"] += row.clients.size + row.missing.size
        since = state["completions"] - max(state["solved"], self.warm_up * self.at_once)
        if since >= self.refresh * self.at_once or (since >= 0 and not state["solved"]):
            state["solved"] = state["completions"]
            state["basis"] = self._basis(state)
        return state

    def design(self, state: PaceStreamState, known: Known) -> Plan:
        """Return the shares in use, and how many updates make a step now."""
        basis = state["basis"]
        solve = self._weighted if self.phase(state) is WARM_UP else self._solved
        plan = self._latest.get(basis, known, lambda: solve(basis, known))
        return plan._replace(buffer=self._buffer(state, known.rate))

    @property
    def _limits(self) -> tuple[float, float]:
        """Of C/B."""
        return 1.0, float(self.at_once)

    def _buffer(self, state: PaceStreamState, rate: float) -> int:
        steps = steps_at(state["tempo"], rate, self._limits)
        return self.buffer or max(round(self.at_once / steps), 1)

    def _weighted(self, basis: Basis, known: Known) -> Plan:
        times = _times(basis, known)
        slots = min(self.at_once, known.n)
        shares = bounded_shares(known.weights, times, slots)
        design = InTurn(shares, known.weights, slots, times=times)
        return Plan(design, why="warm-up: weighted shares, to learn from")

    def _solved(self, basis: Basis, known: Known) -> Plan:
        times, norms = _times(basis, known), expected_norms(basis["norms"], known.n)
        least = float(known.weights @ norms) ** 2  # S_0
        buffer = basis["buffer"]
        lean, reason = leaning(basis["c"], basis["pairs"], least / buffer, given=self.c_over_s0)
        if self.c_over_s0 is None:
            lean = float(np.clip(PART_OF_LEAN * lean, *LIMITS))
        rest = 0.0 if math.isnan(basis["length"]) else (buffer - 1) * basis["length"]
        profile = Profile(known.weights, times, norms, lean * least + rest)
        slots = min(self.at_once, known.n)
        found = solve_shares(
            profile.weights,
            profile.times,
            profile.grad_norms,
            profile.beta_over_alpha,
            slots,
            self.max_weight,
        )
        design = InTurn(found.q, profile.weights, slots, times=profile.times, solution=found)
        why = f"shares by P3, c = {lean:.2g} S₀: {reason}"
        return Plan(design, profile, {"lean": lean}, why)

    def _basis(self, state: PaceStreamState) -> Basis:
        measured = measured_ratio(state["agreement"], state["rate"])
        return Basis(
            norms=state["norms"].copy(),
            learned=snapshot(state["learned"]),
            c=measured.c,
            length=state["agreement"]["length"],
            pairs=measured.pairs,
            buffer=self._buffer(state, state["rate"]),
        )


def _times(basis: Basis, known: Known) -> FloatArray:
    if known.times is None and not (basis["learned"]["replies"] > 0).any():
        return np.ones(known.n)
    return times_of(basis["learned"], known)
