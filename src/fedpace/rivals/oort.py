"""Oort: prefer clients whose samples have a high loss and who are fast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from fedpace.checks import FloatArray, IntArray, positive_count
from fedpace.errors import InputError
from fedpace.rivals.chosen import Chosen, durations, even, grown, in_proportion, measured
from fedpace.rounds.rows import Row
from fedpace.rounds.sampler import Known
from fedpace.rounds.seen import Seen
from fedpace.rounds.server import Mean
from fedpace.sampling.design import Draw

# What the score of a client that was not used for long grows by: √(0.1 ln R / L).
AGE = 0.1
# The least utility is counted as this much of itself, so that nobody's share is 0.
NEARLY = 0.999
# Explore among so many times as many of the best as are wanted.
WINDOW = 5
# How little, and how much, the utility changes for the pacer to wait longer, or less long.
STEADY, JUMP = 0.1, 5.0


class OortState(TypedDict):
    """One entry per client: utility, seconds, and the last round it took part in, 0 for none.

    `exploited` is the mean utility of those exploited in each round, for the pacer; `percentile` is
    that of the preferred duration, and `exploration` is ε.
    """

    rounds: int
    utility: FloatArray
    seconds: FloatArray
    last: FloatArray
    exploited: list[float]
    percentile: float
    exploration: float


@dataclass(frozen=True)
class Oort:
    """Exploit clients of high statistical utility and short time, and explore new ones [Lai21].

    Utility U_i = n_i √(mean of the squared losses of its samples). Score = (min(U_i, clip) −
    0.999 min U) / (range of U) + √(0.1 ln R / L_i), with clip a quantile of U, R the round and L_i
    the last one in which i took part; times (T / t_i)^α where t_i > T. T is a percentile of all
    durations, which the pacer raises where the utility that is gained stands still. ⌊K (1 − ε)⌋
    are exploited: drawn in proportion to the score among those of at least `cut_off` times the
    last that would be in. The others are explored: never used before, drawn in proportion to data
    size and speed. 1.3 K are asked and the first K count. Plain mean of their updates: **biased**.

    Source: OSDI 2021, and the published SymbioticLab/Oort, whose values are the defaults. Differs
    from it: the losses are those of all samples at the model that was sent, where Oort takes those
    seen in training, and FedScale's code the last mini-batch's; a client that is new counts with
    n_i, not with min(n_i, samples of a round); where nobody reports losses, gradient norms stand
    in for them, which the paper derives the utility from.

    Parameters
    ----------
    k : int ≥ 1
        Replies that count in a round.
    over_commit : float ≥ 1
        Clients asked for each that counts.
    exploration, decay, least_exploration : float in [0, 1]
        ε at first, what it is multiplied by after every round, and its least value.
    percentile, step, window : float, float, int
        Of durations at first, by how much the pacer moves it, and its rounds.
    penalty : float ≥ 0
        α.
    clip, cut_off : float in (0, 1]
        Quantile that cuts utilities, and the share of the last score that still may be drawn.

    Examples
    --------
    >>> design = Oort(k=2).design(Oort(k=2).init(10), Known(np.full(10, 0.1)))
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

    def design(self, state: OortState, known: Known) -> Chosen:
        """Return the rule of this round."""
        seconds = durations(state["seconds"], known)
        last = grown(state["last"], known.n, 0.0)
        speed = self._speed(seconds, state["percentile"])
        wanted = int(np.ceil(self.over_commit * self.k))
        score = self._scores(state, last, known.n) * speed
        new = np.asarray(known.weights) * speed

        def rule(clients: IntArray, rng: np.random.Generator) -> Draw:
            used = last[clients] > 0
            picked = self._exploited(clients[used], score, wanted, state["exploration"], rng)
            fresh = _explored(clients[~used], new, wanted - picked.size, rng)
            short = wanted - picked.size - fresh.size
            rest = np.setdiff1d(clients[used], picked)
            more = in_proportion(rest, score[rest], short, rng) if short > 0 else rest[:0]
            return even(np.concatenate([picked, fresh, more]), take=self.k)

        return Chosen(known.n, rule)

    def see(self, state: OortState, seen: Seen) -> OortState:
        """Note the utility of those who answered."""
        reply, clients = seen.reply, seen.draw.clients
        heard = (reply.rms_losses, reply.losses, reply.grad_norms)
        losses = next((each for each in heard if each.size), reply.grad_norms)
        utility = grown(state["utility"], seen.weights.size, 0.0)
        found = seen.weights[clients] * losses
        fine = np.isfinite(found)
        utility[clients[fine]] = found[fine]
        state["utility"] = utility
        return state

    def observe(self, state: OortState, row: Row) -> OortState:
        """Note who took part, lower ε, and let the pacer look at the utility."""
        if not row.round:
            return state
        state["rounds"] += 1
        state["seconds"] = measured(state["seconds"], row)
        last = grown(state["last"], state["seconds"].size, 0.0)
        utility = grown(state["utility"], state["seconds"].size, 0.0)
        old = row.clients[last[row.clients] > 0]
        state["exploited"].append(float(utility[old].mean()) if old.size else 0.0)
        last[row.clients] = state["rounds"]
        state["last"], state["utility"] = last, utility
        state["exploration"] = max(self.decay * state["exploration"], self.least_exploration)
        state["percentile"] = self._paced(state)
        return state

    def _paced(self, state: OortState) -> float:
        """Return the percentile of the preferred duration: 100 means no limit."""
        window, percentile = self.window, state["percentile"]
        if state["rounds"] < 2 * window or state["rounds"] % window:
            return percentile
        now, before = (
            sum(state["exploited"][-window:]),
            sum(state["exploited"][-2 * window : -window]),
        )
        del state["exploited"][:-window]
        if abs(now - before) <= STEADY * before:
            return min(percentile + self.step, 100.0)
        jumped = abs(now - before) >= JUMP * before
        return max(percentile - self.step, self.step) if jumped else percentile

    def _speed(self, seconds: FloatArray, percentile: float) -> FloatArray:
        """Return (T / t_i)^α for those slower than T, 1 for the others and the unknown."""
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
        utility = grown(state["utility"], n, 0.0)
        if not used.any():
            return np.zeros(n)
        clip = float(np.quantile(utility[used], self.clip))
        least = NEARLY * float(utility[used].min())
        spread = max(min(clip, float(utility[used].max())) - least, 1e-4 * max(clip, 1e-300))
        age = np.sqrt(AGE * np.log(max(state["rounds"], 1)) / np.maximum(last, 1))
        scores: FloatArray = np.where(used, (np.minimum(utility, clip) - least) / spread + age, 0.0)
        return scores

    def _exploited(
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
        return in_proportion(within, score[within], count, rng)


def _explored(
    clients: IntArray, reward: FloatArray, wanted: int, rng: np.random.Generator
) -> IntArray:
    count = min(wanted, clients.size)
    best = clients[np.argsort(-reward[clients], kind="stable")[: WINDOW * count]]
    return in_proportion(best, reward[best], count, rng)
