"""Asynchronous turns: which client gets the next task while C clients are always at work."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpace.adapt import adapt, default_property, defines, refuse_misspelt
from fedpace.checks import (
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
from fedpace.sampling.design import BaseDesign, as_design
from fedpace.sampling.solvers.shares import bounded_shares, solve_shares
from fedpace.sampling.solvers.solution import Solution
from fedpace.sampling.turns import FairTurns, Turns

# A client that is at work for all but this part of the time is always at work.
ALWAYS = 1e-6


class Turn(NamedTuple):
    """The next client, the weight of its update per completion, and the credits afterwards."""

    client: int
    weight: float
    credits: FloatArray


class Dispatch(Protocol):
    """What an object must have to choose clients asynchronously; see `BaseDispatch`."""

    @property
    def q(self) -> FloatArray: ...  # noqa: D102

    @property
    def n(self) -> int: ...  # noqa: D102

    @property
    def at_once(self) -> int: ...  # noqa: D102

    def start(self, rng: np.random.Generator) -> FloatArray: ...  # noqa: D102

    def next(  # noqa: D102
        self, free: NDArray[np.bool_], credit: FloatArray, rng: np.random.Generator
    ) -> Turn | None: ...

    def seconds_per_completion(self, times: ArrayLike) -> float: ...  # noqa: D102

    def variance_term(self, profile: Profile) -> float: ...  # noqa: D102

    @property
    def largest_weight(self) -> float: ...  # noqa: D102


class BaseDispatch:
    """Base class of asynchronous designs: choose one client after another.

    In the long run client i must have p_i of all weight. Define `q`, `n`, `at_once` and `next`;
    all else has a default. Objects that have these without subclassing are accepted, too: see
    `as_dispatch`.

    Attributes
    ----------
    solution : Solution or None
        The result of the solver that found the shares.
    """

    solution: Solution | None = None

    @default_property
    def q(self) -> FloatArray:
        """The share of completions of each client."""
        raise NotImplementedError(_undefined(self, "q"))

    @default_property
    def n(self) -> int:
        """The number of clients."""
        return self.q.size

    @default_property
    def at_once(self) -> int:
        """C, the number of clients at work at any time."""
        raise NotImplementedError(_undefined(self, "at_once"))

    @default_property
    def weights(self) -> FloatArray:
        """p_i; by default q, so that every completion has the same weight."""
        return self.q

    def start(self, rng: np.random.Generator) -> FloatArray:  # noqa: ARG002
        """Return the initial credits; zeros for designs that do not use them."""
        return np.zeros(self.n)

    def next(
        self, free: NDArray[np.bool_], credit: FloatArray, rng: np.random.Generator
    ) -> Turn | None:
        """Choose one of the free clients; `credit` must not be changed in place.

        None: no task now, but after the next arrival; only while clients are at work.
        """
        raise NotImplementedError(_undefined(self, "next"))

    def turns(self, credit: FloatArray, busy: Iterable[int] = ()) -> Turns:
        """Return a queue of turns that begins with these credits; by default it calls `next`."""
        return Turns(self, credit, busy)

    def seconds_per_completion(self, times: ArrayLike) -> float:
        """Return Σ f_i t_i / C."""
        t = one_per_client("times", positive_column("times", times), self.n)
        return float(self.q @ t) / self.at_once

    def variance_term(self, profile: Profile) -> float:
        """Return S(f)."""
        return variance_term(self.q, profile.weights, profile.grad_norms)

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return f_i, under the name q, and the weight p_i / f_i of a completion."""
        return {"q": self.q, "aggregation_weight": self.weights / self.q}

    @property
    def largest_weight(self) -> float:
        """The largest p_i / f_i; after waiting, a turn pays up to twice that."""
        return float((self.weights / self.q).max())


def as_dispatch(value: object, *, argument: str = "design") -> BaseDispatch:
    """Return an asynchronous design, or an object with its methods, as a `BaseDispatch`."""
    refuse_misspelt(value, BaseDispatch, argument=argument)
    if not defines(value, BaseDispatch, "next"):
        got = f"{type(value).__name__}; define it, choose another scheme, or mode synchronous"
        raise InputError(f"{argument} must have `next` in asynchronous training, got {got}")
    return adapt(value, BaseDispatch, argument=argument, required=("q", "at_once"))


def as_any_design(value: object) -> BaseDesign | BaseDispatch:
    """Return a synchronous or asynchronous design, or an object with the methods of either."""
    return as_dispatch(value) if defines(value, BaseDispatch, "next") else as_design(value)


def _undefined(design: object, name: str) -> str:
    return f"{type(design).__name__} does not define {name}; see BaseDispatch"


@dataclass(frozen=True, eq=False)
class _Shares(BaseDispatch):
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


