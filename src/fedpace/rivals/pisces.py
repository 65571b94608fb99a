"""Pisces: no barrier; prefer clients of high loss whose updates are fresh, and pace the steps."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpace.checks import FloatArray, positive_count
from fedpace.errors import InputError
from fedpace.profile import Profile
from fedpace.rivals.chosen import durations, grown, measured
from fedpace.rounds.rows import Row
from fedpace.rounds.sampler import Known
from fedpace.rounds.seen import Seen
from fedpace.rounds.stale import StaleMean, staleness
from fedpace.sampling.turns import Turn

# Lags of a client that its score looks back on.
LAGS = 5


class PiscesState(TypedDict):
    """One entry per client: n_i × loss, NaN before its first update; seconds; its last five lags.

    `completions` counts the tasks that are over.
    """

    completions: int
    utility: FloatArray
    seconds: FloatArray
    lags: FloatArray


@dataclass(frozen=True, eq=False)
class Best:
    """Send out one who is new, by chance, or else the one who is free with the highest score.

    Parameters
    ----------
    scores : array of N
        NaN for those who are new.
    exploration : float in [0, 1]
        The chance of one who is new, as long as there are any and others.
    at_once : int
        C.
    """

    scores: FloatArray
    exploration: float
    at_once: int

    @property
    def n(self) -> int:
        """The number of clients."""
        return self.scores.size

    @property
    def q(self) -> FloatArray:
        """Equal shares: a rule does not say how often somebody will be sent out."""
        return np.full(self.n, 1 / self.n)

    def start(self, rng: np.random.Generator) -> FloatArray:  # noqa: ARG002
        """Return credits that nobody looks at."""
        return np.zeros(self.n)

    def next(self, free: NDArray[np.bool_], credit: FloatArray, rng: np.random.Generator) -> Turn:
        """Return who is next; the server makes the weights."""
        new = np.flatnonzero(free & np.isnan(self.scores))
        old = np.flatnonzero(free & ~np.isnan(self.scores))
        explore = rng.random() < self.exploration
        if new.size and (explore or not old.size):
            return Turn(int(rng.choice(new)), 1.0, credit)
        best = old[self.scores[old] == self.scores[old].max()]
        return Turn(int(rng.choice(best)), 1.0, credit)

    def seconds_per_completion(self, times: ArrayLike) -> float:  # noqa: ARG002
        """Return NaN: a rule does not say."""
        return math.nan

    def variance_term(self, profile: Profile) -> float:  # noqa: ARG002
        """Return NaN: the convergence bound is for unbiased draws from probabilities."""
        return math.nan

    @property
    def largest_weight(self) -> float:
        """No update counts for more than all."""
        return 1.0


@dataclass(frozen=True)
class Pisces:
    """Keep K at work, those of high loss and small staleness, and adapt the pace [Jiang22].

    Score U_i (1 + τ̄_i)^−β, with U_i = n_i √(mean of the squared losses of its samples) and τ̄_i the
    mean of its last five lags, in steps. A free place goes to a client that is new with chance ε,
    else to the one of the highest score. The server steps when a part 1/b of the longest time of
    those at work has passed since the last step, so that updates are about b steps old at most;
    one who is new counts as the slowest known. It steps with all updates that came, client i's with
    n_i / Σ n · (1 + τ_i)^−β. **Biased**: nobody is weighted by how often it is chosen.

    Source: SoCC 2022, and the authors' published code, SamuelGong/Pisces, whose
    values are the defaults. Differs from it: the clock is looked at when somebody is back and not
    every few seconds; ε falls with every task that is over; losses are those of all samples at the
    model that was sent, and gradient norms stand in where nobody reports losses; clients that send
    something wrong are not told apart by their losses.

    Parameters
    ----------
    k : int ≥ 1
        Clients at work.
    bound : int ≥ 1, optional
        b; by default k.
    exponent : float ≥ 0
        β.
    exploration, decay, least_exploration : float in [0, 1]
        ε at first, what it is multiplied by with every task, and its least value.

    Examples
    --------
    >>> sampler = Pisces(k=2)
    >>> state = sampler.init(3)
    >>> sampler.steps_now(state, 1.0, np.array([], dtype=int), Known(np.full(3, 1 / 3)))
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

    def design(self, state: PiscesState, known: Known) -> Best:
        """Return the scores of now."""
        utility = grown(state["utility"], known.n, np.nan)
        lags = _mean_lags(state["lags"], known.n)
        fallen = self.exploration * self.decay ** state["completions"]
        scores: FloatArray = utility * (1 + lags) ** -self.exponent
        return Best(scores, max(fallen, self.least_exploration), self.k)

    def steps_now(
        self, state: PiscesState, passed: float, at_work: NDArray[np.int64], known: Known
    ) -> bool:
        """Return whether the server steps, `passed` seconds after it did last."""
        if not at_work.size:
            return True
        seconds = durations(state["seconds"], known)
        if np.isnan(seconds).all():
            return True
        longest = float(np.nanmax(seconds))
        slowest = float(np.where(np.isnan(seconds), longest, seconds)[at_work].max())
        return passed >= slowest / (self.bound or self.k)

    def see(self, state: PiscesState, seen: Seen) -> PiscesState:
        """Note losses and lags of those whose updates came."""
        reply, clients = seen.reply, seen.draw.clients
        heard = (reply.rms_losses, reply.losses, reply.grad_norms)
        losses = next((each for each in heard if each.size), reply.grad_norms)
        n = seen.weights.size
        state["utility"] = grown(state["utility"], n, np.nan)
        more = np.full((n - len(state["lags"]), LAGS), np.nan)
        state["lags"] = np.concatenate([state["lags"], more])
        found = seen.weights[clients] * losses
        for client, utility, lag in zip(clients, found, staleness(seen), strict=True):
            if np.isfinite(utility):
                state["utility"][client] = utility
            state["lags"][client] = np.append(state["lags"][client, 1:], lag)
        return state

    def observe(self, state: PiscesState, row: Row) -> PiscesState:
        """Note how long clients took."""
        if row.round:
            state["completions"] += row.clients.size + row.missing.size
            state["seconds"] = measured(state["seconds"], row)
        return state


def _mean_lags(lags: FloatArray, n: int) -> FloatArray:
    """Return each client's mean lag, 0 where there is none."""
    there = ~np.isnan(lags)
    sums = np.where(there, lags, 0.0).sum(axis=1)
    means: FloatArray = sums / np.maximum(there.sum(axis=1), 1)
    return grown(means, n, 0.0)
