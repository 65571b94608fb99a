"""Servers of asynchronous methods, as published.

`FedBuff` and `FedAsync` give old updates less weight. The others are optimal in theory, or keep a
row for every client; papers state most of them for single gradients of N clients that are always at
work. Here the update Δ of E local steps, as it was made, stands for the gradient times the rate.
`slots` is C: client i belongs to slot i mod C, and a slot stands for a worker of the paper, with
P_j = Σ p_i of its clients, which take turns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict

import numpy as np
from numpy.typing import NDArray

from fedpace.checks import FloatArray, positive_count
from fedpace.errors import InputError
from fedpace.servers.average import Average
from fedpace.training.server import BaseServer
from fedpace.training.updates import RoundUpdates


def staleness(updates: RoundUpdates) -> FloatArray:
    """Return τ_i, the steps taken while each update was made; 0 in a round."""
    if updates.started is None:
        return np.zeros(updates.draw.clients.size)
    return (updates.version - updates.started.versions).astype(np.float64)


@dataclass(frozen=True)
class FedBuff(Average):
    """w ← w + Σ s_i Δ_i / Σ s_i over the buffer, with s_i = (1 + τ_i)^−1/2 [Nguyen22].

    Biased: slow clients are drawn less often, as they are less often free, and their updates are
    older. Divided by Σ s_i as in FedScale [Lai22], so that steps keep their length; Nguyen divides
    by the buffer, which shortens steps the more the older updates are.

    Parameters
    ----------
    oldest : int ≥ 0
        Updates that are more steps old than this are refused.
    """

    oldest: int = 100

    def weigh(self, updates: RoundUpdates) -> FloatArray:
        """Return s_i / Σ s."""
        fresh = (1 + staleness(updates)) ** -0.5
        weights: FloatArray = fresh / fresh.sum()
        return weights


@dataclass(frozen=True)
class StaleMean(Average):
    """w ← w + Σ (n_i / Σ n) (1 + τ_i)^−β Δ_i over the updates that came [Jiang22].

    Biased, as `FedBuff`; steps are the shorter the older their updates.

    Parameters
    ----------
    exponent : float ≥ 0
        β.
    """

    exponent: float = 0.5

    def weigh(self, updates: RoundUpdates) -> FloatArray:
        """Return the share of the samples of each, less for an old update."""
        p = updates.weights[updates.draw.clients]
        weights: FloatArray = p / p.sum() * (1 + staleness(updates)) ** -self.exponent
        return weights


@dataclass(frozen=True)
class FedAsync(Average):
    """w ← (1 − α_i) w + α_i w_i, with α_i = α (1 + τ_i)^−a, after every update [Xie19, Alg. 1].

    w_i is the model that the client came to, from the one that it was sent. Biased, as `FedBuff`.
    Differs from [Xie19]: local steps have no proximal term.

    Parameters
    ----------
    mixing, exponent : float in (0, 1), float ≥ 0
        α and a; Xie's are 0.6 and 0.5.
    """

    mixing: float = 0.6
    exponent: float = 0.5

    def weigh(self, updates: RoundUpdates) -> FloatArray:
        """Return α_i."""
        weights: FloatArray = self.mixing * (1 + staleness(updates)) ** -self.exponent
        return weights

    def step(self, state: None, updates: RoundUpdates) -> tuple[FloatArray, None]:
        """Mix the models in, one after the other."""
        parameters = updates.parameters
        sent = (updates.draw.weights, updates.models, updates.reply.updates)
        for weight, model, update in zip(*sent, strict=True):
            parameters = parameters + weight * (model + update - parameters)
        return parameters, state


@dataclass(frozen=True)
class Compass(Average):
    """w ← w + Σ α (1 + τ_i)^−a P_i Δ_i over the updates of a group, P_i of the client's slot.

    Parameters
    ----------
    slots : int ≥ 1
        C, clients at work.
    mixing, exponent : float in (0, 1], float ≥ 0
        α and a.
    """

    slots: int = 1
    mixing: float = 0.9
    exponent: float = 0.5

    def weigh(self, updates: RoundUpdates) -> FloatArray:
        """Return α (1 + τ_i)^−a P_i."""
        shares = slot_shares(updates.weights, self.slots)[updates.draw.clients % self.slots]
        weights: FloatArray = self.mixing * (1 + staleness(updates)) ** -self.exponent * shares
        return weights


class SlotUpdate(NamedTuple):
    """One update: its slot, P_j of all slots in use, and how many arrivals old it is."""

    slot: int
    update: FloatArray
    shares: FloatArray
    age: int


class Table(TypedDict):
    """Sums of updates and their counts, by table and slot; and which slots have been served.

    `fresh` counts arrivals since the last step.
    """

    sums: FloatArray
    counts: FloatArray
    served: NDArray[np.bool_]
    fresh: int


@dataclass(frozen=True)
class ArrivalServer(BaseServer):
    """A server that takes updates one after the other; subclasses implement `receive`.

    Parameters
    ----------
    slots : int ≥ 1
        C, clients at work.
    scale : float > 0
        η_g, a factor of every step.
    """

    slots: int = 1
    scale: float = 1.0

    def __post_init__(self) -> None:
        positive_count("slots", self.slots)
        if not 0 < self.scale < np.inf:
            raise InputError(f"scale must be above 0, got {self.scale}; give 1")

    def weigh(self, updates: RoundUpdates) -> FloatArray:
        """Return P_j of each client's slot."""
        return slot_shares(updates.weights, self.slots)[updates.draw.clients % self.slots]

    def step(self, state: Any, updates: RoundUpdates) -> tuple[FloatArray, Any]:
        """Receive every update, and move the model where one completes a step."""
        x, shares = updates.parameters, slot_shares(updates.weights, self.slots)
        sent = updates.draw.clients.tolist(), updates.reply.updates, staleness(updates)
        for client, update, age in zip(*sent, strict=True):
            arrival = SlotUpdate(client % self.slots, update, shares, int(age))
            move, state = self.receive(state, arrival)
            x = x + self.scale * move
        return x, state

    def receive(self, state: Any, arrival: SlotUpdate) -> tuple[FloatArray | float, Any]:
        """Return how far the model moves, and the new state."""
        raise NotImplementedError