@dataclass(frozen=True, eq=False, init=False)
class InTurn(_Shares):
    """Give every client its turns: credit grows with f_i, and the first to reach 1 is next.

    A turn that pays m takes m from the client's credit and adds m f_j to each client's, and its
    update weighs m p_i / f_i. So the sum of the credits is constant, and as they stay bounded,
    client i has p_i of all weight in every run, not only on average. m is 1, with two exceptions.
    A client that had to wait pays up to 2. A client that is always at work gets a task as soon as
    it is free and pays its credit; one that answers sooner than its share assumes pays nearly 0.

    Parameters
    ----------
    q : array of N, > 0, sums to 1
        f_i, the share of completions.
    weights : array of N
        p_i.
    at_once : int from 1 to N
        C; with C = N all clients are always at work.
    times : array of N, seconds, optional
        t_i. They determine who is always at work, f_i t_i = Σ f_j t_j / C, the most possible.
    solution : Solution, optional
        The result of the solver that found q.

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
        busy = np.full(self.n, float(self.at_once == self.n))
        if times is not None:
            busy = self.q * one_per_client("times", positive_column("times", times), self.n)
            busy *= self.at_once / busy.sum()
            refuse_first(
                "q", self.q, busy > 1 + ALWAYS, "be at most Σ q_j t_j / (C t_i)",
                "a client does one task at a time: see bounded_shares",
            )  # fmt: skip
        always = busy >= 1 - ALWAYS
        always.setflags(write=False)
        object.__setattr__(self, "always", always)

    def start(self, rng: np.random.Generator) -> FloatArray:
        """Return 1/N, 2/N, …, 1 in random order, so that every run begins differently.

        Their sum is constant; if all clients are always at work, it makes turns pay 1 on average.
        """
        return np.asarray((rng.permutation(self.n) + 1) / self.n, dtype=np.float64)

    def next(
        self,
        free: NDArray[np.bool_],
        credit: FloatArray,
        rng: np.random.Generator,
    ) -> Turn:
        """Return the next client; for many turns in a row use `turns`."""
        _free_clients(free, self.n)
        turns = self.turns(credit)
        client, weight = turns.next(free, rng)  # type: ignore[misc]
        return Turn(client, weight, turns.credits)

    def turns(self, credit: FloatArray, busy: Iterable[int] = ()) -> Turns:
        """Return a queue of turns; one turn costs microseconds, whatever N is."""
        return FairTurns(self, credit, busy)


# Schemes that have asynchronous shares.
WITH_SHARES = ("uniform", "weighted", "statistical", "optimal-mean")


def turns_of(
    name: str, profile: Profile, at_once: int, *, max_weight: float | None = None
) -> InTurn:
    """Return a scheme's shares of completions, for C clients at work.

    uniform and weighted give equal shares, and p_i; statistical p_i G_i; optimal-mean solves P3,
    with a cap on p_i / f_i. A device does one task at a time, so that its time limits its share.

    >>> turns_of("weighted", Profile([0.5, 0.5], [1.0, 3.0], [1.0, 1.0]), at_once=2).q
    array([0.75, 0.25])
    """
    p = profile.weights
    if name == "optimal-mean":
        fleet = (p, profile.times, profile.grad_norms, profile.beta_over_alpha)
        found = solve_shares(*fleet, at_once, max_weight)
        return InTurn(found.q, p, at_once, times=profile.times, solution=found)
    if name not in WITH_SHARES:
        known = ", ".join(WITH_SHARES)
        raise InputError(f"scheme must have asynchronous shares, got '{name}'; choose of {known}")
    wanted = {"uniform": np.ones(profile.n), "weighted": p, "statistical": profile.importance}
    shares = bounded_shares(wanted[name], profile.times, at_once)
    return InTurn(shares, p, at_once, times=profile.times)


@dataclass(frozen=True, eq=False, init=False)
class AmongFree(_Shares):
    """Draw at random, in proportion to q, among the free clients; weight by p_i / q_i.

    FedBuff and FedAsync draw like this. A busy client cannot be drawn, so slow clients complete
    fewer tasks than q says and weigh less than p; `InTurn` has no such bias.
    """

    def next(self, free: NDArray[np.bool_], credit: FloatArray, rng: np.random.Generator) -> Turn:
        """Return the client drawn; credits are not used."""
        clients = _free_clients(free, self.n)
        chances = np.cumsum(self.q[clients])
        drawn = int(np.searchsorted(chances, rng.random() * chances[-1], side="right"))
        client = int(clients[drawn])
        return Turn(client, float(self.weights[client] / self.q[client]), credit)


def _free_clients(free: NDArray[np.bool_], n: int) -> NDArray[np.int64]:
    if free.shape != (n,):
        raise InputError(
            f"free must be one truth value per client, got shape {free.shape} for {n} clients; "
            "give an array of True and False"
        )
    clients = np.flatnonzero(free)
    if clients.size == 0:
        raise InputError("free must have at least one client, got none; wait for a completion")
    return clients
