"""Algorithm 2 as a sampler: two pilots, an estimate of c = β/α from them, the optimal design."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypedDict

import numpy as np

from fedpace.checks import FloatArray, positive_count
from fedpace.errors import InputError
from fedpace.profile import stand_in
from fedpace.samplers.client_stats import (
    ClientStats,
    empty_client_stats,
    learn,
    profile_of,
    snapshot,
)
from fedpace.samplers.solve import LatestPlan, is_due
from fedpace.sampling.schemes import SCHEMES, Scheme
from fedpace.training.history import Row
from fedpace.training.sampler import START, BaseSampler, Phase, Plan, SamplerContext
from fedpace.training.stopping import DIVERGED, TIME_IS_UP, Stop

PILOTS = ("uniform", "weighted")
# The name of the estimate of c in a plan's notes.
RATIO = "ratio"
# Uniform and weighted sampling must differ in S by more than this factor for c to be identified.
LEAST_CONTRAST = 1.1
# Cap on c in units of S_0: beyond it the bound would draw only the fastest clients.
LARGEST_RATIO = 10.0
# Tolerance on log U/V: an excess of ρ below this is rounding.
EXPLAINED = 0.01
# Standard deviations to either side of the estimate.
INTERVAL = 2.0


class PilotsState(TypedDict):
    """Which pilot runs (2: none any more), their losses, and the statistics of clients.

    `diverged` counts pilots, `rounds` those of training. `piloted` are the statistics after the
    pilots, `basis` those that the design was last solved for.
    """

    pilot: int
    diverged: int
    losses: list[list[float]]
    rounds: int
    stats: ClientStats
    piloted: ClientStats
    basis: ClientStats


@dataclass(frozen=True, eq=False)
class Piloted(BaseSampler):
    """Estimate G, c and t by two pilots, solve, and train from the better one [Luo22, Alg. 2].

    The uniform pilot comes first, then the weighted one, on the same clock. Both start from the
    initial model, as in the paper; their time counts. Gradient norms come from both, and so do
    times unless they are known beforehand.

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
        stats, piloted, basis = (empty_client_stats(n) for _ in range(3))
        return PilotsState(
            pilot=0,
            diverged=0,
            losses=[[], []],
            rounds=0,
            stats=stats,
            piloted=piloted,
            basis=basis,
        )

    def phase(self, state: PilotsState) -> Phase:
        """Return the pilot that runs, or training from the end of the better one."""
        pilot = state["pilot"]
        if pilot == len(PILOTS):
            return Phase(model=f"pilot-{PILOTS[_better(state)]}")
        until = Stop(loss=min(self.thresholds), rounds=self.pilot_rounds)
        model = START if pilot else None
        return Phase(f"pilot-{PILOTS[pilot]}", ("pilot-draw", pilot), model, until)

    def observe(self, state: PilotsState, row: Row) -> PilotsState:
        """Learn from a round; where a pilot ends, begin the next one, or training."""
        if not row.round:
            state["losses"] = [[row.loss] for _ in PILOTS]
            return state
        state["stats"] = learn(state["stats"], row)
        if state["pilot"] == len(PILOTS):
            state["rounds"] += 1
        else:
            state["losses"][state["pilot"]].append(row.loss)
            state["diverged"] += row.ended == DIVERGED
            # A run that ended by its time limit may be resumed with more: then the pilot continues.
            state["pilot"] += row.ended not in ("", TIME_IS_UP)
            if state["pilot"] == len(PILOTS):
                state["piloted"] = snapshot(state["stats"])
        if state["pilot"] == len(PILOTS) and is_due(state["rounds"], self.refresh):
            state["basis"] = snapshot(state["stats"])
        return state

    def design(self, state: PilotsState, context: SamplerContext) -> Plan:
        """Return the design of the pilot, or the optimal one as last solved for."""
        pilot = state["pilot"]
        if pilot < len(PILOTS):
            return self._latest.of_counts(SCHEMES[PILOTS[pilot]], self.k, context)
        if state["diverged"] == len(PILOTS):
            return self._latest.of_counts(SCHEMES[PILOTS[0]], self.k, context)
        return self._latest.get(state["basis"], context, lambda: self._solve(state, context))

    def _solve(self, state: PilotsState, context: SamplerContext) -> Plan:
        ratio = self._ratio(state, context)
        estimate = None if self.c_over_s0 is not None else ratio.value
        profile = profile_of(
            state["basis"], context, c_over_s0=self.c_over_s0, beta_over_alpha=estimate
        )
        design = self.scheme(profile, self.k, max_weight=self.max_weight)
        notes: dict[str, Any] = {RATIO: ratio._asdict()}
        return Plan(design, profile, notes)

    def _ratio(self, state: PilotsState, context: SamplerContext) -> RatioEstimate:
        profile = profile_of(state["piloted"], context)
        uniform, weighted = (_interpolate(losses) for losses in state["losses"])
        return estimate_ratio(
            uniform, weighted, self.thresholds, profile.weights, profile.grad_norms
        )


def _better(state: PilotsState) -> int:
    """Return the pilot with the lower loss at its end; the first of equals."""
    ends = [losses[-1] if math.isfinite(losses[-1]) else math.inf for losses in state["losses"]]
    return ends.index(min(ends))


def _interpolate(losses: list[float]) -> list[float]:
    """Interpolate unknown losses linearly, up to the last known one.

    >>> _interpolate([3.0, math.nan, 1.0, math.nan])
    [3.0, 2.0, 1.0]
    """
    known = np.flatnonzero(np.isfinite(losses))
    if not known.size:
        return []
    filled = np.interp(np.arange(known[-1] + 1), known, np.array(losses)[known])
    return filled.tolist()  # type: ignore[no-any-return]


