"""Whom to send the next task, where C clients are always at work: in turn, or at random."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpace.checks import (
    RAREST,
    FloatArray,
    one_per_client,
    positive_column,
    positive_count,
    positive_probabilities,
    refuse_first,
    shares,
)
from fedpace.errors import InputError
from fedpace.profile import Profile
from fedpace.sampling.bound import variance_term
from fedpace.sampling.solution import Solution

# A client is due when it has this much credit.
DUE = 1.0
# A turn pays 1. More, up to this, where a client has credit for two turns: it was kept waiting.
MOST_PAID = 2.0
# Who is always at work pays what it has, but not less than this: no update is for nothing.
LEAST_PAID = 0.5
# With this much credit a client earns no more: who is away for long is not owed all of it.
MOST_CREDIT = 4.0
# At work for all of the time but this part: always.
ALWAYS = 1e-6


class Turn(NamedTuple):
    """Who is next, what its update weighs per completion, and the credits after it."""

    client: int
    weight: float
    credits: FloatArray


class Dispatch(Protocol):
    """A way to choose one client after another, so that client i weighs p_i in the long run."""

    @property
    def q(self) -> FloatArray:
        """The share of completions of each client."""

    @property
    def n(self) -> int:
        """The number of clients."""

    @property
    def at_once(self) -> int:
        """C, the clients at work at any time."""

    def start(self, rng: np.random.Generator) -> FloatArray:
        """Return the credits to begin with."""

    def next(self, free: NDArray[np.bool_], credit: FloatArray, rng: np.random.Generator) -> Turn:
        """Choose one of those who are free; the credits given stay as they are."""

    def seconds_per_completion(self, times: ArrayLike) -> float:
        """Return Σ f_i t_i / C."""

    def variance_term(self, profile: Profile) -> float:
        """Return S(f)."""

    @property
    def largest_weight(self) -> float:
        """The largest p_i / f_i."""


@dataclass(frozen=True, eq=False)
class _Shares:
    """What both ways to choose have in common."""

    q: FloatArray
    weights: FloatArray
    at_once: int
    solution: Solution | None

    def __init__(
        self,
        q: ArrayLike,
        weights: ArrayLike,
        at_once: int,
        *,
        solution: Solution | None = None,
    ) -> None:
        p = shares(weights)
        object.__setattr__(self, "q", positive_probabilities(q, p.size, "chosen"))
        object.__setattr__(self, "weights", p)
        remedy = "a client does one task at a time"
        object.__setattr__(self, "at_once", positive_count("at_once", at_once, remedy, most=p.size))
        object.__setattr__(self, "solution", solution)

    def seconds_per_completion(self, times: ArrayLike) -> float:
        """Return Σ f_i t_i / C."""
        t = one_per_client("times", positive_column("times", times), self.n)
        return float(self.q @ t) / self.at_once

    def variance_term(self, profile: Profile) -> float:
        """Return S(f)."""
        return variance_term(self.q, profile.weights, profile.grad_norms)

    def columns(self) -> dict[str, FloatArray]:
        """Return what there is to say of each client, by name."""
        return {"q": self.q, "aggregation_weight": self.weights / self.q}

    @property
    def n(self) -> int:
        """The number of clients."""
        return self.weights.size

    @property
    def largest_weight(self) -> float:
        """The largest p_i / f_i; where a client was kept waiting, a turn pays up to twice that."""
        return float((self.weights / self.q).max())


@dataclass(frozen=True, eq=False, init=False)
class InTurn(_Shares):
    """Give every client its turns: credit grows with f_i, and who reaches 1 first is next.

    A turn that pays m takes m from the client's credit, adds m f_j to everybody's, and its update
    weighs m p_i / f_i. So the credits keep their sum, and as they stay bounded, the weights of
    client i are p_i of all weights in every run, not on the average only. m is 1 but for clients
    that were kept waiting. A client that is always at work is next as soon as it is free, and pays
    what it has earned meanwhile: it has a place of its own.

    Parameters
    ----------
    q : array of N, > 0, sums to 1
        f_i, the share of completions.
    weights : array of N
        p_i.
    at_once : int from 1 to N
        C.
    times : array of N, seconds, optional
        t_i. They tell who is always at work, f_i t_i = Σ f_j t_j / C; nobody can do more.
    solution : Solution, optional
        How q was found, where a solver found it.

    Examples
    --------
    >>> design = InTurn([0.75, 0.25], weights=[0.5, 0.5], at_once=1)
    >>> turn = design.next(np.array([True, True]), np.array([0.5, 0.5]), np.random.default_rng(0))
    >>> turn.client, round(turn.weight, 6), turn.credits
    (0, 0.666667, array([0.25, 0.75]))
    """

    always: NDArray[np.bool_]

    def __init__(
        self,
        q: ArrayLike,
        weights: ArrayLike,
        at_once: int,
        *,
        times: ArrayLike | None = None,
        solution: Solution | None = None,
    ) -> None:
        super().__init__(q, weights, at_once, solution=solution)
        busy = np.zeros(self.n)
        if times is not None:
            busy = self.q * one_per_client("times", positive_column("times", times), self.n)
            busy *= self.at_once / busy.sum()
            refuse_first(
                "q", self.q, busy > 1 + ALWAYS, "be at most Σ q_j t_j / (C t_i)",
                "nobody does two tasks at once: see bounded_shares",
            )  # fmt: skip
        always = busy >= 1 - ALWAYS
        always.setflags(write=False)
        object.__setattr__(self, "always", always)

    def start(self, rng: np.random.Generator) -> FloatArray:
        """Return 1/N, 2/N, …, 1 in random order, so that all runs begin differently.

        Their sum stays; where all are always at work, this one makes them pay 1 on the average.
        """
        return np.asarray((rng.permutation(self.n) + 1) / self.n, dtype=np.float64)

    def next(
        self,
        free: NDArray[np.bool_],
        credit: FloatArray,
        rng: np.random.Generator,  # noqa: ARG002
    ) -> Turn:
        """Return whose turn it is; `rng` is not used."""
        clients = _those_free(free, self.n)
        always = clients[self.always[clients]]
        if always.size:
            client = int(always[np.argmax(credit[always])])
            paid = float(np.clip(credit[client], LEAST_PAID, MOST_PAID))
        else:
            client = int(clients[np.argmin((DUE - credit[clients]) / self.q[clients])])
            paid = float(np.clip(credit[client] - DUE, DUE, MOST_PAID))
        earning = self.q * (credit < MOST_CREDIT)
        credit = credit + earning * (paid / max(float(earning.sum()), RAREST))
        credit[client] -= paid
        return Turn(client, paid * float(self.weights[client] / self.q[client]), credit)


@dataclass(frozen=True, eq=False, init=False)
class AmongFree(_Shares):
    """Draw at random, in proportion to q, among those who are free; weight by p_i / q_i.

    This is how others draw. Who is busy cannot be drawn, so that slow clients come less often than
    q says, and weigh less than p: see `InTurn`, which has no such bias.
    """

    def start(self, rng: np.random.Generator) -> FloatArray:  # noqa: ARG002
        """Return credits that nobody looks at."""
        return np.zeros(self.n)

    def next(self, free: NDArray[np.bool_], credit: FloatArray, rng: np.random.Generator) -> Turn:
        """Return who is drawn; the credits stay as they are."""
        clients = _those_free(free, self.n)
        chances = np.cumsum(self.q[clients])
        drawn = int(np.searchsorted(chances, rng.random() * chances[-1], side="right"))
        client = int(clients[drawn])
        return Turn(client, float(self.weights[client] / self.q[client]), credit)


def _those_free(free: NDArray[np.bool_], n: int) -> NDArray[np.int64]:
    """Return the numbers of those who are free."""
    if free.shape != (n,):
        raise InputError(
            f"free must be one truth value per client, got shape {free.shape} for {n} clients; "
            "give an array of True and False"
        )
    clients = np.flatnonzero(free)
    if clients.size == 0:
        raise InputError("free must hold somebody, got nobody; wait for a completion")
    return clients