def slot_shares(weights: FloatArray, slots: int) -> FloatArray:
    """Return P_j = Σ p_i over the clients i with i mod C = j.

    >>> slot_shares(np.array([0.4, 0.3, 0.2, 0.1]), 2).round(3)
    array([0.6, 0.4])
    """
    shares = np.zeros(min(slots, weights.size))
    np.add.at(shares, np.arange(weights.size) % slots, weights)
    return shares


@dataclass(frozen=True)
class Ringleader(ArrivalServer):
    """Step once per worker and round, along the mean of all workers' mean updates.

    Phase 1 gathers updates until every slot has one. Then C steps w ← w + Σ_j P_j G_j / b_j, G_j
    the sum of the b_j updates of slot j: the first at once, and one at the first update of each
    other slot. Further updates of a slot count in the next round. Nothing is discarded.

    Source: Ringleader ASGD, ICLR 2026 (arXiv 2509.22860). Differs from it: a client that answers
    begins again at the current model, as in the authors' code, not at the model that it holds;
    with C < N, the C slots are the workers.
    """

    def init(self, parameters: FloatArray) -> Table:
        """Return empty tables, of this round and the next, before phase 1."""
        return _empty(2, self.slots, parameters.size)

    def receive(self, state: Table, arrival: SlotUpdate) -> tuple[FloatArray | float, Table]:
        """Gather, step, or keep the update for the next round."""
        slot, used, served = arrival.slot, arrival.shares.size, state["served"]
        gathering = bool(served[:used].all())
        later = int(not gathering and served[slot])
        state["sums"][later, slot] += arrival.update
        state["counts"][later, slot] += 1
        if later or not state["counts"][0, :used].all():
            return 0.0, state
        served[:used] &= not gathering
        served[slot] = True
        move = (arrival.shares / state["counts"][0, :used]) @ state["sums"][0, :used]
        if served[:used].all():
            state["sums"] = np.stack([state["sums"][1], 0 * state["sums"][1]])
            state["counts"] = np.stack([state["counts"][1], 0 * state["counts"][1]])
        return move, state


