"""A server that remembers each client's latest update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from fedpace.checks import FloatArray, IntArray
from fedpace.errors import InputError
from fedpace.rounds.backend import Reply
from fedpace.rounds.seen import Seen, latest_of_each, places_of, renewed
from fedpace.sampling.design import Draw

# How much of what was learned of β counts after the next round, or ten updates without a barrier.
KEPT, A_ROUND = 0.9, 10
# Numbers that are remembered at most, in single precision: 256 MB.
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
class Memory:
    """Step by what is remembered of all, corrected by what the drawn clients sent.

    With h_i the latest update of client i over its learning rate, 0 before the first, and η the
    rate of this round,

        w ← w + η (β Σ_i p_i h_i + Σ_drawn weights_i (Δ_i/η − β h_i)).

    Without a barrier Δ_i is over the rate that it was made with, and all of a step count with the
    same η: else slow clients, whose updates are old, would count for more where the rate falls. It
    is the rate of a quarter as many steps ago as updates are old on average (`Seen.step_rate`).

    For every β that depends on the past only, this has the mean of the plain average, as
    E[weights_i] = p_i; its variance is that of the residuals Δ_i/η − β h_i. β is the regression
    of updates on what was remembered, between 0 and 1, with old rounds forgotten: where memory
    does not help it fades by itself.

    Where clients are away, weights are over the sum P of p_i of those present, and so is p_i of
    what is remembered of them. Of those who are away β p_i h_i counts, where something is
    remembered, and all else for as much less, so that steps are as long as ever:

        w ← w + η (β Σ_away p_i h_i + (1 − β Σ_away p_i) (β Σ_here p_i/P h_i + Σ_drawn …)).

    FedVARP and FedStale with importance weights [Jhunjhunwala22; Rodio24]; there β is 1, or given,
    and what is remembered counts for β p_i, whoever is there.

    Parameters
    ----------
    most : int
        Numbers to remember; where N times the model's size is more, the latest clients only.
    beta : float in [0, 1], optional
        β, where it is given: 1 is FedVARP, in between is FedStale, 0 the plain average.
    """

    most: int = LARGEST_MEMORY
    beta: float | None = None
    informed = True

    def __post_init__(self) -> None:
        if self.beta is not None and not 0 <= self.beta <= 1:
            raise InputError(f"beta must be from 0 to 1, got {self.beta}; 1 is FedVARP")

    def init(self, parameters: FloatArray) -> Remembered:
        """Return the state before the first round."""
        clients = np.empty(0, dtype=np.int64)
        updates = np.empty((0, parameters.size), dtype=np.float32)
        return Remembered(clients=clients, updates=updates, agreed=0.0, squares=0.0)

    def residuals(self, state: Remembered, seen: Seen) -> FloatArray:
        """Return Δ_i/η − β h_i of those who answered."""
        return seen.directions - self._beta(state) * self._of(state, seen.draw.clients)

    def apply(
        self,
        state: Remembered,
        parameters: FloatArray,
        draw: Draw,
        reply: Reply,  # noqa: ARG002
        *,
        seen: Seen,
    ) -> tuple[FloatArray, Remembered]:
        """Return the model after the step, and the memory with the new updates."""
        before = self._of(state, draw.clients)
        latest = seen.directions
        beta = self._beta(state)
        step = draw.weights @ (latest - beta * before)
        if beta:
            step = self._with_memory(step, beta, state, seen)
        rate = seen.learning_rate if seen.step_rate is None else seen.step_rate
        return parameters + rate * step, self._kept(state, seen, before, latest)

    def _with_memory(
        self, step: FloatArray, beta: float, state: Remembered, seen: Seen
    ) -> FloatArray:
        """Add what is remembered of all to a step by those drawn."""
        clients = state["clients"]
        shares = seen.weights[clients].astype(np.float64)
        here = seen.share_present if self.beta is None else 1.0
        if here < 1:
            away = seen.is_away(clients)
            rest = 1 - beta * float(shares[away].sum())
            shares[~away] *= rest / here
            step = rest * step
        return step + beta * (shares.astype(np.float32) @ state["updates"])

    def _beta(self, state: Remembered) -> float:
        return _measured_beta(state) if self.beta is None else self.beta

    def _of(self, state: Remembered, clients: IntArray) -> FloatArray:
        """Return what is remembered of these clients; 0 of one that is not."""
        rows = np.zeros((clients.size, state["updates"].shape[1]))
        places = places_of(clients, state["clients"])
        whose = np.flatnonzero(places >= 0)
        rows[whose] = state["updates"][places[whose]]
        return rows

    def _kept(
        self, state: Remembered, seen: Seen, before: FloatArray, latest: FloatArray
    ) -> Remembered:
        fine = np.isfinite(latest).all(axis=1)
        latest, before, clients = latest[fine], before[fine], seen.draw.clients[fine]
        importance = seen.draw.weights[fine] * seen.weights[clients]
        agreed = float(importance @ np.vecdot(latest, before))
        squares = float(importance @ np.vecdot(before, before))
        kept = KEPT if seen.started is None else KEPT ** (clients.size / A_ROUND)
        others = np.ones(state["clients"].size, dtype=np.bool_)
        others[(places := places_of(clients, state["clients"]))[places >= 0]] = False
        last = latest_of_each(clients)
        clients, latest = clients[last], latest[last]
        room = slice(-max(self.most // max(latest.shape[1], 1), 1), None)
        return Remembered(
            clients=np.append(state["clients"][others], clients)[room],
            updates=renewed(state["updates"], others, latest)[room],
            agreed=kept * state["agreed"] + agreed,
            squares=kept * state["squares"] + squares,
        )


def _measured_beta(state: Remembered) -> float:
    if not (state["squares"] > 0 and np.isfinite(state["agreed"])):
        return 0.0
    return float(np.clip(state["agreed"] / state["squares"], 0.0, 1.0))


def residuals(server: Any, state: Any, seen: Seen) -> FloatArray:
    """Return what a server weights, over the learning rate: residuals, or the updates as such."""
    if hasattr(server, "residuals"):
        found: FloatArray = server.residuals(state, seen)
        return found
    return seen.directions
