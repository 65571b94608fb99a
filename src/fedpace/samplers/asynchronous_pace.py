"""The sampler `pace` in asynchronous training: shares by P3, and steps from measured curvature."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from fedpace.checks import FloatArray, positive_count
from fedpace.profile import Profile
from fedpace.samplers.client_stats import (
    UpdateStats,
    current_times,
    drop_outliers,
    empty_update_stats,
    expected_norms,
    learn,
    learn_from_kept,
)
from fedpace.samplers.curvature import mean_direction
from fedpace.samplers.local_work import (
    AUTO,
    LONGER,
    LocalWork,
    best_steps,
    check_local_steps,
    first_work,
    learn_work,
    split_times,
)
from fedpace.samplers.pace import (
    BasePace,
    Basis,
    Pace,
    PaceState,
    take_snapshot,
)
from fedpace.samplers.solve import WARM_UP
from fedpace.samplers.step import (
    SHORTEST,
    MeasuredUpdates,
    StepSize,
    begin_step,
    falls_fast,
    first_step,
    guard_step,
    update_step_size,
    updates_per_step,
)
from fedpace.sampling.design import as_design
from fedpace.sampling.dispatch import InTurn, as_dispatch
from fedpace.sampling.solvers.shares import bounded_shares, solve_shares
from fedpace.sampling.solvers.solution import check_cap
from fedpace.training.history import Row
from fedpace.training.sampler import TRAIN, Handover, Phase, Plan, SamplerContext
from fedpace.training.updates import RoundUpdates, latest_of_each, places_of

# Completions between two solutions, at least this part of all clients: fewer change little, and
# solving for a million clients takes a second.
LEAST_PART = 1 / 200
# Cap on the weight of a completion, over its weight under weighted sampling.
MAX_WEIGHT = 1.5
# Pairs of updates before E is limited by the curvature.
TRUSTED = 5.0


class AsynchronousPaceState(UpdateStats):
    """Completions so far and at the latest solution, statistics, and those of that solution.

    `size` is how far steps go; `work` is what E follows from now, and `planned` what it was at the
    latest solution.
    """

    completions: int
    solved: int
    size: StepSize
    work: LocalWork
    planned: LocalWork
    basis: Basis


@dataclass(frozen=True, eq=False)
class AsynchronousPace(BasePace):
    """Keep C clients at work, in turn, by shares that solve P3, and step as far as is best.

    It needs no pilots and no settings. The run begins with weighted shares and a step of C updates.
    Norms, times and curvature are learned from every reply. The shares minimise the time per
    progress, P3, which is exact here; its constant c is 2C ‖d̄‖², as measured. Then every update is
    a step, of γ = 2 / (λ (2A + κ ρ)), which follows from measured curvature, age and noise,
    whatever the clients' learning rate: see `update_step_size`. Where that falls as fast as
    η_0 / (1 + r) does, steps follow it instead, down to a fifth of γ: see `updates_per_step`. If
    the loss diverges, training goes on from its best model.

    Parameters
    ----------
    k : int ≥ 1
        C, the clients at work.
    warm_up, refresh : int ≥ 1
        Completions, in units of C, before the first solution and between two; between two at least
        N/200.
    max_weight : float ≥ 1, optional
        Cap on the weight of a completion, over its weight under weighted sampling.
    c_over_s0 : float > 0, optional
        c in units of the least second moment of a step, instead of as measured.
    buffer : int ≥ 1, optional
        B, the updates in a step, each as it was made, instead of steps of γ.
    local_steps : int ≥ 1 or "auto", optional
        E, instead of as many steps as clients are configured for. "auto" chooses E from measured
        noise and times: see `fedpace.samplers.local_work`. Steps are then of γ in any case.
    server : BaseServer
        The default server.
    reason : str
        Why training is asynchronous, for the history.

    Examples
    --------
    >>> sampler = AsynchronousPace(k=10)
    >>> sampler.phase(sampler.init(n=100)).name
    'warm-up'
    """

    refresh: int = 2
    max_weight: float | None = MAX_WEIGHT
    buffer: int | None = None
    local_steps: int | str | None = None
    reason: str = ""
    returns_to_best = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_local_steps(self.local_steps)
        if self.buffer is not None:
            positive_count("buffer", self.buffer, "leave it out to have it chosen")
        if self.max_weight is not None:
            check_cap("max_weight", self.max_weight, 1)

    def init(self, n: int) -> AsynchronousPaceState:
        """Return the state before the first task."""
        empty = empty_update_stats(n)
        return AsynchronousPaceState(
            **empty,
            completions=0,
            solved=0,
            size=first_step(),
            work=first_work(),
            planned=first_work(),
            basis=take_snapshot(empty, 1.0),
        )

    def phase(self, state: AsynchronousPaceState) -> Phase:
        """Return warm-up or training."""
        return WARM_UP if state["completions"] < self.warm_up * self.k else TRAIN

    def see(self, state: AsynchronousPaceState, updates: RoundUpdates) -> AsynchronousPaceState:
        """Learn norms, curvature and the size of steps from the updates."""
        if self.local_steps == AUTO:
            state["work"] = learn_work(state["work"], updates, self.k)
        mean = mean_direction(state["curvature"], updates.weights)
        used = drop_outliers(updates, state["norms"])
        state = learn_from_kept(state, used)
        state["size"] = self._learn_size(state, used, mean, updates.draw.clients.size)
        return state

    def _learn_size(
        self, state: AsynchronousPaceState, used: RoundUpdates, mean: FloatArray, count: int
    ) -> StepSize:
        """Learn γ from what these of `count` updates have in common with the mean before them."""
        size = begin_step(state["size"], used.learning_rate, used.mean_steps)
        seen = state["curvature"]
        places = places_of(used.draw.clients, seen["clients"])
        kept = np.zeros(places.size, dtype=np.bool_)
        kept[latest_of_each(used.draw.clients)] = True
        kept &= places >= 0
        used, places = used.only(kept), places[kept]
        clients, started = used.draw.clients, used.started
        if started is None:
            return size
        weights = used.draw.weights * count
        return update_step_size(
            size,
            MeasuredUpdates(
                gains=weights * (seen["updates"][places] @ mean),
                moments=weights**2 * state["norms"][clients] ** 2,
                weights=weights,
                ages=count * (used.version - started.versions).astype(np.float64),
            ),
            at_once=self.k,
            n=used.weights.size,
            curvature=seen["bend"] / seen["moved"] if seen["moved"] > 0 else math.nan,
            pairs=seen["pairs"],
        )

    def observe(self, state: AsynchronousPaceState, row: Row) -> AsynchronousPaceState:
        """Learn times and the size of steps; take a snapshot when a solution is due."""
        state["size"] = guard_step(state["size"], row, self.k)
        if not row.round:
            return state
        state["stats"] = learn(state["stats"], row)
        state["completions"] += row.clients.size + row.missing.size
        since = state["completions"] - max(state["solved"], self.warm_up * self.k)
        often = max(self.refresh * self.k, LEAST_PART * state["norms"].size)
        if since >= often or (since >= 0 and not state["solved"]):
            state["solved"] = state["completions"]
            state["basis"] = take_snapshot(state, 1.0)
            state["planned"] = LocalWork(**state["work"])
        return state

    def design(self, state: AsynchronousPaceState, context: SamplerContext) -> Plan:
        """Return the shares in use, and the step to take now."""
        basis, planned = state["basis"], state["planned"]
        solve = self._weighted if self.phase(state) is WARM_UP else self._solve
        plan = self._latest.get(basis, context, lambda: solve(basis, context, planned))
        chosen = self.local_steps == AUTO and plan.local_steps is not None
        if chosen:
            steps = state["work"]["steps"] = int(cast(int, plan.local_steps))
            if state["completions"] % 2 and not plan.notes["split"]:
                plan = plan._replace(local_steps=math.ceil(LONGER * steps))
        size, rate = state["size"], context.rate
        if self.buffer is not None or math.isnan(size["step"]):
            return plan._replace(buffer=self.buffer or self.k)
        if chosen or not falls_fast(size, rate, context.round):
            return plan._replace(buffer=1, step=size["step"])
        count, least = updates_per_step(size, rate, self.k), size["step"] / SHORTEST
        if count == 1 and rate / size["rate"] * size["first"] < least:
            return plan._replace(buffer=1, step=least)
        return plan._replace(buffer=count)

    def _times(
        self, basis: Basis, context: SamplerContext, planned: LocalWork | None
    ) -> tuple[FloatArray, dict[str, Any]]:
        """Return the times of the next tasks, and what a plan says of their local steps."""
        stats, known = basis["stats"], (basis["stats"]["replies"] > 0).any()
        unknown = context.times is None and not known
        times = np.ones(context.n) if unknown else current_times(stats, context)
        if self.local_steps is None or planned is None or planned["fixed"]:
            return times, {}
        split = split_times(stats, context)
        if isinstance(self.local_steps, int):
            times = times if context.times is None else split.at(self.local_steps)
            return times, {"local_steps": self.local_steps}
        steps = best_steps(planned, split, context, progress=basis["length"], bend=_bend(basis))
        return split.at(steps), {"local_steps": steps, "notes": {"split": split.clear}}

    def _weighted(
        self, basis: Basis, context: SamplerContext, planned: LocalWork | None = None
    ) -> Plan:
        times, more = self._times(basis, context, planned)
        slots = min(self.k, context.n)
        shares = bounded_shares(context.weights, times, slots)
        design = InTurn(shares, context.weights, slots, times=times)
        return Plan(design, why="warm-up: weighted shares, to learn from", **more)

    def _solve(
        self, basis: Basis, context: SamplerContext, planned: LocalWork | None = None
    ) -> Plan:
        times, more = self._times(basis, context, planned)
        norms = expected_norms(basis["norms"], context.n)
        least = float(context.weights @ norms) ** 2  # S_0
        c = 2 * self.k * basis["length"]
        if self.c_over_s0 is not None or not c > 0:
            c = (self.c_over_s0 or 1.0) * least
        profile = Profile(context.weights, times, norms, c)
        slots = min(self.k, context.n)
        found = solve_shares(
            profile.weights,
            profile.times,
            profile.grad_norms,
            profile.beta_over_alpha,
            slots,
            self.max_weight,
        )
        design = InTurn(found.q, profile.weights, slots, times=profile.times, solution=found)
        reason = "measured" if self.c_over_s0 is None else "as given"
        why = f"shares by P3, c = {c / least:.2g} S₀, {reason}{self.reason}"
        notes = {"lean": c / least, **more.pop("notes", {})}
        return Plan(design, profile, notes, why, **more)


def _bend(basis: Basis) -> float:
    """Return η λ, or 0 where it is not known yet."""
    return basis["bend"] if basis["pairs"] >= TRUSTED else 0.0


class AutoPaceState(PaceState):
    """The state of `Pace`, the first learning rate, and why rounds go on, once that is decided."""

    first_rate: float
    decided: str


@dataclass(frozen=True, eq=False)
class AutoPace(Pace):
    """Begin as `Pace`; after the warm-up continue as `AsynchronousPace` if that is sooner.

    Both predict T (E‖u‖² + c) for K updates, the seconds per progress, with the same c, norms and
    times as measured. Times include what every message costs; where that floor is large, little is
    gained.

    Examples
    --------
    >>> AutoPace(k=10).init(100)["decided"]
    ''
    """

    def init(self, n: int) -> AutoPaceState:
        """Return the state before the first round."""
        return AutoPaceState(**super().init(n), first_rate=math.nan, decided="")

    def phase(self, state: Any) -> Phase:
        """Return warm-up or training, in either mode."""
        return TRAIN if "completions" in state else super().phase(state)

    def see(self, state: Any, updates: RoundUpdates) -> Any:
        """Learn norms and curvature from the updates."""
        if math.isnan(state["first_rate"]):
            state["first_rate"] = updates.learning_rate
        return super().see(state, updates)

    def design(self, state: Any, context: SamplerContext) -> Plan:
        """Return the tier that is due, with the reason to stay in rounds."""
        plan = super().design(state, context)
        return plan._replace(why=plan.why + state["decided"])

    def handover(self, state: Any, context: SamplerContext) -> Handover | None:
        """Decide at the end of the warm-up; a resumed run continues as it was."""
        made = AsynchronousPace(self.k, warm_up=self.warm_up, c_over_s0=self.c_over_s0)
        if "completions" in state:
            return Handover(made, state, self.k, "as before the interruption")
        if state["decided"] or super().phase(state) is not TRAIN:
            return None
        gain = self._gain(state["basis"], context, made)
        times = current_times(state["basis"]["stats"], context)
        spread = f"clients take {times.min():.3g} to {times.max():.3g} s"
        why = f"asynchronous training is predicted {gain:.2f} times as fast, as {spread}"
        if gain <= 1:
            state["decided"] = f"; rounds: {why}"
            return None
        after = AsynchronousPaceState(
            stats=state["stats"],
            norms=state["norms"],
            rate=state["rate"],
            curvature=state["curvature"],
            completions=self.warm_up * self.k,
            solved=self.warm_up * self.k,
            size=begin_step(first_step(), state["first_rate"], 1.0),
            work=first_work(),
            planned=first_work(),
            basis=take_snapshot(state, 1.0),
        )
        return Handover(replace(made, reason=f"; {why}"), after, self.k, why)

    def _gain(self, basis: Basis, context: SamplerContext, made: AsynchronousPace) -> float:
        """Return the predicted seconds per progress of rounds over those of asynchronous steps."""
        rounds = self._solve(basis, context)
        profile, turns = rounds.profile, as_dispatch(made._solve(basis, context).design)
        assert profile is not None
        c = rounds.notes.get("lean", 1.0) * float(profile.importance.sum()) ** 2
        design = as_design(rounds.design)
        synchronous = design.expected_round_time(profile.times) * (
            design.variance_term(profile) + c
        )
        seconds = self.k * turns.seconds_per_completion(profile.times)
        return float(synchronous / (seconds * (turns.variance_term(profile) + c)))
