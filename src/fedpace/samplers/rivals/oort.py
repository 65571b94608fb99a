"""Oort: prefer fast clients whose samples have a high loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from fedpace.checks import FloatArray, IntArray, positive_count
from fedpace.errors import InputError
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
