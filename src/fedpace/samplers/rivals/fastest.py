"""FedCS, which trains the fastest within a deadline, and FLANP, which adds slower ones later."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

import numpy as np

from fedpace.checks import FloatArray, IntArray, positive_count
from fedpace.errors import InputError
from fedpace.samplers.rivals.rule import (
    RuleDesign,
    known_times,
    proportional_draw,
    sample_uniformly,
    update_times,
)
from fedpace.sampling.design import Draw
from fedpace.servers.average import Mean
from fedpace.training.history import Row
from fedpace.training.sampler import BaseSampler, SamplerContext
from fedpace.training.updates import RoundUpdates


class Seconds(TypedDict):
    """The last time of each client; NaN before the first."""

    seconds: FloatArray


@dataclass(frozen=True)
class FedCS(BaseSampler):
    """Train those of some random candidates that finish within a deadline [Nishio19].

    A tenth of the clients, and at least 2 K, are candidates, drawn uniformly. The fastest are added
    until the deadline is reached or K are in; the fastest is always in. Mean of the updates by data
    size: **biased** to fast clients.

    Source: ICC 2019. Differs from it: links are not shared, so that a round lasts as long as its
    slowest client, where the paper adds up the uploads; at most K train, as in the other schemes;
    the deadline is a quantile of the times, where the paper gives minutes. Where times are not
    known beforehand, a client without any counts as fast, or it would never be drawn.

    Parameters
    ----------
    k : int ≥ 1
        Clients of a round, at most.
    candidates : float in (0, 1]
        Share of the clients that are candidates.
    deadline : float in (0, 1]
        Longest time of a round, as a quantile of all times.
    """

    k: int
    candidates: float = 0.1
    deadline: float = 0.5
    biased = True
    server = Mean()

    def __post_init__(self) -> None:
        positive_count("k", self.k)
        for name, value in (("candidates", self.candidates), ("deadline", self.deadline)):
            if not 0 < value <= 1:
                raise InputError(f"{name} must be in (0, 1], got {value}; give 0.5")

    def init(self, n: int) -> Seconds:
        """Return the state before the first round."""
        return Seconds(seconds=np.full(n, np.nan))

    def design(self, state: Seconds, context: SamplerContext) -> RuleDesign:
        """Return the rule of this round."""
        seconds = np.nan_to_num(known_times(state["seconds"], context), nan=0.0)
        limit = np.quantile(seconds, self.deadline)
        wanted = max(2 * self.k, int(np.ceil(self.candidates * context.n)))

        def rule(clients: IntArray, rng: np.random.Generator) -> Draw:
            asked = sample_uniformly(clients, wanted, rng)
            asked = asked[np.argsort(seconds[asked], kind="stable")]
            within = int(np.searchsorted(seconds[asked], limit, side="right"))
            return proportional_draw(asked[: min(max(within, 1), self.k)], context.weights)

        return RuleDesign(context.n, rule)

    def observe(self, state: Seconds, row: Row) -> Seconds:
        """Record times."""
        state["seconds"] = update_times(state["seconds"], row)
        return state


class Stage(TypedDict):
    """Clients of the stage, its rounds so far, and times of clients.

    `square` is the latest ‖Σ weights_i Δ_i / η‖², `first` that of the first round; NaN before.
    """

    count: int
    rounds: int
    first: float
    square: float
    seconds: FloatArray


@dataclass(frozen=True)
class Flanp(BaseSampler):
    """Train the K fastest to their statistical accuracy, then twice as many [Reisizadeh22].

    In a stage of n clients all of them train in every round, until ‖∇F_n(w)‖² ≤ c / n; then n
    doubles, up to all. Mean of the updates by data size: **biased** until all take part.

    Source: IEEE JSAIT 2022. Differs from it: the constants μ and V of c = 2 μ V n are not known, so
    c / K is the share `accuracy` of the first round's squared norm; the gradient is that of the
    aggregate over the learning rate; a stage ends after `longest` rounds at the latest;
    clients take plain local steps, without the tracking of FedGATE.

    Parameters
    ----------
    k : int ≥ 1
        Clients of the first stage.
    accuracy : float in (0, 1)
        The squared gradient norm at which the first stage ends, over that of the first round.
    longest : int ≥ 1
        Rounds of a stage, at most.
    """

    k: int
    accuracy: float = 0.25
    longest: int = 100
    biased = True
    server = Mean()

    def __post_init__(self) -> None:
        positive_count("k", self.k)
        positive_count("longest", self.longest)
        if not 0 < self.accuracy < 1:
            raise InputError(f"accuracy must be in (0, 1), got {self.accuracy}; give 0.25")

    def init(self, n: int) -> Stage:
        """Return the state before the first round."""
        seconds = np.full(n, np.nan)
        return Stage(count=self.k, rounds=0, first=np.nan, square=np.nan, seconds=seconds)

    def design(self, state: Stage, context: SamplerContext) -> RuleDesign:
        """Return the rule of this round."""
        seconds = known_times(state["seconds"], context)

        def rule(clients: IntArray, rng: np.random.Generator) -> Draw:  # noqa: ARG001
            fastest = clients[np.argsort(seconds[clients], kind="stable")]
            return proportional_draw(fastest[: state["count"]], context.weights)

        return RuleDesign(context.n, rule)

    def see(self, state: Stage, updates: RoundUpdates) -> Stage:
        """Record the norm of the gradient."""
        shares = updates.draw.weights / updates.draw.weights.sum()
        gradient = shares @ updates.reply.updates / updates.learning_rate
        state["square"] = float(gradient @ gradient)
        if not np.isfinite(state["first"]):
            state["first"] = state["square"]
        return state

    def observe(self, state: Stage, row: Row) -> Stage:
        """Double the clients when the stage has reached its accuracy."""
        state["seconds"] = update_times(state["seconds"], row)
        if not row.clients.size:
            return state
        state["rounds"] += 1
        enough = self.accuracy * state["first"] * self.k / state["count"]
        reached = state["rounds"] > 1 and state["square"] <= enough
        if (reached or state["rounds"] >= self.longest) and state["count"] < state["seconds"].size:
            state["count"] = min(2 * state["count"], state["seconds"].size)
            state["rounds"] = 0
        return state
