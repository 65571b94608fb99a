"""Asynchronous rivals: which client is next, by turns or by queues."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize

from fedpace.checks import FloatArray, IntArray, positive_count
from fedpace.errors import InputError
from fedpace.profile import Profile
from fedpace.samplers.rivals.rule import count_clients, extend, known_times, update_times
from fedpace.sampling.dispatch import BaseDispatch, Turn
from fedpace.servers.asynchronous import Compass, slot_shares
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


class SlotState(TypedDict):
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

    def init(self, n: int) -> SlotState:
        """Return the state before the first task."""
        return SlotState(
            done=np.zeros(n), latest=np.full(n, -1.0), seconds=np.full(n, np.nan), arrivals=0
        )

    def design(self, state: SlotState, context: SamplerContext) -> Plan:
        """Return whose turn it is."""
        order = (extend(state["done"], context.n, 0.0) + 1) / context.weights
        return self._plan(state, context, order, np.arange(context.n) % self.k)

    def _plan(
        self, state: SlotState, context: SamplerContext, order: FloatArray, groups: IntArray
    ) -> Plan:
        everyone = np.ones(context.n, dtype=np.bool_)
        present = everyone if context.present is None else context.present
        weights = self.turn_weights(state, context)
        design = Ordered(order, groups, present, context.weights, weights, self.k)
        return Plan(design, buffer=self.buffer)

    def turn_weights(self, state: SlotState, context: SamplerContext) -> FloatArray:  # noqa: ARG002
        """Return the weights of updates, which only some servers use."""
        return context.weights

    def observe(self, state: SlotState, row: Row) -> SlotState:
        """Count the completed tasks."""
        newest = count_clients(row)
        done, latest = extend(state["done"], newest, 0.0), extend(state["latest"], newest, -1.0)
        came = np.concatenate([row.clients, row.missing])
        np.add.at(done, came, 1)
        latest[came] = state["arrivals"] + np.arange(came.size)
        return SlotState(
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

    def design(self, state: SlotState, context: SamplerContext) -> Plan:
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

    def turn_weights(self, state: SlotState, context: SamplerContext) -> FloatArray:
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


class CompassState(TypedDict):
    """One entry per client, for FedCompass.

    Completed tasks, seconds per step, and the steps of its latest task; when its group is expected
    and at the latest applied (NaN: in no group); whether it is at work, its update waits for its
    group, or it came too late and waits for the next group that is applied.
    """

    done: FloatArray
    speed: FloatArray
    steps: FloatArray
    due: FloatArray
    limit: FloatArray
    working: NDArray[np.bool_]
    waiting: NDArray[np.bool_]
    late: NDArray[np.bool_]


# Of a step: quotients of times that are steps exactly may be below the integer by rounding.
ROUNDING = 1e-6


# Q_max where the number of local steps of a task is unknown.
MOST_STEPS = 100


@dataclass(frozen=True, eq=False)
class Grouped(BaseDispatch):
    """The fastest client that is due in a free slot; none while the updates of all slots wait.

    Parameters
    ----------
    state : CompassState
        Who waits, and where the next task is noted.
    tasks : array of (3, N)
        Steps, due and limit of the task that each client would begin now.
    present : array of N truth values
        Who is there.
    weights : array of N
        p_i.
    at_once : int
        C.
    """

    state: CompassState
    tasks: FloatArray
    present: NDArray[np.bool_]
    weights: FloatArray
    at_once: int

    @property
    def q(self) -> FloatArray:
        """p_i: shares of completions are unknown for a rule."""
        return self.weights

    def next(
        self,
        free: NDArray[np.bool_],
        credit: FloatArray,
        rng: np.random.Generator,  # noqa: ARG002
    ) -> Turn | None:
        """Return the next client, if any, and note its task; chance and credits are not used."""
        state, at_work = self.state, self.present & ~free
        slots = np.arange(self.n) % self.at_once
        clients = np.flatnonzero(free & ~np.isin(slots, slots[at_work | state["waiting"]]))
        if not clients.size and not at_work.any():
            clients = np.flatnonzero(free)  # after an interruption
        if not clients.size:
            return None
        turns = (state["done"][clients] + 1) / self.weights[clients]
        clients = clients[np.argsort(turns, kind="stable")]
        clients = clients[np.unique(slots[clients], return_index=True)[1]]
        speed = state["speed"][clients]
        client = int(clients[np.argmin(np.where(np.isnan(speed), np.inf, speed))])
        state["working"][client] = True
        for name, values in zip(("steps", "due", "limit"), self.tasks, strict=True):
            state[name][client] = values[client]  # type: ignore[literal-required]
        return Turn(client, float(self.weights[client]), credit)

    def seconds_per_completion(self, times: ArrayLike) -> float:  # noqa: ARG002
        """Return NaN: unknown for a rule."""
        return math.nan

    def variance_term(self, profile: Profile) -> float:  # noqa: ARG002
        """Return NaN: the convergence bound is for unbiased draws from probabilities."""
        return math.nan


@dataclass(frozen=True)
class FedCompass(BaseSampler):
    """Give clients as many local steps as let a group of them answer at the same time.

    A client's first task has Q_max steps, and its update is applied alone. Then, at time τ, with s
    its seconds per step, it joins the group in which it can do most steps,
    q = ⌊(T_a − τ) / s⌋ with Q_min ≤ q ≤ Q_max; or it makes a group of its own, with T_a = τ + q s
    and T_max = τ + λ q s, and the most steps up to Q_max that let it answer when the fastest client
    of another group will have done Q_max more. Its update waits until all of the group have
    answered, or until T_max; an update that comes later is applied with the next group.
    w ← w + Σ α (1 + τ_i)^−a P_i Δ_i. **Biased** to clients with more steps.

    Source: FedCompass, ICLR 2024 (arXiv 2309.14675), and its code in APPFL, whose example's values
    are the defaults. Differs from it: p_i stands for 1/N; T_max is looked at when an update
    arrives; with C < N, client i belongs to slot i mod C, whose clients take turns.

    Parameters
    ----------
    k : int ≥ 1
        C.
    fewest, most : int ≥ 1, optional
        Q_min and Q_max; by default a fifth of Q_max, and the local steps of the run.
    slack : float ≥ 1
        λ.
    newest : float in (0, 1]
        Weight of the latest measurement of s.
    mixing, exponent : float
        α and a.
    """

    k: int
    fewest: int | None = None
    most: int | None = None
    slack: float = 1.5
    newest: float = 0.9
    mixing: float = 0.9
    exponent: float = 0.5
    server: Any = field(init=False, repr=False)
    biased = True

    def __post_init__(self) -> None:
        positive_count("k", self.k)
        for name, value in (("fewest", self.fewest), ("most", self.most)):
            if value is not None:
                positive_count(name, value)
        if not 1 <= self.slack < np.inf:
            raise InputError(f"slack must be at least 1, got {self.slack}; give 1.5")
        for name, part in (("newest", self.newest), ("mixing", self.mixing)):
            if not 0 < part <= 1:
                raise InputError(f"{name} must be above 0 and at most 1, got {part}; give 0.9")
        object.__setattr__(self, "server", Compass(self.k, self.mixing, self.exponent))

    def init(self, n: int) -> CompassState:
        """Return the state before the first task."""
        unknown, no = np.full(n, np.nan), np.zeros(n, dtype=np.bool_)
        return CompassState(
            done=np.zeros(n), speed=unknown, steps=unknown.copy(), due=unknown.copy(),
            limit=unknown.copy(), working=no, waiting=no.copy(), late=no.copy(),
        )  # fmt: skip

    def design(self, state: CompassState, context: SamplerContext) -> Plan:
        """Return the tasks that clients would have now, and who is next."""
        self._extend(state, context.n)
        present = np.ones(context.n, dtype=np.bool_) if context.present is None else context.present
        tasks = self._tasks(state, context)
        design = Grouped(state, tasks, present, context.weights, self.k)
        return Plan(design, local_steps=tasks[0].astype(np.int64))

    def _extend(self, state: CompassState, n: int) -> None:
        if n > state["done"].size:
            more = self.init(n - state["done"].size)
            for name in CompassState.__annotations__:
                state[name] = np.append(state[name], more[name])  # type: ignore[literal-required]

    def _tasks(self, state: CompassState, context: SamplerContext) -> NDArray[np.float64]:
        """Return steps, due and limit of a task that each client would begin now."""
        most = self.most or context.local_steps or MOST_STEPS
        fewest = min(self.fewest or math.ceil(most / 5), most)
        now, speed = context.seconds, state["speed"]
        groups, first = np.unique(state["due"], return_index=True)
        groups = groups[np.isfinite(groups)]
        limits = state["limit"][first[: groups.size]]
        fastest = np.array([speed[state["due"] == due].min() for due in groups])
        steps = np.full(speed.size, float(most))
        due, limit = now + steps * speed, now + self.slack * steps * speed
        if groups.size:
            with np.errstate(invalid="ignore"):
                join = np.floor((groups - now) / speed[:, None] + ROUNDING)
                make = np.floor((limits + fastest * most - now) / speed[:, None] + ROUNDING)
                joins = (fewest <= join) & (join <= most)
                makes = (now < limits) & (make <= most)
            own = np.where(makes, make, -np.inf).max(axis=1)
            steps = np.where(np.isfinite(own), np.maximum(own, fewest), steps)
            chosen = np.where(joins, join, 0).argmax(axis=1)
            member, every = joins.any(axis=1), np.arange(speed.size)
            steps = np.where(member, join[every, chosen], steps)
            due = np.where(member, groups[chosen], now + steps * speed)
            limit = np.where(member, limits[chosen], now + self.slack * steps * speed)
        return np.array([steps, due, limit])

    def steps_now(
        self,
        state: CompassState,
        passed: float,  # noqa: ARG002
        at_work: IntArray,
        context: SamplerContext,
    ) -> IntArray:
        """Return the clients whose updates wait."""
        now, due, waiting = context.seconds, state["due"], state["waiting"]
        came = state["working"].copy()
        came[at_work] = False
        state["working"] &= ~came
        tardy = came & (now > state["limit"] + ROUNDING)
        alone = came & np.isnan(due)
        waiting |= came & ~alone & ~tardy
        state["late"] |= tardy
        due[tardy] = np.nan
        expected = due[state["working"] & (state["limit"] >= now)]
        complete = waiting & ~np.isin(due, expected)
        if alone.any() or complete.any():
            waiting &= ~complete
            due[complete] = np.nan
            state["late"][:] = False
        return np.flatnonzero(waiting | state["late"])

    def observe(self, state: CompassState, row: Row) -> CompassState:
        """Count the completed tasks, and learn seconds per step."""
        self._extend(state, count_clients(row))
        np.add.at(state["done"], np.concatenate([row.clients, row.missing]), 1)
        steps = row.local_steps if row.local_steps.size else state["steps"][row.clients]
        speed, before = row.client_seconds / steps, state["speed"][row.clients]
        mixed = (1 - self.newest) * before + self.newest * speed
        state["speed"][row.clients] = np.where(np.isnan(before), speed, mixed)
        return state