class RatioEstimate(NamedTuple):
    """c with an interval; `identified` is False where `value` is a default.

    `rho` is R_uniform / R_weighted, combined over all thresholds that both pilots passed.
    """

    value: float
    low: float
    high: float
    identified: bool
    reason: str
    rho: float


def estimate_ratio(
    uniform_losses: Sequence[float],
    weighted_losses: Sequence[float],
    thresholds: Sequence[float],
    weights: FloatArray,
    grad_norms: FloatArray,
) -> RatioEstimate:
    """Estimate c = β/α from how soon two pilots pass the same losses [Luo22, Alg. 2].

    R ∝ S + c for either pilot, with S = U = N Σ p_i² G_i² under uniform and S = V = Σ p_i G_i²
    under weighted sampling, so ρ = R_uniform/R_weighted = (U + c)/(V + c), and
    c = (ρ V − U)/(1 − ρ).

    Differs from [Luo22, Alg. 2], which averages c over the thresholds: near ρ = 1 each c is a
    quotient of noise and may be negative. Here log ρ is averaged over the thresholds before it is
    inverted, with an interval of two standard deviations. Its variance is that between thresholds
    plus that of the pilots themselves, which all thresholds share: see `_pilot_variance`. The
    interval is mapped to c, and c is cut to [0, 10 S_0]. c is not identified, and the value is S_0
    moved into the interval, where the interval has no upper end, where U ≈ V, and where ρ is beyond
    U/V, which no c explains.

    Parameters
    ----------
    uniform_losses, weighted_losses : sequences
        Global loss after rounds 0, 1, 2, … of each pilot.
    thresholds : sequence
        The losses F_s.
    weights, grad_norms : arrays of N
        p_i and G_i.
    """
    if not thresholds:
        raise InputError("thresholds must not be empty, got none; give losses to pass on the way")
    any_gradient = bool(grad_norms.any())
    grad_norms = stand_in(grad_norms)
    default = float(weights @ grad_norms) ** 2
    largest = LARGEST_RATIO * default
    uniform_variance = weights.size * float(weights**2 @ grad_norms**2)
    weighted_variance = float(weights @ grad_norms**2)
    logs = _log_rhos(uniform_losses, weighted_losses, thresholds)
    if not logs or not any_gradient:
        reason = "no threshold passed" if any_gradient else "all gradient norms are 0"
        return RatioEstimate(default, 0.0, math.inf, False, reason, math.nan)
    middle, rho = float(np.mean(logs)), math.exp(float(np.mean(logs)))
    variance = _pilot_variance(uniform_losses) + _pilot_variance(weighted_losses)
    spread = INTERVAL * math.sqrt(float(np.var(logs)) + variance)
    contrast = uniform_variance / weighted_variance
    if max(contrast, 1 / contrast) < LEAST_CONTRAST:
        return RatioEstimate(default, 0.0, math.inf, False, "balanced data: U ≈ V", rho)
    low, value, high = sorted(
        _invert(math.exp(log), uniform_variance, weighted_variance)
        for log in (middle - spread, middle, middle + spread)
    )
    moved = min(max(default, low), high, largest)
    if low == math.inf:
        return RatioEstimate(default, 0.0, math.inf, False, "ρ on the wrong side of 1", rho)
    if abs(middle) > abs(math.log(contrast)) + EXPLAINED:
        return RatioEstimate(moved, low, high, False, "ρ beyond U/V: no c explains it", rho)
    if high > largest:
        return RatioEstimate(moved, low, high, False, "the interval has no upper end", rho)
    return RatioEstimate(value, low, high, True, "", rho)


def rounds_to_pass(losses: Sequence[float], threshold: float) -> float:
    """Return the round at which the loss first passes the threshold, between rounds linearly.

    >>> rounds_to_pass([2.0, 1.0, 0.5], 1.5)
    0.5
    >>> rounds_to_pass([2.0, 1.0, 0.5], 0.1)
    inf
    """
    for index, loss in enumerate(losses):
        if loss <= threshold:
            if index == 0:
                return 0.0
            before = losses[index - 1]
            return index - 1 + (before - threshold) / (before - loss)
    return math.inf


def _log_rhos(
    uniform_losses: Sequence[float], weighted_losses: Sequence[float], thresholds: Sequence[float]
) -> list[float]:
    logs = []
    for threshold in thresholds:
        first = rounds_to_pass(uniform_losses, threshold)
        second = rounds_to_pass(weighted_losses, threshold)
        if 0 < first < math.inf and 0 < second < math.inf:
            logs.append(math.log(first / second))
    return logs


def _pilot_variance(losses: Sequence[float]) -> float:
    """Return the variance of the logarithm of a pilot's rounds to a threshold.

    If the loss falls by D in n rounds, in steps that scatter by σ around their trend, the rounds
    to a given loss scatter by the fraction σ √n / D (first passage of a random walk with drift).
    σ² is estimated from the upward steps, which the trend does not cause, and doubled for the
    downward ones. A loss that only falls has no variance.
    """
    steps = -np.diff(losses)
    fall = float(steps.sum())
    if not fall > 0:
        return 0.0
    scatter = 2 * float(np.mean(np.minimum(steps, 0) ** 2))
    return scatter * steps.size / fall**2


def _invert(rho: float, uniform_variance: float, weighted_variance: float) -> float:
    """Return the c ≥ 0 whose ρ is nearest: ρ runs from U/V at c = 0 to 1 at c = ∞."""
    towards_one = (rho - 1) * (uniform_variance - weighted_variance)
    if towards_one <= 0:
        return math.inf
    return max((rho * weighted_variance - uniform_variance) / (1 - rho), 0.0)
