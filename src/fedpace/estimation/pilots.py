"""Algorithm 2 as a sampler: two pilots, estimates, the optimal design."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

import numpy as np

from fedpace.checks import positive_count
from fedpace.errors import InputError
from fedpace.estimation.learned import Learned, learn, nothing_learned, profile_of, snapshot
from fedpace.estimation.ratio import RatioEstimate, estimate_ratio
from fedpace.estimation.solve import LatestPlan, is_due
from fedpace.rounds.rows import Row
from fedpace.rounds.sampler import START, Known, Phase, Plan
from fedpace.rounds.stopping import DIVERGED, TIME_IS_UP, Stop
from fedpace.sampling.schemes import SCHEMES, Scheme

PILOTS = ("uniform", "weighted")
# What the notes of a plan hold the estimate of c under.
RATIO = "ratio"


class PilotsState(TypedDict):
    """Which pilot is running (2: none any more), how their losses fell, what was learned.

    `diverged` counts pilots, `rounds` those of training. `piloted` is what the pilots taught,
    `basis` what was known when the design was last solved for.
    """

    pilot: int
    diverged: int
    losses: list[list[float]]
    rounds: int
    learned: Learned
    piloted: Learned
    basis: Learned


@dataclass(frozen=True, eq=False)
class Piloted:
    """Learn G, c and t from two pilots, solve, and train on from the better one [Luo22, Alg. 2].

    The uniform pilot comes first, the weighted one after it on the same clock. Both start from
    the initial model, as in the paper; their time counts. Gradient norms come from both, and so
    do times where nobody knows them.

    Parameters
    ----------
    scheme, k, refresh, max_weight
        As in `Solve`.
    thresholds : losses F_s
        Both pilots run until they pass the lowest.
    pilot_rounds : int ≥ 1
        Or until this many rounds are over.
    c_over_s0 : float, optional
        c in units of S_0, instead of the estimate.
    """

    scheme: Scheme
    k: int
    thresholds: Sequence[float]
    pilot_rounds: int
    refresh: int | None = None
    max_weight: float | None = None
    c_over_s0: float | None = None
    _latest: LatestPlan = field(default_factory=LatestPlan, repr=False)

    def __post_init__(self) -> None:
        positive_count("k", self.k)
        positive_count("pilots.rounds", self.pilot_rounds, "give the rounds of a pilot")
        if self.refresh is not None:
            positive_count("refresh", self.refresh, "give the rounds between two solutions")
        if not self.thresholds:
            raise InputError(
                "pilots.thresholds must hold a loss, got none; give losses to pass on the way"
            )

    def init(self, n: int) -> PilotsState:
        """Return the state before the first pilot."""
        learned, piloted, basis = (nothing_learned(n) for _ in range(3))
        return PilotsState(
            pilot=0,
            diverged=0,
            losses=[[], []],
            rounds=0,
            learned=learned,
            piloted=piloted,
            basis=basis,
        )

    def phase(self, state: PilotsState) -> Phase:
        """Return the pilot that is running, or training from the end of the better one."""
        pilot = state["pilot"]
        if pilot == len(PILOTS):
            return Phase(model=f"pilot-{PILOTS[_better(state)]}")
        until = Stop(loss=min(self.thresholds), rounds=self.pilot_rounds)
        model = START if pilot else None
        return Phase(f"pilot-{PILOTS[pilot]}", ("pilot-draw", pilot), model, until)

    def observe(self, state: PilotsState, row: Row) -> PilotsState:
        """Learn from a round; begin the next pilot, or training, where a pilot ends."""
        if not row.round:
            state["losses"] = [[row.loss] for _ in PILOTS]
            return state
        state["learned"] = learn(state["learned"], row)
        if state["pilot"] == len(PILOTS):
            state["rounds"] += 1
        else:
            state["losses"][state["pilot"]].append(row.loss)
            state["diverged"] += row.ended == DIVERGED
            # A run whose time is up may be given more: its pilot then goes on.
            state["pilot"] += row.ended not in ("", TIME_IS_UP)
            if state["pilot"] == len(PILOTS):
                state["piloted"] = snapshot(state["learned"])
        if state["pilot"] == len(PILOTS) and is_due(state["rounds"], self.refresh):
            state["basis"] = snapshot(state["learned"])
        return state

    def design(self, state: PilotsState, known: Known) -> Plan:
        """Return that of the pilot, or the optimal one as last solved for."""
        pilot = state["pilot"]
        if pilot < len(PILOTS):
            return self._latest.of_counts(SCHEMES[PILOTS[pilot]], self.k, known)
        if state["diverged"] == len(PILOTS):
            return self._latest.of_counts(SCHEMES[PILOTS[0]], self.k, known)
        return self._latest.get(state["basis"], known, lambda: self._solved(state, known))

    def _solved(self, state: PilotsState, known: Known) -> Plan:
        ratio = self._ratio(state, known)
        estimate = None if self.c_over_s0 is not None else ratio.value
        profile = profile_of(
            state["basis"], known, c_over_s0=self.c_over_s0, beta_over_alpha=estimate
        )
        design = self.scheme(profile, self.k, max_weight=self.max_weight)
        notes: dict[str, Any] = {RATIO: ratio._asdict()}
        return Plan(design, profile, notes)

    def _ratio(self, state: PilotsState, known: Known) -> RatioEstimate:
        """Return c as the pilots tell it."""
        profile = profile_of(state["piloted"], known)
        uniform, weighted = (_filled(losses) for losses in state["losses"])
        return estimate_ratio(
            uniform, weighted, self.thresholds, profile.weights, profile.grad_norms
        )


def _better(state: PilotsState) -> int:
    """Return the pilot with the lower loss at its end; the first of equals."""
    ends = [losses[-1] if math.isfinite(losses[-1]) else math.inf for losses in state["losses"]]
    return ends.index(min(ends))


def _filled(losses: list[float]) -> list[float]:
    """Draw a line between the rounds whose loss is known; beyond the last there is nothing.

    >>> _filled([3.0, math.nan, 1.0, math.nan])
    [3.0, 2.0, 1.0]
    """
    known = np.flatnonzero(np.isfinite(losses))
    if not known.size:
        return []
    filled = np.interp(np.arange(known[-1] + 1), known, np.array(losses)[known])
    return filled.tolist()  # type: ignore[no-any-return]
