"""The fastest first: FedCS within a deadline, and FLANP with more and more of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

import numpy as np

from fedpace.checks import FloatArray, IntArray, positive_count
from fedpace.errors import InputError
from fedpace.rivals.chosen import Chosen, by_size, durations, measured, without_replacement
from fedpace.rounds.rows import Row
from fedpace.rounds.sampler import Known
from fedpace.rounds.seen import Seen
from fedpace.rounds.server import Mean
from fedpace.sampling.design import Draw


class Seconds(TypedDict):
    """How long each client took last; NaN before the first time."""

    seconds: FloatArray


@dataclass(frozen=True)
class FedCS:
    """Of some candidates, train all who finish within a deadline, the fastest first [Nishio19].

    A tenth of the clients, and at least 2 K, are candidates, all sets alike. The one that lengthens
    the round least is added until the deadline is reached or K are in; the fastest is always in.
    Mean of the updates by data size: **biased** to the fast.

    Source: ICC 2019. Differs from it: links are not shared, so that a round lasts as long as its
    slowest client, where the paper adds up the uploads; at most K train, as in the other schemes;
    the deadline is a quantile of the times, where the paper gives minutes. Where times are not
    known beforehand, a client without any is taken to be fast: it would not be tried otherwise.

    Parameters
    ----------
    k : int ≥ 1
        Clients of a round, at most.
    candidates : float in (0, 1]
        Share of the clients that are asked.
    deadline : float in (0, 1]
        Quantile of all times that a round may last.
    """

    k: int
    candidates: float = 0.1
    deadline: float = 0.5
    biased = True
    server = Mean()

    def __post_init__(self) -> None:
        positive_count("k", self.k)
        for name in ("candidates", "deadline"):
            if not 0 < getattr(self, name) <= 1:
                raise InputError(f"{name} must be in (0, 1], got {getattr(self, name)}; give 0.5")

    def init(self, n: int) -> Seconds:
        """Return the state before the first round."""
        return Seconds(seconds=np.full(n, np.nan))

    def design(self, state: Seconds, known: Known) -> Chosen:
        """Return the rule of this round."""
        seconds = np.nan_to_num(durations(state["seconds"], known), nan=0.0)
        limit = np.quantile(seconds, self.deadline)
        wanted = max(2 * self.k, int(np.ceil(self.candidates * known.n)))

        def rule(clients: IntArray, rng: np.random.Generator) -> Draw:
            asked = without_replacement(clients, wanted, rng)
            asked = asked[np.argsort(seconds[asked], kind="stable")]
            within = int(np.searchsorted(seconds[asked], limit, side="right"))
            return by_size(asked[: min(max(within, 1), self.k)], known.weights)

        return Chosen(known.n, rule)

    def observe(self, state: Seconds, row: Row) -> Seconds:
        """Note the seconds."""
        state["seconds"] = measured(state["seconds"], row)
        return state


class Stage(TypedDict):
    """How many take part, in the how-many-th round of the stage, and the gradient at first.

    `square` is the latest ‖Σ weights_i Δ_i / η‖², `first` that of the first round; NaN before.
    """

    count: int
    rounds: int
    first: float
    square: float
    seconds: FloatArray


@dataclass(frozen=True)
class Flanp:
    """Train the K fastest to their statistical accuracy, then twice as many [Reisizadeh22].

    In a stage of n clients all of them train in every round, until ‖∇F_n(w)‖² ≤ c / n; then n
    doubles, up to everyone. Mean of the updates by data size: **biased** until all take part.

    Source: IEEE JSAIT 2022. Differs from it: the constants μ and V of c = 2 μ V n are not known, so
    c / K is the share `accuracy` of the first round's squared norm; the gradient is that of the
    aggregate over the learning rate; a stage that does not get there ends after `longest` rounds;
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

    def design(self, state: Stage, known: Known) -> Chosen:
        """Return the rule of this round."""
        seconds = durations(state["seconds"], known)

        def rule(clients: IntArray, rng: np.random.Generator) -> Draw:  # noqa: ARG001
            fastest = clients[np.argsort(seconds[clients], kind="stable")]
            return by_size(fastest[: state["count"]], known.weights)

        return Chosen(known.n, rule)

    def see(self, state: Stage, seen: Seen) -> Stage:
        """Note the gradient."""
        shares = seen.draw.weights / seen.draw.weights.sum()
        gradient = shares @ seen.reply.updates / seen.learning_rate
        state["square"] = float(gradient @ gradient)
        if not np.isfinite(state["first"]):
            state["first"] = state["square"]
        return state

    def observe(self, state: Stage, row: Row) -> Stage:
        """Let more take part where these have learned what they can teach."""
        state["seconds"] = measured(state["seconds"], row)
        if not row.clients.size:
            return state
        state["rounds"] += 1
        enough = self.accuracy * state["first"] * self.k / state["count"]
        reached = state["rounds"] > 1 and state["square"] <= enough
        if (reached or state["rounds"] >= self.longest) and state["count"] < state["seconds"].size:
            state["count"] = min(2 * state["count"], state["seconds"].size)
            state["rounds"] = 0
        return state
