"""A server that remembers each client's latest update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from fedpace.checks import FloatArray, IntArray
from fedpace.errors import InputError
from fedpace.training.server import BaseServer
from fedpace.training.updates import RoundUpdates, latest_of_each, places_of, replace_rows

# Forgetting factor of the sums behind β, per round or per ten asynchronous updates.
KEPT, A_ROUND = 0.9, 10
# Most numbers to remember, in single precision: 256 MB.
LARGEST_MEMORY = 2**26


class Remembered(TypedDict):
    """The latest update of each client over its learning rate, the latest client last.

    `agreed` and `squares` are sums whose ratio is β.
    """

    clients: IntArray
    updates: NDArray[np.float32]
    agreed: float
    squares: float


@dataclass(frozen=True)
class Memory(BaseServer):
    """Step by the remembered updates of all clients, corrected by those of the drawn clients.

    With h_i the latest update of client i over its learning rate, 0 before the first, and η the
    rate of this round,

        w ← w + η (β Σ_i p_i h_i + Σ_drawn weights_i (Δ_i/η − β h_i)).

    In asynchronous training Δ_i is over the rate of its task, and all updates of a step count with
    the same η, or slow clients, whose updates are old, would count for more where the rate falls:
    see `RoundUpdates.step_rate`.

    For every β that depends on the past only, this has the mean of the plain average, as
    E[weights_i] = p_i; its variance is that of the residuals Δ_i/η − β h_i. β is the regression
    of updates on the remembered ones, between 0 and 1, with old rounds forgotten: if memory does
    not help, β falls to 0.

    If clients are away, weights are divided by P, the sum of p_i of those present, and so is p_i of
    their remembered updates. Clients that are away count with β p_i h_i if an update of them is
    remembered, and all else counts for as much less, so that steps keep their length:

        w ← w + η (β Σ_away p_i h_i + (1 − β Σ_away p_i) (β Σ_here p_i/P h_i + Σ_drawn …)).

    FedVARP and FedStale with importance weights [Jhunjhunwala22; Rodio24]; there β is 1, or given,
    and remembered updates count with β p_i, present or not.

    Parameters
    ----------
    most : int
        Numbers to remember; if N times the model's size is more, the latest clients only.
    beta : float in [0, 1], optional
        A fixed β: 1 is FedVARP, 0 the plain average, and between them is FedStale.
    """

    most: int = LARGEST_MEMORY
    beta: float | None = None

    def __post_init__(self) -> None:
        if self.beta is not None and not 0 <= self.beta <= 1:
            raise InputError(f"beta must be from 0 to 1, got {self.beta}; 1 is FedVARP")

    def init(self, parameters: FloatArray) -> Remembered:
        """Return the state before the first round."""
        clients = np.empty(0, dtype=np.int64)
        updates = np.empty((0, parameters.size), dtype=np.float32)
        return Remembered(clients=clients, updates=updates, agreed=0.0, squares=0.0)

    def residuals(self, state: Remembered, updates: RoundUpdates) -> FloatArray:
        """Return Δ_i/η − β h_i of the clients that answered."""
        return updates.directions - self._beta(state) * self._recall(state, updates.draw.clients)

    def step(self, state: Remembered, updates: RoundUpdates) -> tuple[FloatArray, Remembered]:
        """Return the model after the step, and the memory with the new updates."""
        draw = updates.draw
        before = self._recall(state, draw.clients)
        latest = updates.directions
        beta = self._beta(state)
        step = draw.weights @ (latest - beta * before)
        if beta:
            step = self._add_memory(step, beta, state, updates)
        rate = updates.learning_rate if updates.step_rate is None else updates.step_rate
        rate *= updates.mean_steps
        return updates.parameters + rate * step, self._remember(state, updates, before, latest)

    def _add_memory(
        self, step: FloatArray, beta: float, state: Remembered, updates: RoundUpdates
    ) -> FloatArray:
        """Add the remembered updates of all clients to a step by the drawn ones."""
        clients = state["clients"]
        shares = updates.weights[clients].astype(np.float64)
        here = updates.share_present if self.beta is None else 1.0
        if here < 1:
            away = updates.is_away(clients)
            rest = 1 - beta * float(shares[away].sum())
            shares[~away] *= rest / here
            step = rest * step
        return step + beta * (shares.astype(np.float32) @ state["updates"])

    def _beta(self, state: Remembered) -> float:
        return _measured_beta(state) if self.beta is None else self.beta

    def _recall(self, state: Remembered, clients: IntArray) -> FloatArray:
        """Return the remembered updates of these clients, 0 for unknown ones."""
        rows = np.zeros((clients.size, state["updates"].shape[1]))
        places = places_of(clients, state["clients"])
        whose = np.flatnonzero(places >= 0)
        rows[whose] = state["updates"][places[whose]]
        return rows

    def _remember(
        self, state: Remembered, updates: RoundUpdates, before: FloatArray, latest: FloatArray
    ) -> Remembered:
        fine = np.isfinite(latest).all(axis=1)
        latest, before, clients = latest[fine], before[fine], updates.draw.clients[fine]
        importance = updates.draw.weights[fine] * updates.weights[clients]
        agreed = float(importance @ np.vecdot(latest, before))
        squares = float(importance @ np.vecdot(before, before))
        kept = KEPT if updates.started is None else KEPT ** (clients.size / A_ROUND)
        others = np.ones(state["clients"].size, dtype=np.bool_)
        others[(places := places_of(clients, state["clients"]))[places >= 0]] = False
        last = latest_of_each(clients)
        clients, latest = clients[last], latest[last]
        room = slice(-max(self.most // max(latest.shape[1], 1), 1), None)
        return Remembered(
            clients=np.append(state["clients"][others], clients)[room],
            updates=replace_rows(state["updates"], others, latest)[room],
            agreed=kept * state["agreed"] + agreed,
            squares=kept * state["squares"] + squares,
        )


def _measured_beta(state: Remembered) -> float:
    if not (state["squares"] > 0 and np.isfinite(state["agreed"])):
        return 0.0
    return float(np.clip(state["agreed"] / state["squares"], 0.0, 1.0))
