"""Oort and its asynchronous sibling Pisces: prefer fast clients whose samples have a high loss."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpace.checks import FloatArray, IntArray, positive_count
from fedpace.errors import InputError
from fedpace.profile import Profile
from fedpace.samplers.rivals.rule import (
    RuleDesign,
    equal_draw,
    extend,
    known_times,
    reported_losses,
    sample_proportionally,
    update_times,
)
from fedpace.sampling.design import Draw
from fedpace.sampling.dispatch import BaseDispatch, Turn
from fedpace.servers.asynchronous import StaleMean, staleness
from fedpace.servers.average import Mean
from fedpace.training.history import Row
from fedpace.training.sampler import BaseSampler, SamplerContext
from fedpace.training.updates import RoundUpdates

# Bonus of a client that was not used for long: √(0.1 ln R / L).
AGE = 0.1
# The least utility counts as this part of itself, so that no share is 0.
NEARLY = 0.999
# Candidates for exploration per client wanted.
WINDOW = 5
# Relative changes of the utility at which the pacer allows longer, or shorter, rounds.
STEADY, JUMP = 0.1, 5.0


class OortState(TypedDict):
    """One entry per client: utility, time, and the last round that it took part in, 0 for none.

    `exploited` is the mean utility of the exploited clients of each round, for the pacer;
    `percentile` is that of the preferred duration, and `exploration` is ε.
    """

    rounds: int
    utility: FloatArray
    seconds: FloatArray
    last: FloatArray
    exploited: list[float]
    percentile: float
    exploration: float


@dataclass(frozen=True)
class Oort(BaseSampler):
    """Exploit clients of high statistical utility and short time, and explore new ones [Lai21].

    Utility U_i = n_i √(mean of the squared losses of its samples). Score = (min(U_i, clip) −
    0.999 min U) / (range of U) + √(0.1 ln R / L_i), with clip a quantile of U, R the round and L_i
    the last one in which i took part; times (T / t_i)^α where t_i > T. T is a percentile of all
    times, which the pacer raises when the utility stagnates. ⌊K (1 − ε)⌋ clients are exploited:
    drawn in proportion to the score, among scores of at least `cut_off` times the lowest of the
    best. The others are explored: unused clients, drawn in proportion to data size and speed. 1.3 K
    clients train and the first K replies count. Plain mean of the updates: **biased**.

    Source: OSDI 2021, and the published SymbioticLab/Oort, whose values are the defaults. Differs
    from it: the losses are those of all samples at the model that was sent, where Oort takes those
    seen in training, and FedScale's code the last mini-batch's; a new client counts with n_i, not
    with min(n_i, samples of a round); gradient norms, from which the paper derives the utility,
    stand in for losses that clients do not report.

    Parameters
    ----------
    k : int ≥ 1
        Replies that count in a round.
    over_commit : float ≥ 1
        Clients drawn per reply that counts.
    exploration, decay, least_exploration : float in [0, 1]
        ε at first, its factor per round, and its least value.
    percentile, step, window : float, float, int
        Percentile of times at first, the pacer's step, and its window in rounds.
    penalty : float ≥ 0
        α.
    clip, cut_off : float in (0, 1]
        Quantile that cuts utilities, and the part of the lowest best score that may be drawn.

    Examples
    --------
    >>> design = Oort(k=2).design(Oort(k=2).init(10), SamplerContext(np.full(10, 0.1)))
    >>> draw = design.draw(np.random.default_rng(0))
    >>> draw.clients.size, draw.take
    (3, 2)
    """

    k: int
    over_commit: float = 1.3
    exploration: float = 0.9
    decay: float = 0.95
    least_exploration: float = 0.2
    percentile: float = 10.0
    step: float = 5.0
    window: int = 20
    penalty: float = 2.0
    clip: float = 0.98
    cut_off: float = 0.7
    biased = True
    reads_losses = True
    server = Mean()

    def __post_init__(self) -> None:
        positive_count("k", self.k)
        positive_count("window", self.window)
        if not 1 <= self.over_commit < np.inf:
            raise InputError(f"over_commit must be at least 1, got {self.over_commit}; give 1.3")

    def init(self, n: int) -> OortState:
        """Return the state before the first round."""
        return OortState(
            rounds=0,
            utility=np.zeros(n),
            seconds=np.full(n, np.nan),
            last=np.zeros(n),
            exploited=[],
            percentile=self.percentile,
            exploration=self.exploration,
        )

    def design(self, state: OortState, context: SamplerContext) -> RuleDesign:
        """Return the rule of this round."""
        seconds = known_times(state["seconds"], context)
        last = extend(state["last"], context.n, 0.0)
        speed = self._speed(seconds, state["percentile"])
        wanted = int(np.ceil(self.over_commit * self.k))
        score = self._scores(state, last, context.n) * speed
        new = np.asarray(context.weights) * speed

        def rule(clients: IntArray, rng: np.random.Generator) -> Draw:
            used = last[clients] > 0
            picked = self._exploit(clients[used], score, wanted, state["exploration"], rng)
            fresh = _explore(clients[~used], new, wanted - picked.size, rng)
            short = wanted - picked.size - fresh.size
            rest = np.setdiff1d(clients[used], picked)
            more = sample_proportionally(rest, score[rest], short, rng) if short > 0 else rest[:0]
            return equal_draw(np.concatenate([picked, fresh, more]), take=self.k)

        return RuleDesign(context.n, rule)

    def see(self, state: OortState, updates: RoundUpdates) -> OortState:
        """Record the utility of the clients that answered."""
        clients = updates.draw.clients
        utility = extend(state["utility"], updates.weights.size, 0.0)
        found = updates.weights[clients] * reported_losses(updates.reply)
        fine = np.isfinite(found)
        utility[clients[fine]] = found[fine]
        state["utility"] = utility
        return state

    def observe(self, state: OortState, row: Row) -> OortState:
        """Record the participants, lower ε, and run the pacer."""
        if not row.round:
            return state
        state["rounds"] += 1
        state["seconds"] = update_times(state["seconds"], row)
        last = extend(state["last"], state["seconds"].size, 0.0)
        utility = extend(state["utility"], state["seconds"].size, 0.0)
        old = row.clients[last[row.clients] > 0]
        state["exploited"].append(float(utility[old].mean()) if old.size else 0.0)
        last[row.clients] = state["rounds"]
        state["last"], state["utility"] = last, utility
        state["exploration"] = max(self.decay * state["exploration"], self.least_exploration)
        state["percentile"] = self._pace(state)
        return state

    def _pace(self, state: OortState) -> float:
        """Return the percentile of the preferred duration; 100 for no limit."""
        window, percentile = self.window, state["percentile"]
        if state["rounds"] < 2 * window or state["rounds"] % window:
            return percentile
        exploited = state["exploited"]
        now, before = sum(exploited[-window:]), sum(exploited[-2 * window : -window])
        del state["exploited"][:-window]
        if abs(now - before) <= STEADY * before:
            return min(percentile + self.step, 100.0)
        jumped = abs(now - before) >= JUMP * before
        return max(percentile - self.step, self.step) if jumped else percentile

    def _speed(self, seconds: FloatArray, percentile: float) -> FloatArray:
        """Return (T / t_i)^α for clients slower than T, 1 for others and unknown times."""
        known = np.sort(seconds[np.isfinite(seconds)])
        if percentile >= 100 or not known.size:
            return np.ones(seconds.size)
        preferred = known[min(int(known.size * percentile / 100), known.size - 1)]
        slower: NDArray[np.bool_] = np.nan_to_num(seconds) > preferred
        ratio = np.divide(preferred, seconds, out=np.ones(seconds.size), where=slower)
        speed: FloatArray = ratio**self.penalty
        return speed

    def _scores(self, state: OortState, last: FloatArray, n: int) -> FloatArray:
        used = last > 0
        utility = extend(state["utility"], n, 0.0)
        if not used.any():
            return np.zeros(n)
        clip = float(np.quantile(utility[used], self.clip))
        least = NEARLY * float(utility[used].min())
        spread = max(min(clip, float(utility[used].max())) - least, 1e-4 * max(clip, 1e-300))
        age = np.sqrt(AGE * np.log(max(state["rounds"], 1)) / np.maximum(last, 1))
        scores: FloatArray = np.where(used, (np.minimum(utility, clip) - least) / spread + age, 0.0)
        return scores

    def _exploit(
        self,
        clients: IntArray,
        score: FloatArray,
        wanted: int,
        exploration: float,
        rng: np.random.Generator,
    ) -> IntArray:
        count = min(int(wanted * (1 - exploration)), clients.size)
        if not count:
            return clients[:0]
        limit = self.cut_off * np.sort(score[clients])[-count]
        within = clients[score[clients] >= limit]
        return sample_proportionally(within, score[within], count, rng)


def _explore(
    clients: IntArray, reward: FloatArray, wanted: int, rng: np.random.Generator
) -> IntArray:
    count = min(wanted, clients.size)
    best = clients[np.argsort(-reward[clients], kind="stable")[: WINDOW * count]]
    return sample_proportionally(best, reward[best], count, rng)


# Lags in the score of a client.
LAGS = 5


class PiscesState(TypedDict):
    """One entry per client: n_i × loss, NaN before its first update; time; its last five lags.

    `completions` counts completed tasks.
    """

    completions: int
    utility: FloatArray
    seconds: FloatArray
    lags: FloatArray


@dataclass(frozen=True, eq=False)
class Best(BaseDispatch):
    """Choose a new client with some probability, else the free client with the highest score.

    Parameters
    ----------
    scores : array of N
        NaN for new clients.
    exploration : float in [0, 1]
        The probability of a new client, while both kinds are free.
    at_once : int
        C.
    """

    scores: FloatArray
    exploration: float
    at_once: int

    @property
    def q(self) -> FloatArray:
        """Equal shares, as they are unknown for a rule; the server weights the updates."""
        return np.full(self.scores.size, 1 / self.scores.size)

    def next(self, free: NDArray[np.bool_], credit: FloatArray, rng: np.random.Generator) -> Turn:
        """Return the next client; the server makes the weights."""
        new = np.flatnonzero(free & np.isnan(self.scores))
        old = np.flatnonzero(free & ~np.isnan(self.scores))
        explore = rng.random() < self.exploration
        if new.size and (explore or not old.size):
            return Turn(int(rng.choice(new)), 1.0, credit)
        best = old[self.scores[old] == self.scores[old].max()]
        return Turn(int(rng.choice(best)), 1.0, credit)

    def seconds_per_completion(self, times: ArrayLike) -> float:  # noqa: ARG002
        """Return NaN: unknown for a rule."""
        return math.nan

    def variance_term(self, profile: Profile) -> float:  # noqa: ARG002
        """Return NaN: the convergence bound is for unbiased draws from probabilities."""
        return math.nan


@dataclass(frozen=True)
class Pisces(BaseSampler):
    """Keep K clients at work, of high loss and small staleness, and adapt the pace [Jiang22].

    Score U_i (1 + τ̄_i)^−β, with U_i = n_i √(mean of the squared losses of its samples) and τ̄_i the
    mean of its last five lags, in steps. A free slot goes to a new client with probability ε, else
    to the client with the highest score. The server steps when 1/b of the longest time of the
    clients at work has passed since the last step, so that updates are at most about b steps old; a
    new client counts as the slowest known. It uses all updates in the buffer, weighted by
    n_i / Σ n · (1 + τ_i)^−β. **Biased**: weights are not corrected for the selection.

    Source: SoCC 2022, and the authors' published code, SamuelGong/Pisces, whose values are the
    defaults. Differs from it: the server decides whenever a reply arrives, not every few seconds; ε
    falls with every completed task; losses are those of all samples at the model that was sent, or
    gradient norms where clients report none; outliers by loss are not excluded.

    Parameters
    ----------
    k : int ≥ 1
        Clients at work.
    bound : int ≥ 1, optional
        b; by default k.
    exponent : float ≥ 0
        β.
    exploration, decay, least_exploration : float in [0, 1]
        ε at first, its factor per task, and its least value.

    Examples
    --------
    >>> sampler = Pisces(k=2)
    >>> state = sampler.init(3)
    >>> sampler.steps_now(state, 1.0, np.array([], dtype=int), SamplerContext(np.full(3, 1 / 3)))
    True
    """

    k: int
    bound: int | None = None
    exponent: float = 0.5
    exploration: float = 0.9
    decay: float = 0.98
    least_exploration: float = 0.3
    server: Any = field(init=False, repr=False)
    biased = True
    reads_losses = True

    def __post_init__(self) -> None:
        positive_count("k", self.k)
        if self.bound is not None:
            positive_count("bound", self.bound)
        if not 0 <= self.exponent < np.inf:
            raise InputError(f"exponent must be at least 0, got {self.exponent}; give 0.5")
        object.__setattr__(self, "server", StaleMean(self.exponent))

    def init(self, n: int) -> PiscesState:
        """Return the state before the first task."""
        return PiscesState(
            completions=0,
            utility=np.full(n, np.nan),
            seconds=np.full(n, np.nan),
            lags=np.full((n, LAGS), np.nan),
        )

    def design(self, state: PiscesState, context: SamplerContext) -> Best:
        """Return the current scores."""
        utility = extend(state["utility"], context.n, np.nan)
        lags = _mean_lags(state["lags"], context.n)
        fallen = self.exploration * self.decay ** state["completions"]
        scores: FloatArray = utility * (1 + lags) ** -self.exponent
        return Best(scores, max(fallen, self.least_exploration), self.k)

    def steps_now(
        self, state: PiscesState, passed: float, at_work: NDArray[np.int64], context: SamplerContext
    ) -> bool:
        """Return whether the server steps, `passed` seconds after its last step."""
        if not at_work.size:
            return True
        seconds = known_times(state["seconds"], context)
        if np.isnan(seconds).all():
            return True
        longest = float(np.nanmax(seconds))
        slowest = float(np.where(np.isnan(seconds), longest, seconds)[at_work].max())
        return passed >= slowest / (self.bound or self.k)

    def see(self, state: PiscesState, updates: RoundUpdates) -> PiscesState:
        """Record the losses and lags of the updates."""
        clients, n = updates.draw.clients, updates.weights.size
        state["utility"] = extend(state["utility"], n, np.nan)
        more = np.full((n - len(state["lags"]), LAGS), np.nan)
        state["lags"] = np.concatenate([state["lags"], more])
        found = updates.weights[clients] * reported_losses(updates.reply)
        for client, utility, lag in zip(clients, found, staleness(updates), strict=True):
            if np.isfinite(utility):
                state["utility"][client] = utility
            state["lags"][client] = np.append(state["lags"][client, 1:], lag)
        return state

    def observe(self, state: PiscesState, row: Row) -> PiscesState:
        """Record times."""
        if row.round:
            state["completions"] += row.clients.size + row.missing.size
            state["seconds"] = update_times(state["seconds"], row)
        return state


def _mean_lags(lags: FloatArray, n: int) -> FloatArray:
    """Return each client's mean lag, 0 without any."""
    there = ~np.isnan(lags)
    sums = np.where(there, lags, 0.0).sum(axis=1)
    means: FloatArray = sums / np.maximum(there.sum(axis=1), 1)
    return extend(means, n, 0.0)