@dataclass(frozen=True)
class Malenia(ArrivalServer):
    """Step along the mean of all workers' mean updates at the current model.

    All slots train from the same model, again and again, until the harmonic mean of the numbers
    B_j of their updates is at least S / C; then w ← w + Σ_j P_j (mean of the updates of j).

    Source: Malenia SGD, NeurIPS 2023 (arXiv 2305.12387). Differs from it: work under way at a step
    goes on and is ignored, where the paper stops it; with C < N, the C slots are the workers.

    Parameters
    ----------
    gradients : int ≥ 1, optional
        S; by default C, so that every slot has an update in each step.
    """

    gradients: int | None = None

    def init(self, parameters: FloatArray) -> Table:
        """Return an empty table."""
        return _empty(1, self.slots, parameters.size)

    def receive(self, state: Table, arrival: SlotUpdate) -> tuple[FloatArray | float, Table]:
        """Gather an update of the current model, and step when they are enough."""
        if arrival.age > state["fresh"]:
            state["fresh"] += 1
            return 0.0, state
        used = arrival.shares.size
        state["fresh"] += 1
        state["sums"][0, arrival.slot] += arrival.update
        state["counts"][0, arrival.slot] += 1
        counts = state["counts"][0, :used]
        if not self._enough(counts, self.gradients or used):
            return 0.0, state
        move = self._weights(arrival.shares, counts) @ state["sums"][0, :used]
        return move, _empty(1, self.slots, arrival.update.size)

    def _enough(self, counts: FloatArray, wanted: int) -> bool:
        return bool(counts.all()) and counts.size / (1 / counts).sum() >= wanted / counts.size

    def _weights(self, shares: FloatArray, counts: FloatArray) -> FloatArray:
        return shares / counts


@dataclass(frozen=True)
class Rennala(Malenia):
    """Step along the plain mean of the first S updates at the current model. **Biased**.

    As `Malenia`, but a step is due after S updates of any clients: optimal in theory where
    all clients have the same data, and biased to fast clients where they have not.

    Source: Rennala SGD, NeurIPS 2023 (arXiv 2305.12387), which shares the loop of Malenia. Differs
    from it as `Malenia` does; an update counts with C P_j / S, which is 1/S for equal shares.
    """

    def _enough(self, counts: FloatArray, wanted: int) -> bool:
        return bool(counts.sum() >= wanted)

    def _weights(self, shares: FloatArray, counts: FloatArray) -> FloatArray:
        weights: FloatArray = shares * shares.size / counts.sum()
        return weights


@dataclass(frozen=True)
class Ringmaster(ArrivalServer):
    """Step at every update that is less than R steps old; drop the others. **Biased**.

    w ← w + C P_j Δ. Optimal in theory where all clients have the same data, and biased to fast
    clients where they have not.

    Source: Ringmaster ASGD, ICML 2025 (arXiv 2501.16168), Algorithm 1, which lets old work finish.
    Differs from it: with C < N, the C slots are the workers.

    Parameters
    ----------
    threshold : int ≥ 1, optional
        R; by default C, so that with equal speeds nothing is dropped.
    """

    threshold: int | None = None

    def init(self, parameters: FloatArray) -> Dropped:  # noqa: ARG002
        """Return which of the latest arrivals were dropped: none so far."""
        return Dropped(dropped=np.empty(0, dtype=np.bool_))

    def receive(self, state: Dropped, arrival: SlotUpdate) -> tuple[FloatArray | float, Dropped]:
        """Step unless the update is too old, in steps."""
        steps = arrival.age - int(state["dropped"][::-1][: arrival.age].sum())
        old = steps >= (self.threshold or self.slots)
        state["dropped"] = np.append(state["dropped"], old)
        move = 0.0 if old else arrival.shares.size * arrival.shares[arrival.slot] * arrival.update
        return move, state


class Dropped(TypedDict):
    """One truth value per arrival, the latest last."""

    dropped: NDArray[np.bool_]


def _empty(tables: int, slots: int, size: int) -> Table:
    served = np.ones(slots, dtype=np.bool_)
    sums, counts = np.zeros((tables, slots, size)), np.zeros((tables, slots))
    return Table(sums=sums, counts=counts, served=served, fresh=0)


