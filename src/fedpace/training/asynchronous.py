"""Asynchronous training: send tasks, collect replies as they arrive, step."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedpace.checks import FloatArray, positive_count
from fedpace.errors import InputError
from fedpace.sampling.design import Draw, WithReplacement
from fedpace.sampling.dispatch import BaseDispatch, InTurn, as_dispatch
from fedpace.sampling.turns import Turns
from fedpace.times.round_times import Presence
from fedpace.training.backend import (
    NO_CLIENTS,
    NO_VALUES,
    BaseBackend,
    Evaluation,
    Reply,
    Task,
    join_replies,
    reply_costs,
)
from fedpace.training.checkpoint import State
from fedpace.training.history import Row, SustainedLoss
from fedpace.training.running_mean import (
    FAR,
    FARTHER,
    RunningMean,
    add_model,
    begin_mean,
    kept_model,
    restart_mean,
)
from fedpace.training.sampler import BaseSampler, Plan, SamplerContext
from fedpace.training.server import apply_replies, as_server, check_asynchronous, rate_or_one
from fedpace.training.training import Training
from fedpace.training.updates import Started

# B where the server does not step as far as planned, in units of C.
PART_AT_ONCE = 0.25


class _Sent(NamedTuple):
    """A task under way: its client, model, rate, weight and start."""

    client: int
    version: int
    model: FloatArray
    rate: float
    weight: float
    began: float


class _Finished(NamedTuple):
    """A finished task: its reply, or None where none counts."""

    sent: _Sent
    reply: Reply | None
    waited: float = 0.0
    refused: bool = False


class AsynchronousTraining(Training):
    """Train asynchronously: `at_once` clients are always at work.

    When a client answers, its update goes into the buffer and the next client starts from the
    newest model. When the buffer holds `buffer` updates the server takes a step,
    w ← w + Σ weights_i Δ_i / buffer: each update as it was made, at the learning rate of its task,
    however old; only `Memory` counts all updates of a step with one rate. A row is a step, and the
    learning rate falls by steps. A sampler that implements `steps_now` decides itself when to step.
    A sampler may also plan how far steps go, whatever the learning rate.

    The running mean of the models over about 2C updates is evaluated and handed out, where it is
    better than the latest; training goes on from the latest.

    Call `advance`, or submit `tasks()`, collect, and pass the replies to `take`.

    Parameters
    ----------
    backend, sampler, **settings
        As in `Training`. The sampler's designs must have `next`.
    at_once : int ≥ 1
        C, clients at work at the same time.
    buffer : int ≥ 1, optional
        B, updates in a step; by default as the sampler plans, else `at_once`.
    updates : int ≥ 0, optional
        Updates after which the run ends, besides the limits of `stop`.
    oldest : int ≥ 0, optional
        Refuse updates that are older than this many steps; by default the server's `oldest`.
    """

    def __init__(
        self,
        backend: BaseBackend,
        sampler: BaseSampler,
        *,
        at_once: int,
        buffer: int | None = None,
        updates: int | None = None,
        oldest: int | None = None,
        **settings: Any,
    ) -> None:
        if (server := settings.get("server")) is not None:
            check_asynchronous(as_server(server))
        self._at_once = positive_count("at_once", at_once)
        self._given = None if buffer is None else positive_count("buffer", buffer)
        self._left = updates
        self._at_work: dict[int, _Sent] = {}
        self._late: dict[int, _Sent] = {}
        self._held: dict[int, _Sent] = {}  # answered, but not judged yet
        self._arrived: list[_Finished] = []
        self._waited = 0.0
        self._here: NDArray[np.bool_] | None = None  # those present at the latest task
        self._factor = 1.0
        self._plan: Plan | None = None
        self._expected: tuple[object, float] = (None, math.nan)
        self._made: tuple[WithReplacement, InTurn] | None = None
        self._turns: tuple[object, Turns] | None = None  # of the design in use
        super().__init__(backend, sampler, **settings)
        self._oldest = self.server.oldest if oldest is None else oldest
        self._clock = self.state.seconds

    def advance(self) -> list[Row]:
        """Send tasks, wait for the next reply, and step if due; return the steps, mostly none."""
        for task in self.tasks():
            self.backend.submit(task)
        rows = self.take(self.backend.collect(1))
        if self.ended:
            self.backend.drop()  # tasks still under way
        return rows

    def tasks(self) -> list[Task]:
        """Return the tasks to send now, of one client each, while fewer than C are at work."""
        room = self._at_once - len(self._at_work)
        presence = self._presence() if room > 0 else None
        tasks: list[Task] = []
        here: NDArray[np.bool_] | None = None
        while presence is not None and len(tasks) < room:
            context = self._context()._replace(present=presence.clients, seconds=self._clock)
            here = self._present(context) if not tasks else here
            task = self._next(context, here)
            if task is None:
                break
            tasks.append(task)
        return tasks

    def take(self, reply: Reply) -> list[Row]:
        """Put replies into the buffer and step whenever it is full; return the rows."""
        self._clock += reply.lasted
        for client in reply.held.tolist():
            sent = self._take_from(client, self._at_work, self._late)
            if sent is not None:
                self._held[client] = sent
        arrived = [self._match(reply, place) for place in range(reply.clients.size)]
        arrived += [self._give_up(client, reply) for client in reply.missing.tolist()]
        rows = []
        self._arrived += [each for each in arrived if each is not None]
        with np.errstate(over="ignore", invalid="ignore"):
            while not self.ended and (due := self._updates_due()):
                rows.append(self._step(due))
        return rows

    def _updates_due(self) -> list[_Finished]:
        """Take the updates of a step that is due now out of the buffer; none if it is not due."""
        if not self._arrived:
            return []
        context = self._context()._replace(seconds=self._clock)
        at_work = np.array([*self._at_work], dtype=np.int64)
        passed = self._clock - self.state.seconds
        ready = self.sampler.steps_now(self.state.sampler, passed, at_work, context)
        arrived, count = self._arrived, self._buffer
        if ready is None:
            ready = len(arrived) >= count
        elif not isinstance(ready, np.ndarray):
            count = len(arrived)
        if isinstance(ready, np.ndarray):
            self._arrived = [each for each in arrived if each.sent.client in ready]
            return [each for each in arrived if each.sent.client not in ready]
        self._arrived = arrived[count:] if ready else arrived
        return arrived[:count] if ready else []

    @property
    def _buffer(self) -> int:
        """B, by the latest plan."""
        plan = self._plan
        wanted = None if plan is None else plan.buffer
        if plan is not None and plan.step is not None and not self.server.scales:
            wanted = max(round(PART_AT_ONCE * self._at_once), 1)
        return self._given or wanted or self._at_once

    def _presence(self) -> Presence | None:
        """Return the clients present; None while there are none but others are at work."""
        presence = self.backend.present(self.state.round, self._clock)
        if presence.waited:
            if self._at_work:
                return None
            self._clock += presence.waited
            self._waited += presence.waited
        return presence

    def _next(self, context: SamplerContext, here: NDArray[np.bool_] | None) -> Task | None:
        """Return the task of the client whose turn it is; None where no client is free."""
        self._plan = self.sampler.plan(self.state.sampler, context)
        design = self._dispatch(self._plan)
        present = context.present
        if present is not None and design.n < present.size:
            present = present[: design.n]
        found = self._queue(design).next(present, self._rng)
        if found is None:
            if not self._at_work:
                if present is None or present.any():
                    raise InputError(
                        f"design must have a next client while none is at work, got None of "
                        f"{type(design).__name__}; return a turn"
                    )
                raise InputError(
                    f"sampler must return a design for those present, got one for the first "
                    f"{design.n} of {context.n} clients, none of them present; solve again when "
                    "others join"
                )
            return None
        state, rate = self.state, self._schedule(self.state.round)
        client, weight = found
        if here is not None:
            if here is not self._here:
                self._factor = factor_of(design, here, context.weights)
            weight *= self._factor
        self._here = here
        model = self.backend.received(state.parameters)
        sent = _Sent(client, state.round, model, rate, weight, self._clock)
        self._at_work[client] = sent
        self._late.pop(client, None)
        self._held.pop(client, None)
        self.state = state._replace(sent=state.sent + 1)
        clients = np.array([client])
        return Task(
            clients,
            state.parameters,
            state.sent,
            rate,
            self._clock,
            version=state.round,
            losses=self.sampler.reads_losses,
            local_steps=self._plan.steps_of(clients),
        )

    def _queue(self, design: BaseDispatch) -> Turns:
        """Return the turns of the design in use; those of a new one go on where the others end."""
        before = self._turns
        if before is None or before[0] is not design:
            turns = begin_turns(design, self._owed_weights(), self._at_work, self._rng)
            self._turns = before = design, turns
        return before[1]

    def _owed_weights(self) -> FloatArray:
        """Return the weight that each client is owed; NaN where that is not known yet."""
        if self._turns is None:
            return self.state.owed
        turns = self._turns[1]
        owed = turns.credits * (turns.design.weights / turns.design.q)
        return np.append(owed, self.state.owed[owed.size :])

    def _take_from(self, client: int, *places: dict[int, _Sent]) -> _Sent | None:
        """Remove a client's task from the first of these places; it is then free."""
        found = next((each for each in places if client in each), None)
        if found is None:
            return None
        if found is self._at_work and self._turns is not None:
            self._turns[1].end(client)
        return found.pop(client)

    def _present(self, context: SamplerContext) -> NDArray[np.bool_] | None:
        """Return which clients are present, free or at work; None for all."""
        if context.present is None:
            return None
        here = context.present.copy()
        here[[*self._at_work, *self._held]] = True
        return here

    def _dispatch(self, plan: Plan) -> BaseDispatch:
        """Return the plan's design; probabilities of draws become shares of completions."""
        design = plan.design
        if not isinstance(design, WithReplacement):
            return as_dispatch(design)
        if self._made is None or self._made[0] is not design:
            self._made = design, InTurn(design.q, design.weights, self._at_once)
        return self._made[1]

    def _match(self, reply: Reply, place: int) -> _Finished | None:
        """Return one reply with its task; None for a reply without one."""
        client = int(reply.clients[place])
        sent = self._take_from(client, self._at_work, self._held, self._late)
        if sent is None:
            return None
        age = self.state.round - sent.version
        if self._oldest is not None and age > self._oldest:
            return _Finished(sent, None, self._clock - sent.began, refused=True)
        return _Finished(sent, reply.of(place))

    def _give_up(self, client: int, reply: Reply) -> _Finished | None:
        """Return a task without a reply; a later reply may still count."""
        sent = self._take_from(client, self._at_work, self._held)
        if sent is None:
            return None
        refused = client in reply.refused
        if not refused:
            self._late[client] = sent
        return _Finished(sent, None, self._clock - sent.began, refused)

    def _step(self, taken: list[_Finished]) -> Row:
        """Let the server step with these updates, and record it."""
        count = len(taken)
        came = [each.sent for each in taken if each.reply is not None]
        lost = [each for each in taken if each.reply is None]
        passed = self._clock - self.state.seconds
        reply = _join([each.reply for each in taken if each.reply is not None], passed, self.state)
        weights = np.array([sent.weight for sent in came]) / count
        self.state, updates = apply_replies(
            self.state,
            self.server,
            Draw(reply.clients, weights),
            reply,
            asked=np.array([each.sent.client for each in taken], dtype=np.int64),
            weights=self.backend.weights,
            learning_rate=self._schedule(self.state.round),
            with_residuals=self.sampler.sees_updates,
            started=Started(
                np.array([rate_or_one(sent.rate) for sent in came]),
                [sent.model for sent in came],
                np.array([sent.version for sent in came], dtype=np.int64),
            ),
            step_rate=self._step_rate(count),
            present=self._here,
            step=self._planned_step(count),
        )
        model, running = self.state.parameters, self.state.running or begin_mean()
        running = add_model(running, model, count, self._at_once)
        self.state = self.state._replace(seconds=self._clock, running=running)
        self._show(updates)
        if self._left is not None:
            self._left -= len(taken)
            if self._left <= 0:
                self._stop = replace(self._stop, rounds=self.state.round)
        row = self._row(reply, updates.draw, came, lost)
        waited, self._waited = self._waited, 0.0
        row = self._finish(row._replace(waiting_seconds=waited))
        if self.phase.model is not None or self.phase.until is not None:
            raise InputError(
                f"phase must continue with the latest model in asynchronous training, got "
                f"'{self.phase.name}'; choose mode synchronous"
            )
        return row

    def _evaluate_model(self, *, due: bool) -> Evaluation | None:
        """Evaluate the model that is handed out; every C updates, choose it anew.

        Where evaluating is no simulation, this is always the mean.
        """
        running: RunningMean = self.state.running
        free, mean = self.backend.evaluates_any, running["mean"]
        if not free:
            running["handed_out"] = mean.size > 0
        found = self.backend.evaluate(self.state.handed_out, due=due)
        if found is None:
            return None
        if free and mean.size and running["compared"] >= self._at_once:
            running["compared"], slow = 0, self.backend.slow_accuracy
            parameters = self.state.parameters if running["handed_out"] else mean
            other = self.backend.evaluate(np.asarray(parameters, dtype=np.float64))
            if other is not None and not other.loss >= found.loss:
                running["handed_out"], found = not running["handed_out"], other
            else:
                self.backend.slow_accuracy = slow  # of the model that is handed out
        if self.sampler.returns_to_best:
            self._return_to_best(found.loss)
        return found

    def _return_to_best(self, loss: float) -> None:
        """Keep the model with the least loss; continue with it if the loss is far above the first.

        The row keeps the loss that led to this. A loss of NaN was not measured.
        """
        running: RunningMean = self.state.running
        first = self.rows[0].loss
        planned = self._plan is not None and self._plan.step is not None
        far = FAR if planned else FARTHER
        if loss < running["least"]:
            running["least"], running["best"] = loss, kept_model(self.state.handed_out)
        elif running["best"].size and loss > first + far * abs(first):
            best = running["best"].astype(np.float64)
            self.state = self.state._replace(parameters=best, running=restart_mean(running))

    def _sustained_loss(self) -> SustainedLoss:
        return SustainedLoss(self._at_once, self.rows)

    def _planned_step(self, count: int) -> float | None:
        planned = None if self._plan is None else self._plan.step
        return None if planned is None or not self.server.scales else count * planned

    def _step_rate(self, count: int) -> float:
        """Return the rate of a quarter of the updates' mean age of C/B steps ago."""
        done = self.state.round
        return self._schedule(done - math.ceil(min(self._at_once / count, done) / 4))

    def _row(self, reply: Reply, used: Draw, came: list[_Sent], lost: list[_Finished]) -> Row:
        """Describe the step."""
        plan = self._plan
        return self._describe(
            reply,
            used,
            self._expected_seconds(),
            missing=np.array([each.sent.client for each in lost], dtype=np.int64),
            refused=np.array([each.sent.client for each in lost if each.refused], dtype=np.int64),
            why="" if plan is None else plan.why,
            versions=np.array([sent.version for sent in came], dtype=np.int64),
            began=np.array([sent.began for sent in came]),
            missing_seconds=np.array([each.waited for each in lost]),
            **reply_costs(
                reply,
                self.state.parameters.size,
                len(came) + len(lost),
                sum(each.waited for each in lost),
            ),
        )

    def _is_due(self, row: Row, *, promised: bool) -> bool:
        """As in rounds; where clients must be asked, after at least C updates.

        An estimate from fewer clients says little.
        """
        if not self.backend.asks_to_evaluate:
            return super()._is_due(row, promised=promised)
        every, updates, steps = self._evaluate_every, row.clients.size, 1
        for before in reversed(self.rows):
            enough = updates >= self._at_once and steps >= every
            if enough or before.evaluated or not before.round:
                break
            updates, steps = updates + before.clients.size, steps + 1
        return updates >= self._at_once and (promised or 0 < every <= steps)

    def _expected_seconds(self) -> float:
        """Return B Σ f_i t_i / C; Σ f_i t_i is computed once per design."""
        plan = self._plan
        if plan is None:
            return math.nan
        if self._expected[0] is not plan.design:
            times: Any = self.backend.usual_times if plan.profile is None else plan.profile.times
            design = self._dispatch(plan)
            unknown = times is None or times.size != design.n
            expected = math.nan if unknown else design.seconds_per_completion(times)
            self._expected = plan.design, expected
        return self._buffer * self._expected[1]

    def _after_row(self) -> None:
        """Do not wait for the disk: clients would be idle."""

    def _state_to_resume(self) -> State:
        """Return the state with the weight of tasks under way still owed: they are drawn again."""
        owed = self._owed_weights().copy()
        out = (*self._at_work.values(), *self._held.values())
        for sent in (*out, *(each.sent for each in self._arrived)):
            owed[sent.client : sent.client + 1] += sent.weight
        return self.state._replace(owed=owed)


