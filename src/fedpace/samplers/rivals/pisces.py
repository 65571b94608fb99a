"""Pisces: asynchronous; prefer clients of high loss and fresh updates, and pace the steps."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpace.checks import FloatArray, positive_count
from fedpace.errors import InputError
from fedpace.profile import Profile
from fedpace.samplers.rivals.rule import extend, known_times, reported_losses, update_times
from fedpace.sampling.dispatch import BaseDispatch, Turn
from fedpace.servers.asynchronous import StaleMean, staleness
from fedpace.training.history import Row
from fedpace.training.sampler import BaseSampler, SamplerContext
from fedpace.training.updates import RoundUpdates

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
