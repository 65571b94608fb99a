"""A server that remembers each client's latest update."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cache
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from fedpace.checks import FloatArray, IntArray
from fedpace.errors import InputError
from fedpace.training.server import BaseServer
from fedpace.training.updates import (
    RoundUpdates,
    add_weighted,
    blocks,
    empty_model,
    latest_of_each,
)

log = logging.getLogger("fedpace")

# Forgetting factor of the sums behind β, per round or per ten asynchronous updates.
KEPT, A_ROUND = 0.9, 10
# Most numbers to remember, in single precision: 256 MB.
LARGEST_MEMORY = 2**26
# Memory is off where it would hold less than one of this many clients.
WORTH = 3


class Remembered(TypedDict):
    """The latest update of each client over its learning rate, in a table of slots.

    `slots` is the slot of each client, −1 for none, `clients` the client of each slot, −1 for none,
    and `used` the number of its latest update, of `count`. `totals` are Σ s_i h_i for both rows of
    `shares`: over the clients that are here, and those that are away. `agreed` and `squares` are
    sums whose ratio is β.
    """

    slots: IntArray
    clients: IntArray
    used: IntArray
    updates: NDArray[np.float32]
    shares: FloatArray
    totals: FloatArray
    agreed: float
    squares: float
    count: int


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
        Numbers to remember; if N times the model's size is more, the latest clients only. If less
        than a third of the clients fit, nothing is remembered, which is the plain average.
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
        none = np.empty(0, dtype=np.int64)
        return Remembered(
            slots=none,
            clients=none,
            used=none,
            updates=np.empty((0, parameters.size), dtype=np.float32),
            shares=np.empty((2, 0)),
            totals=np.empty((0, parameters.size)),
            agreed=0.0,
            squares=0.0,
            count=0,
        )

    def residual_norms(self, state: Remembered, updates: RoundUpdates) -> FloatArray:
        """Return ‖Δ_i/η − β h_i‖ of the clients that answered."""
        beta, slots = self._beta(state), _slots_of(state, updates.draw.clients)
        if not beta or (slots < 0).all():
            return super().residual_norms(state, updates)
        squares = np.zeros(slots.size)
        for piece in blocks(2 * slots.size, updates.parameters.size):
            rest = updates.directions(piece) - beta * _recall(state, slots, piece)
            squares += np.vecdot(rest, rest)
        return np.sqrt(squares)

    def step(self, state: Remembered, updates: RoundUpdates) -> tuple[FloatArray, Remembered]:
        """Return the model after the step, and the memory with the new updates."""
        draw, parameters = updates.draw, updates.parameters
        beta, slots = self._beta(state), _slots_of(state, draw.clients)
        _check_slots(state, slots, updates.weights.size)
        rate = updates.step_length
        if not (room := self._room(updates)):
            weights = draw.weights * (rate / updates.scales)
            return add_weighted(parameters, weights, updates.reply.updates), state
        rest, factors = self._factors(beta, state, updates)
        agreed, squares, lengths = np.zeros((3, slots.size))
        after = empty_model(parameters.size)
        for piece in blocks(2 * slots.size, parameters.size):
            latest, before = updates.directions(piece), _recall(state, slots, piece)
            step = draw.weights @ (latest - beta * before)
            if beta:
                totals = state["totals"][:, piece]
                step = rest * step + factors[: len(totals)] @ totals
            after[piece] = parameters[piece] + rate * step
            agreed += np.vecdot(latest, before)
            squares += np.vecdot(before, before)
            lengths += np.vecdot(latest, latest)
        fine = np.isfinite(lengths)
        importance = (draw.weights * updates.weights[draw.clients])[fine]
        kept = KEPT if updates.started is None else KEPT ** (fine.sum() / A_ROUND)
        state["agreed"] = kept * state["agreed"] + float(importance @ agreed[fine])
        state["squares"] = kept * state["squares"] + float(importance @ squares[fine])
        _remember(state, updates, np.flatnonzero(fine), room)
        return after, state

    def _room(self, updates: RoundUpdates) -> int:
        """Return how many clients are remembered, 0 if less than a third of all would be."""
        n, size = updates.weights.size, updates.parameters.size
        room = min(self.most // max(size, 1), n)
        if WORTH * room >= n:
            return room
        _log_off(room, n, 4 * n * size / 1e6)
        return 0

    def _factors(
        self, beta: float, state: Remembered, updates: RoundUpdates
    ) -> tuple[float, FloatArray]:
        """Return the factors of the step by the drawn clients, and of both totals."""
        if not beta:
            return 1.0, np.zeros(2)
        clients = state["clients"]
        known = np.flatnonzero(clients >= 0)
        here = updates.share_present if self.beta is None else 1.0
        away = known[updates.is_away(clients[known])] if here < 1 else known[:0]
        shares = np.zeros_like(state["shares"])
        shares[0, known] = updates.weights[clients[known]]
        shares[1, away], shares[0, away] = shares[0, away], 0.0
        _add_up(state, shares)
        rest = 1 - beta * float(shares[1].sum())
        return rest, beta * np.array([rest / here, 1.0])

    def _beta(self, state: Remembered) -> float:
        return _measured_beta(state) if self.beta is None else self.beta


def _check_slots(state: Remembered, slots: IntArray, n: int) -> None:
    """Refuse a memory of clients and slots that are not there, as a crafted checkpoint may hold."""
    for name, numbers, end in (
        ("clients", state["clients"], n),
        ("slots", slots, state["clients"].size),
    ):
        low, high = numbers.min(initial=-1), numbers.max(initial=-1)
        if low < -1 or high >= end:
            raise InputError(
                f"{name} of the server's memory must be from -1 to {end - 1}, got {low} to {high}; "
                f"remove the checkpoint to start again"
            )


def _slots_of(state: Remembered, clients: IntArray) -> IntArray:
    """Return the slot of each client, −1 for none."""
    slots = np.full(clients.size, -1)
    known = clients < state["slots"].size
    slots[known] = state["slots"][clients[known]]
    return slots


def _recall(state: Remembered, slots: IntArray, piece: slice) -> FloatArray:
    """Return some entries of what is remembered in these slots, 0 for none."""
    rows = np.zeros((slots.size, piece.stop - piece.start))
    known = slots >= 0
    rows[known] = state["updates"][slots[known], piece]
    return rows


def _add_up(state: Remembered, shares: FloatArray) -> None:
    """Bring the totals to these shares: by the rows whose share changed, or all if most did."""
    rows, before = state["updates"], state["shares"]
    needed = 1 + bool(shares[1].any())
    if len(state["totals"]) < needed:
        more = np.zeros((needed - len(state["totals"]), rows.shape[1]))
        state["totals"] = np.concatenate([state["totals"], more])
    changed = np.flatnonzero((shares != before).any(axis=0))
    anew = 2 * changed.size > (shares > 0).any(axis=0).sum()
    if anew:
        changed = np.flatnonzero(shares.any(axis=0))
        before = np.zeros_like(shares)
    if changed.size or anew:
        change = (shares - before)[: len(state["totals"]), changed]
        for piece in blocks(changed.size, rows.shape[1]):
            found = change @ rows[changed, piece].astype(np.float64)
            state["totals"][:, piece] = found if anew else state["totals"][:, piece] + found
    state["shares"] = shares


def _remember(state: Remembered, updates: RoundUpdates, fine: IntArray, room: int) -> None:
    """Put the latest update of each client into its slot; the least recent ones make room."""
    fine = fine[latest_of_each(updates.draw.clients[fine])]
    fine = fine[max(fine.size - room, 0) :]
    clients, rates = updates.draw.clients[fine], updates.scales[fine, None]
    slots = _find_slots(state, clients, room)
    old = state["shares"][: len(state["totals"]), slots]
    for piece in blocks(2 * slots.size, updates.parameters.size):
        if old.any():
            state["totals"][:, piece] -= old @ _recall(state, slots, piece)
        state["updates"][slots, piece] = updates.reply.updates[fine, piece] / rates
    state["shares"][:, slots] = 0.0


def _find_slots(state: Remembered, clients: IntArray, room: int) -> IntArray:
    """Return a slot for each client: its own, a new one, or that of the least recent client."""
    slots = _slots_of(state, clients)
    new = np.flatnonzero(slots < 0)
    free = np.flatnonzero(state["clients"] < 0)
    if new.size > free.size and state["clients"].size < room:
        _grow(state, new.size - free.size, room)
        free = np.flatnonzero(state["clients"] < 0)
    if new.size > free.size:
        used = state["used"].copy()
        used[slots[slots >= 0]] = state["count"]  # those of now stay
        used[free] = -1
        free = np.argsort(used, kind="stable")
    slots[new] = free[: new.size]
    evicted = state["clients"][slots[new]]
    state["slots"][evicted[evicted >= 0]] = -1
    most = int(clients.max(initial=-1)) + 1 - state["slots"].size
    if most > 0:
        state["slots"] = np.append(state["slots"], np.full(most, -1))
    state["slots"][clients], state["clients"][slots] = slots, clients
    state["used"][slots] = np.arange(clients.size) + state["count"]
    state["count"] += clients.size
    return slots


def _grow(state: Remembered, more: int, room: int) -> None:
    """Make room for more clients."""
    before = state["clients"].size
    more = min(max(more, before // 2), room - before)
    none = np.full(more, -1)
    state["clients"] = np.append(state["clients"], none)
    state["used"] = np.append(state["used"], none)
    state["shares"] = np.append(state["shares"], np.zeros((2, more)), axis=1)
    rows = state["updates"]
    state["updates"] = np.zeros((before + more, rows.shape[1]), np.float32)
    state["updates"][:before] = rows


@cache
def _log_off(room: int, n: int, megabytes: float) -> None:
    """Log once that nothing is remembered, and what it would take."""
    log.warning(
        "fedpace: the server's memory is off: %d of %d clients fit; all take %.0f MB: "
        "give Memory(most=…)", room, n, megabytes
    )  # fmt: skip


def _measured_beta(state: Remembered) -> float:
    if not (state["squares"] > 0 and np.isfinite(state["agreed"])):
        return 0.0
    return float(np.clip(state["agreed"] / state["squares"], 0.0, 1.0))