def factor_of(design: BaseDispatch, here: NDArray[np.bool_], weights: FloatArray) -> float:
    """Return the factor that divides p and f by their sums over the clients present."""
    here = here[: design.n]
    if here.all():
        return 1.0
    return float(design.q[here].sum() / weights[: design.n][here].sum())


def begin_turns(
    design: BaseDispatch, owed: FloatArray, busy: Iterable[int], rng: np.random.Generator
) -> Turns:
    """Return the turns of a design, from what clients are owed as weights.

    Turns have the weight p_i / f_i. What is owed is kept as weights, so that it stays right when
    the shares f change. A new client begins with a part of a turn. Then all receive the same
    multiple of p_i, so that the credits keep their sum, which turns rely on.
    """
    n, per_turn = design.n, design.weights / design.q
    owed = np.append(owed[:n], np.full(max(n - owed.size, 0), np.nan))
    new = np.isnan(owed)
    if new.any():
        owed[new] = (design.start(rng) * per_turn)[new]
    credit = owed / per_turn
    credit += ((n + 1) / 2 - credit.sum()) * design.q
    return design.turns(credit, busy)


def _join(replies: list[Reply], passed: float, state: State) -> Reply:
    if replies:
        return join_replies(replies, waited=passed)
    nothing = np.empty((0, state.parameters.size))
    return Reply(NO_CLIENTS, nothing, NO_VALUES, NO_VALUES, waited=passed)
