"""Queues of asynchronous turns: credits, and who is at work, at a cost that N hardly changes."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from math import inf
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedpace.checks import FloatArray

if TYPE_CHECKING:
    from fedpace.sampling.dispatch import BaseDispatch, InTurn
from fedpace.sampling.order import stable_order

# A client is due when its credit reaches 1; a turn normally costs 1.
DUE = 1.0
# Largest payment of one turn, for a client that waited for it: at most twice its usual weight.
MOST_PAID = 2.0
# A client that is always at work pays its credit, but at least this, as long as it then owes no
# more than one turn: with less, varying times would make steps shorter.
LEAST_PAID = 0.5
# Beyond that debt it pays nothing; positive, because some servers divide by the sum of the weights.
NOTHING = 1e-6
# A client stops earning at this credit, so that a long absence is not paid back in full.
MOST_CREDIT = 4.0
# Add up the shares of those who earn anew below this sum, where rounding would count.
LEAST_EARNING = 1e-3


class Turns:
    """The turns of one design: who is at work, and the credit of each client.

    Parameters
    ----------
    design : BaseDispatch
        Its `next` chooses the clients, looking at all of them.
    credit : array of N
        The credits now.
    busy : clients
        Those at work; clients beyond N are ignored here and below.
    """

    def __init__(self, design: BaseDispatch, credit: FloatArray, busy: Iterable[int] = ()) -> None:
        self.design, self._credits = design, credit
        self._free = np.ones(design.n, dtype=np.bool_)
        self._free[[client for client in busy if client < design.n]] = False

    @property
    def credits(self) -> FloatArray:
        """The credits now, in turns."""
        return self._credits

    def next(
        self, present: NDArray[np.bool_] | None, rng: np.random.Generator
    ) -> tuple[int, float] | None:
        """Return the client whose turn it is and the weight of its update; None if none can be.

        It is at work from now on. `present` has one truth value per client, None for all.
        """
        design, credit = self.design, self._credits
        free = self._free.copy() if present is None else self._free & present
        if not free.any():
            return None
        # Turns rely on the sum of the credits: all receive the same multiple of f_i.
        credit = credit + ((design.n + 1) / 2 - credit.sum()) * design.q
        turn = design.next(free, credit, rng)
        if turn is None:
            return None
        self._credits, self._free[turn.client] = turn.credits, False
        return turn.client, turn.weight

    def end(self, client: int) -> None:
        """Note that a client is free again."""
        if client < self._free.size:
            self._free[client] = True


class FairTurns(Turns):
    """The turns of `InTurn`, by weighted fair queueing [Demers89].

    The credit of i is a_i + f_i V, where the virtual time V grows by m / Σ f_j with every turn that
    pays m, the sum over those who earn. So (1 − credit_i)/f_i falls by the same amount for all of
    them, and the first to be due has the least (1 − a_i)/f_i, which is fixed. A client whose credit
    has reached 4 does not earn; of these, (1 − credit_i)/f_i is fixed.
    """

    design: InTurn

    def __init__(self, design: InTurn, credit: FloatArray, busy: Iterable[int] = ()) -> None:
        super().__init__(design, credit, busy)
        self._now = 0.0  # V
        self._base = np.array(credit, dtype=np.float64)  # a_i, or the credit of those who are full
        self._full = self._base >= MOST_CREDIT
        self._earning = float(design.q[~self._full].sum())
        self._set_aside = np.zeros(design.n, dtype=np.bool_)  # free, but away
        self._present: NDArray[np.bool_] | None = None
        self._lasting = np.flatnonzero(design.always)
        with np.errstate(over="ignore"):  # beyond float64 is never
            due = (DUE - self._base) / design.q
            self._cap = _Queue((MOST_CREDIT - self._base) / design.q, ~self._full)
        waiting = self._free & ~design.always
        self._due = _Queue(due, waiting & ~self._full)
        self._due_full = _Queue(due, waiting & self._full)

    @property
    def credits(self) -> FloatArray:
        """The credits now, in turns."""
        return np.where(self._full, self._base, self._base + self.design.q * self._now)

    def next(
        self,
        present: NDArray[np.bool_] | None,
        rng: np.random.Generator,  # noqa: ARG002
    ) -> tuple[int, float] | None:
        """Return the client whose turn it is, and the weight of its update."""
        self._fill()
        if present is not self._present:
            self._take_back(present)
        client = self._first_lasting()
        if client >= 0:
            credit = self._credit(client)
            least = min(LEAST_PAID, max(credit + DUE, NOTHING))
        else:
            client = self._first_due()
            if client < 0:
                return None
            credit, least = self._credit(client) - DUE, DUE
        paid = min(max(credit, least), MOST_PAID)
        self._free[client] = False
        self._pay(client, paid)
        return client, paid * float(self.design.weights[client] / self.design.q[client])

    def end(self, client: int) -> None:
        """Note that a client is free again."""
        if client < self._free.size and not self._free[client]:
            self._free[client] = True
            self._wait(client)

    def _credit(self, client: int) -> float:
        base = float(self._base[client])
        return base if self._full[client] else base + float(self.design.q[client]) * self._now

    def _wait(self, client: int) -> None:
        """Put a free client into the queue of those to be due."""
        if not self.design.always[client]:
            key = (DUE - float(self._base[client])) / float(self.design.q[client])
            (self._due_full if self._full[client] else self._due).put(client, key)

    def _pay(self, client: int, paid: float) -> None:
        """Let those who earn share what a client pays."""
        q, credit = float(self.design.q[client]), self._credit(client) - paid
        if self._earning > 0:
            grown = paid / self._earning
            self._now += grown
            credit += 0.0 if self._full[client] else q * grown
        if self._full[client] and credit < MOST_CREDIT:
            self._full[client] = False
            self._earn(q)
        self._base[client] = credit if self._full[client] else credit - q * self._now
        if not self._full[client]:
            self._cap.put(client, (MOST_CREDIT - float(self._base[client])) / q)

    def _fill(self) -> None:
        """Let those whose credit has reached 4 stop earning."""
        while (client := self._cap.first(self._now)[1]) >= 0:
            self._cap.remove(client)
            self._base[client] = self._credit(client)
            self._full[client] = True
            self._earn(-float(self.design.q[client]))
            if self._due.remove(client):
                self._wait(client)

    def _earn(self, share: float) -> None:
        self._earning += share
        if self._earning < LEAST_EARNING:
            self._earning = float(self.design.q[~self._full].sum())

    def _take_back(self, present: NDArray[np.bool_] | None) -> None:
        """Put those who are present again back into the queues."""
        self._present = present
        back = self._set_aside if present is None else self._set_aside & present
        for client in np.flatnonzero(back).tolist():
            self._set_aside[client] = False
            self._wait(client)

    def _first_lasting(self) -> int:
        """Return which free client among those always at work has the most credit; −1 for none."""
        if not self._lasting.size:
            return -1
        here = self._free[self._lasting]
        if self._present is not None:
            here &= self._present[self._lasting]
        clients = self._lasting[here]
        if not clients.size:
            return -1
        return int(clients[np.argmax([self._credit(client) for client in clients.tolist()])])

    def _first_due(self) -> int:
        """Take the first client to be due out of its queue and return it; −1 for none."""
        while True:
            (due, client), (due_full, full) = self._due.first(), self._due_full.first()
            queue = self._due
            if due_full < due - self._now:
                queue, client = self._due_full, full
            if client < 0:
                return -1
            queue.remove(client)
            if self._present is None or self._present[client]:
                return client
            self._set_aside[client] = True


class _Queue:
    """Clients by a fixed key, the least first; of equal keys, the lower number.

    A sorted array, made when it is first needed, and a heap of those that were put back.
    """

    def __init__(self, keys: FloatArray, within: NDArray[np.bool_]) -> None:
        self._clients = np.flatnonzero(within)
        self._keys = keys[self._clients]
        self._least = float(self._keys.min(initial=inf))
        self._place = -1  # in the array; −1 as long as it is not sorted
        self._within = within
        self._back: list[tuple[float, int]] = []
        self._key: dict[int, float] = {}  # of those in the heap

    def put(self, client: int, key: float) -> None:
        """Put a client in; it may be there already, with another key."""
        self.remove(client)
        self._key[client] = key
        heappush(self._back, (key, client))

    def remove(self, client: int) -> bool:
        """Take a client out; return whether it was there."""
        if self._within[client]:
            self._within[client] = False
            return True
        return self._key.pop(client, None) is not None

    def first(self, most: float = inf) -> tuple[float, int]:
        """Return the least key up to `most`, and its client; ∞ and −1 for none."""
        back = self._back
        while back and self._key.get(back[0][1]) != back[0][0]:
            heappop(back)
        key, client = back[0] if back else (inf, -1)
        if self._least <= most:
            self._go_on()
            if self._least < inf:
                key, client = min((key, client), (self._least, self._clients.item(self._place)))
        return (key, client) if key <= most else (inf, -1)

    def _go_on(self) -> None:
        """Find the first of the array that is still in."""
        if self._place < 0:
            order = stable_order(self._keys)
            self._keys, self._clients, self._place = self._keys[order], self._clients[order], 0
        while self._place < self._keys.size and not self._within[self._clients[self._place]]:
            self._place += 1
        self._least = self._keys.item(self._place) if self._place < self._keys.size else inf
