"""Generalized AsyncSGD: tasks are routed by probabilities and queue at busy clients."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypedDict

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from fedpace.checks import FloatArray, positive_count
from fedpace.errors import InputError
from fedpace.samplers.rivals.rule import count_clients, extend, known_times, update_times
from fedpace.sampling.dispatch import BaseDispatch, Turn
from fedpace.training.history import Row
from fedpace.training.sampler import BaseSampler, Plan, SamplerContext

# Where times must be learned, q is solved again after this many arrivals per client at work.
REFRESH = 10


class Queues(NamedTuple):
    """A closed network of queues: steps per second, and mean numbers of tasks at each client."""

    rate: float
    tasks: FloatArray


def queues(q: FloatArray, times: FloatArray, m: int) -> Queues:
    """Return what m ≥ 1 tasks do that are routed by q and wait where the client is busy.

    Times are exponential with means t_i. With a_i = q_i t_i and Z_j the sum of Π a_i^{n_i} over
    all placements of j tasks, steps come at the rate Z_{m−1} / Z_m, and
    E n_i = Σ_k a_i^k Z_{m−k} / Z_m. Z_j = Σ_k P_k Z_{j−k} / j with the power sums P_k = Σ a_i^k.

    >>> found = queues(np.array([0.5, 0.5]), np.array([1.0, 3.0]), 2)
    >>> round(found.rate, 3), found.tasks.round(3)
    (0.615, array([0.385, 1.615]))
    """
    load = q * times
    unit = float(load.max())  # powers stay at most 1
    powers = (load / unit) ** np.arange(1, m + 1)[:, None]
    sums, z = powers.sum(axis=1), [1.0]
    for j in range(1, m + 1):
        z.append(float(sums[:j] @ z[::-1][:j]) / j)
    return Queues(z[-2] / z[-1] / unit, np.asarray(z[-2::-1]) @ powers / z[-1])


def solve_routing(p: FloatArray, times: FloatArray, m: int) -> FloatArray:
    """Return the q that minimises Σ p_i²/q_i over the steps per second, by its gradient in log q.

    The derivative of log rate by log q_i is E n_i with m − 1 tasks less E n_i with m.
    """

    def objective(logs: FloatArray) -> tuple[float, FloatArray]:
        q = np.exp(logs)
        found, parts = queues(q, times, m), p**2 / q
        fewer = queues(q, times, m - 1).tasks if m > 1 else np.zeros(p.size)
        value = float(np.log(parts.sum()) - np.log(found.rate))
        return value, -parts / parts.sum() - fewer + found.tasks

    q = np.exp(minimize(objective, np.log(p), jac=True, method="L-BFGS-B").x)
    return np.asarray(q / q.sum())


@dataclass(frozen=True, eq=False)
class Queued(BaseDispatch):
    """A free client with a task in its queue; no client while all tasks are at busy clients.

    Parameters
    ----------
    q, weights : arrays of N
        Probabilities of routing, and p_i.
    tasks : array of N
        Tasks at each client, those under way included.
    present : array of N truth values
        Who is there. Tasks of clients that are away go to others, by q.
    at_once : int
        C.
    """

    q: FloatArray
    weights: FloatArray
    tasks: FloatArray
    present: NDArray[np.bool_]
    at_once: int

    def next(
        self, free: NDArray[np.bool_], credit: FloatArray, rng: np.random.Generator
    ) -> Turn | None:
        """Return the next client, if any."""
        clients = np.flatnonzero(free & (self.tasks > 0))
        if not clients.size:
            if (self.present & ~free).any() and not self.tasks[~self.present].any():
                return None
            clients = np.flatnonzero(free)
        client = int(rng.choice(clients, p=self.q[clients] / self.q[clients].sum()))
        return Turn(client, float(self.weights[client] / self.q[client]), credit)


class RoutedTasks(TypedDict):
    """Tasks at each client and how many were routed; times as measured, and as last solved for."""

    tasks: FloatArray
    routed: int
    arrivals: int
    seconds: FloatArray
    basis: FloatArray


@dataclass(frozen=True)
class GeneralizedAsyncSgd(BaseSampler):
    """C tasks circulate: each arrival steps, and a new task goes to a client drawn by q.

    w ← w + s (p_i / q_i) Δ_i, with s = `scale`; a task for a busy client waits in its queue, so
    that client i has exactly q_i of all completions. q minimises the variance term Σ p_i²/q_i per
    unit of time, with the throughput of the closed network of queues: see `solve_routing`.

    Source: Generalized AsyncSGD, AISTATS 2024 (arXiv 2405.00017), with routing per unit of time as
    in arXiv 2502.08206 and 2603.26231. Differs from them: p_i stands for 1/N; the term of their
    bounds for delays is left out, as its constants are not known to a server; a task takes the
    model of the moment when its client begins, not when it was routed, so that updates are less
    old.

    Parameters
    ----------
    k : int ≥ 1
        C.
    scale : float > 0
        A factor of every step.
    optimal : bool
        False: q = p.
    """

    k: int
    scale: float = 1.0
    optimal: bool = True
    _solved: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        positive_count("k", self.k)
        if not 0 < self.scale < np.inf:
            raise InputError(f"scale must be above 0, got {self.scale}; give 1")

    def init(self, n: int) -> RoutedTasks:
        """Return the state before the first task."""
        seconds = np.full(n, np.nan)
        return RoutedTasks(
            tasks=np.zeros(n), routed=0, arrivals=0, seconds=seconds, basis=seconds.copy()
        )

    def design(self, state: RoutedTasks, context: SamplerContext) -> Plan:
        """Route as many tasks as have come back, and return who may begin."""
        n = context.n
        q = self._q(known_times(state["basis"], context), context.weights)
        everyone = np.ones(n, dtype=np.bool_)
        present = everyone if context.present is None else context.present
        tasks = state["tasks"] = extend(state["tasks"], n, 0.0)
        while tasks.sum() < self.k:
            rng = np.random.default_rng([int(context.chance * 2**53), state["routed"]])
            among = np.where(present, q, 0.0)
            tasks[rng.choice(n, p=among / among.sum())] += 1
            state["routed"] += 1
        return Plan(
            Queued(q, context.weights * self.scale, tasks.copy(), present, self.k), buffer=1
        )

    def _q(self, seconds: FloatArray, weights: FloatArray) -> FloatArray:
        """Return the latest solution, or solve; a client without a time counts with the mean."""
        key = (seconds.tobytes(), weights.tobytes())
        if self._solved.get("key") != key:
            known = np.isfinite(seconds)
            usual = np.where(known, seconds, seconds[known].mean() if known.any() else 1.0)
            q = solve_routing(weights, usual, self.k) if self.optimal else weights
            self._solved.update(key=key, q=q)
        return self._solved["q"]  # type: ignore[no-any-return]

    def observe(self, state: RoutedTasks, row: Row) -> RoutedTasks:
        """Take completed tasks from their queues; learn times."""
        came = np.concatenate([row.clients, row.missing])
        newest = count_clients(row)
        tasks, seconds = extend(state["tasks"], newest, 0.0), update_times(state["seconds"], row)
        np.add.at(tasks, came, -1)
        arrivals = state["arrivals"] + came.size
        due = arrivals // (REFRESH * self.k) > state["arrivals"] // (REFRESH * self.k)
        return RoutedTasks(
            tasks=np.maximum(tasks, 0.0),
            routed=state["routed"],
            arrivals=arrivals,
            seconds=seconds,
            basis=seconds.copy() if due else state["basis"],
        )
