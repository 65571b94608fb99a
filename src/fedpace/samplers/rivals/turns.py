"""Asynchronous rivals: which client is next; their servers do the rest."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpace.checks import FloatArray, IntArray, positive_count
from fedpace.errors import InputError
from fedpace.profile import Profile
from fedpace.samplers.rivals.rule import count_clients, extend, known_times, update_times
from fedpace.sampling.dispatch import BaseDispatch, Turn
from fedpace.servers.arrivals import slot_shares
from fedpace.training.history import Row
from fedpace.training.sampler import BaseSampler, Plan, SamplerContext


@dataclass(frozen=True, eq=False)
class Ordered(BaseDispatch):
    """The free client that comes first in an order, one at a time from each group.

    Parameters
    ----------
    order : array of N
        Lower is earlier.
    groups : array of N
        The group of each client. While all groups have a client at work, any free client is next.
    present : array of N truth values
        Who is there; those that are not free are at work.
    shares : array of N
        p_i.
    turn_weights : array of N
        The weights of updates.
    at_once : int
        C.
    """

    order: FloatArray
    groups: IntArray
    present: NDArray[np.bool_]
    shares: FloatArray
    turn_weights: FloatArray
    at_once: int

    @property
    def q(self) -> FloatArray:
        """p_i: shares of completions are unknown for a rule."""
        return self.shares

    def next(
        self,
        free: NDArray[np.bool_],
        credit: FloatArray,
        rng: np.random.Generator,  # noqa: ARG002
    ) -> Turn:
        """Return the next client; chance and credits are not used."""
        at_work = self.groups[self.present & ~free]
        idle = free & ~np.isin(self.groups, at_work)
        clients = np.flatnonzero(idle if idle.any() else free)
        client = int(clients[np.argmin(self.order[clients])])
        return Turn(client, float(self.turn_weights[client]), credit)

    def seconds_per_completion(self, times: ArrayLike) -> float:  # noqa: ARG002
        """Return NaN: unknown for a rule."""
        return math.nan

    def variance_term(self, profile: Profile) -> float:  # noqa: ARG002
        """Return NaN: the convergence bound is for unbiased draws from probabilities."""
        return math.nan


class Turns(TypedDict):
    """One entry per client: completed tasks, the arrival of the latest, and its seconds."""

    done: FloatArray
    latest: FloatArray
    seconds: FloatArray
    arrivals: int


@dataclass(frozen=True)
class Slots(BaseSampler):
    """Keep C clients at work, one from each slot: client i belongs to slot i mod C.

    Within a slot clients take turns, as often as p_i says. A slot stands for a worker of the papers
    that keep all N clients at work; with C = N each client is its own.

    Parameters
    ----------
    k : int ≥ 1
        C.
    server : BaseServer, optional
        What becomes of the replies.
    buffer : int
        Updates per step.
    """

    k: int
    server: Any = None
    buffer: int = 1

    def __post_init__(self) -> None:
        positive_count("k", self.k)
        positive_count("buffer", self.buffer)

    def init(self, n: int) -> Turns:
        """Return the state before the first task."""
        return Turns(
            done=np.zeros(n), latest=np.full(n, -1.0), seconds=np.full(n, np.nan), arrivals=0
        )

    def design(self, state: Turns, context: SamplerContext) -> Plan:
        """Return whose turn it is."""
        order = (extend(state["done"], context.n, 0.0) + 1) / context.weights
        return self._plan(state, context, order, np.arange(context.n) % self.k)

    def _plan(
        self, state: Turns, context: SamplerContext, order: FloatArray, groups: IntArray
    ) -> Plan:
        everyone = np.ones(context.n, dtype=np.bool_)
        present = everyone if context.present is None else context.present
        weights = self.turn_weights(state, context)
        design = Ordered(order, groups, present, context.weights, weights, self.k)
        return Plan(design, buffer=self.buffer)

    def turn_weights(self, state: Turns, context: SamplerContext) -> FloatArray:  # noqa: ARG002
        """Return the weights of updates, which only some servers use."""
        return context.weights

    def observe(self, state: Turns, row: Row) -> Turns:
        """Count the completed tasks."""
        newest = count_clients(row)
        done, latest = extend(state["done"], newest, 0.0), extend(state["latest"], newest, -1.0)
        came = np.concatenate([row.clients, row.missing])
        np.add.at(done, came, 1)
        latest[came] = state["arrivals"] + np.arange(came.size)
        return Turns(
            done=done,
            latest=latest,
            seconds=update_times(state["seconds"], row),
            arrivals=state["arrivals"] + came.size,
        )


@dataclass(frozen=True)
class LongestIdle(Slots):
    """Keep C clients at work: the free client that answered longest ago is next, new ones first.

    Every client takes part equally often, as far as its speed allows.
    """

    def design(self, state: Turns, context: SamplerContext) -> Plan:
        """Return whose turn it is."""
        return self._plan(
            state, context, extend(state["latest"], context.n, -1.0), np.arange(context.n)
        )


@dataclass(frozen=True)
class Rescaled(Slots):
    """Step at every arrival, the further the slower its client: γ_i ∝ t_i.

    w ← w + C γ_i Δ_i with γ_i = p_i t_i / Σ_j p_j t_j, so that over time client i moves the model
    in proportion to p_i, without a buffer or a table.

    Source: Rescaled ASGD, arXiv 2605.13434. Differs from it: the paper has 1/N for p_i; where times
    are not known beforehand they are those measured last, and a client without any counts with
    the mean; with C < N a slot stands for a client, with Σ p_i t_i over the clients of the slot.

    Parameters
    ----------
    k, server, buffer
        As in `Slots`.
    scale : float > 0
        A factor of every step.
    """

    scale: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.scale < np.inf:
            raise InputError(f"scale must be above 0, got {self.scale}; give 1")

    def turn_weights(self, state: Turns, context: SamplerContext) -> FloatArray:
        """Return C γ_i."""
        seconds = known_times(state["seconds"], context)
        known = np.isfinite(seconds)
        if not known.any():
            seconds = np.ones(context.n)
        elif not known.all():
            seconds = np.where(known, seconds, seconds[known].mean())
        work = slot_shares(context.weights * seconds, self.k)
        weights: FloatArray = self.scale * work.size * work / work.sum()
        return weights[np.arange(context.n) % self.k]