class Rows(TypedDict):
    """One row per client: its latest update, or how far its latest model is from the first model.

    `start` is that model.
    """

    rows: FloatArray
    known: NDArray[np.bool_]
    start: FloatArray


@dataclass(frozen=True)
class RowServer(ArrivalServer):
    """A server with a row for each client; takes N times the memory of the model."""

    def init(self, parameters: FloatArray) -> Rows:
        """Return the state before the first client."""
        known = np.empty(0, dtype=np.bool_)
        return Rows(rows=np.empty((0, parameters.size)), known=known, start=parameters.copy())

    def weigh(self, updates: RoundUpdates) -> FloatArray:
        """Return p_i."""
        return updates.weights[updates.draw.clients]

    def rows_for(self, state: Rows, n: int) -> FloatArray:
        """Return the rows of n clients, zeros for new ones."""
        more = max(n - len(state["rows"]), 0)
        if more:
            state["rows"] = np.concatenate([state["rows"], np.zeros((more, state["start"].size))])
            state["known"] = np.append(state["known"], np.zeros(more, dtype=np.bool_))
        return state["rows"]


@dataclass(frozen=True)
class Ace(RowServer):
    """Step along the mean of the latest updates of all clients, at every arrival.

    w ← w + Σ_i p_i U_i, U_i the latest update of client i. The first step waits until C clients
    have answered; until all have, the mean is over those that have, and **biased** to them.

    Source: ACE, arXiv 2511.19066, which is the rule of IA²SGD. Differs from it: clients that answer
    before the first step go on working at the first model, where the paper lets them wait; with
    C < N the client that has waited longest is next.
    """

    def step(self, state: Rows, updates: RoundUpdates) -> tuple[FloatArray, Rows]:
        """Replace the sender's entry, and step along the mean."""
        x, p = updates.parameters, updates.weights
        rows = self.rows_for(state, p.size)
        known = state["known"]
        for client, update in zip(updates.draw.clients, updates.reply.updates, strict=True):
            rows[client], known[client] = update, True
            if known.sum() >= min(self.slots, p.size):
                x = x + self.scale * ((p * known[: p.size]) @ rows[: p.size]) / p[known].sum()
        return x, state


@dataclass(frozen=True)
class Ca2fl(RowServer):
    """FedBuff with memory: steps are calibrated by the latest update of every client.

    With B updates in the buffer, w ← w + Σ_i p_i h_i + Σ_buffer (N p_i / B) (Δ_i − h_i), h_i the
    update of client i before Δ_i, 0 at first; those of the first sum are of before the step.
    **Biased** as `FedBuff` at first; the more h_i resembles Δ_i, the less.

    Source: CA2FL, ICLR 2024, and third-party code. Differs from it: p_i stands for 1/N.
    """

    def step(self, state: Rows, updates: RoundUpdates) -> tuple[FloatArray, Rows]:
        """Step, and remember the updates."""
        p, clients = updates.weights, updates.draw.clients
        rows = self.rows_for(state, p.size)
        move = p @ rows[: p.size]
        for client, update in zip(clients, updates.reply.updates, strict=True):
            move = move + p.size * p[client] / clients.size * (update - rows[client])
            rows[client] = update
        return updates.parameters + self.scale * move, state


@dataclass(frozen=True)
class Area(RowServer):
    """The model is the mean of the models that clients sent last: w = Σ_i p_i m_i at every step.

    A client sends how far its model has moved since it last sent one, y − m_i with m_i the first
    model to begin with, and the server adds p_i times that after every B arrivals.

    Source: AREA, arXiv 2405.10123, and its author's code. Differs from it: p_i stands for 1/N and
    for the paper's scaled rates, with the same fixed points; a client receives the model after the
    step that its arrival completes; the server keeps m_i, not the client; with C < N the client
    that has waited longest is next. `scale` must be 1.
    """

    def step(self, state: Rows, updates: RoundUpdates) -> tuple[FloatArray, Rows]:
        """Add the differences, and remember the models."""
        x, rows = updates.parameters, self.rows_for(state, updates.weights.size)
        sent = updates.draw.clients, updates.models, updates.reply.updates
        for client, model, update in zip(*sent, strict=True):
            moved = model + update - state["start"]
            x = x + updates.weights[client] * (moved - rows[client])
            rows[client] = moved
        return x, state
