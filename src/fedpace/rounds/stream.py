"""One training without a barrier: send out, take in, step."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedpace.checks import FloatArray, positive_count
from fedpace.errors import InputError
from fedpace.rounds.backend import NOBODY, NOTHING, Backend, Reply, Task, together
from fedpace.rounds.checkpoint import Journal
from fedpace.rounds.probing import costs
from fedpace.rounds.rows import Row
from fedpace.rounds.sampler import Known, Plan, Sampler, plan_of
from fedpace.rounds.seen import Started
from fedpace.rounds.server import applied, usable
from fedpace.rounds.state import State
from fedpace.rounds.training import Training
from fedpace.sampling.design import Draw, WithReplacement
from fedpace.sampling.turns import Dispatch, InTurn, Turn
from fedpace.times.round_times import Presence


class _Sent(NamedTuple):
    """A task that was given out: to whom, when, with which model, rate and weight."""

    client: int
    version: int
    model: FloatArray
    rate: float
    weight: float
    began: float


class _Back(NamedTuple):
    """What became of a task: the reply, or None where there is none that counts."""

    sent: _Sent
    reply: Reply | None
    waited: float = 0.0
    refused: bool = False


class Stream(Training):
    """Hold one training without a barrier.

    `at_once` clients are at work. Whenever one is back, its update goes into the buffer, and the
    next is sent out with the newest model. Whenever the buffer holds `buffer` updates the server
    takes a step, w ← w + Σ weights_i Δ_i / buffer: each update as it was made, at the learning rate
    that it was sent out with, however old; `Memory` alone counts all of a step alike. A row
    is a step, and the learning rate falls by steps. A sampler with `steps_now` says itself when to
    step, with all that came.

    Whoever drives it submits `tasks()`, collects, and calls `take` with what came.

    Parameters
    ----------
    backend, sampler, **how
        As in `Training`. The sampler's designs must have `next`.
    at_once : int ≥ 1
        C, clients at work at the same time.
    buffer : int ≥ 1, optional
        B, updates in a step; by default as the sampler says, else `at_once`.
    oldest : int ≥ 0, optional
        Refuse an update that is more steps old than this; by default as the server says
        (`server.oldest`), else none is refused.
    """

    def __init__(
        self,
        backend: Backend,
        sampler: Sampler,
        *,
        at_once: int,
        buffer: int | None = None,
        oldest: int | None = None,
        **how: Any,
    ) -> None:
        self._at_once = positive_count("at_once", at_once)
        self._given = None if buffer is None else positive_count("buffer", buffer)
        self._at_work: dict[int, _Sent] = {}
        self._late: dict[int, _Sent] = {}
        self._arrived: list[_Back] = []
        self._waited = 0.0
        self._here: NDArray[np.bool_] | None = None  # those present at the latest task
        self._plan: Plan | None = None
        self._expected: tuple[object, float] = (None, math.nan)
        self._made: tuple[Any, Any] = (None, None)
        super().__init__(backend, sampler, **how)
        self._oldest = getattr(self.server, "oldest", None) if oldest is None else oldest
        self._clock = self.state.seconds

    def go_on(self) -> list[Row]:
        """Send out whom there is room for, wait for the next who is back, and step if it is time.

        Return the steps that this led to, mostly none.
        """
        for task in self.tasks():
            self.backend.submit(task)
        rows = self.take(self.backend.collect(1))
        if self.ended and hasattr(self.backend, "drop"):
            self.backend.drop()  # what is still under way
        return rows

    def tasks(self) -> list[Task]:
        """Return what to give out now: a task of one client each, while there is room."""
        room = self._at_once - len(self._at_work)
        presence = self._presence() if room > 0 else None
        tasks: list[Task] = []
        while presence is not None and len(tasks) < room:
            known = self._known()._replace(present=presence.clients, seconds=self._clock)
            task = self._next(known)
            if task is None:
                break
            tasks.append(task)
        return tasks

    def take(self, reply: Reply) -> list[Row]:
        """Put what came into the buffer, and step whenever it is full; return the steps' rows."""
        self._clock += reply.lasted
        arrived = [self._back(reply, place) for place in range(reply.clients.size)]
        arrived += [self._silent(client, reply) for client in reply.missing.tolist()]
        rows = []
        self._arrived += [each for each in arrived if each is not None]
        with np.errstate(over="ignore", invalid="ignore"):
            while not self.ended and (count := self._due()):
                rows.append(self._step(count))
        return rows

    def _due(self) -> int:
        """Return of how many updates to make a step now, 0 for none."""
        paced = getattr(self.sampler, "steps_now", None)
        if paced is None:
            return self._buffer if len(self._arrived) >= self._buffer else 0
        known = self._known()._replace(seconds=self._clock)
        at_work = np.array([*self._at_work], dtype=np.int64)
        passed = self._clock - self.state.seconds
        ready = self._arrived and paced(self.state.sampler, passed, at_work, known)
        return len(self._arrived) if ready else 0

    @property
    def _buffer(self) -> int:
        """B, by the latest plan."""
        wanted = None if self._plan is None else self._plan.buffer
        return self._given or wanted or self._at_once

    def _presence(self) -> Presence | None:
        """Return who is there; None while there is nobody but others are at work."""
        presence = self.backend.present(self.state.round, self._clock)
        if presence.waited:
            if self._at_work:
                return None
            self._clock += presence.waited
            self._waited += presence.waited
        return presence

    def _next(self, known: Known) -> Task | None:
        """Send out the client whose turn it is; None where nobody is free."""
        self._plan = plan_of(self.sampler, self.state.sampler, known)
        design = self._in_turn(self._plan)
        present = known.present
        free = np.ones(known.n, dtype=np.bool_) if present is None else present.copy()
        free[[*self._at_work]] = False
        if not free[: design.n].any():
            if not self._at_work:
                raise InputError(
                    f"sampler must return a design for those present, got one for the first "
                    f"{design.n} of {known.n} clients, of whom nobody is; solve again when others "
                    "come"
                )
            return None
        state, rate = self.state, self._schedule(self.state.round)
        client, weight, owed = turned(design, state.owed, free, self._rng)
        self._here = self._present(known)
        weight *= self._factor(design, known)
        sent = _Sent(client, state.round, state.parameters, rate, weight, self._clock)
        self._at_work[client] = sent
        self._late.pop(client, None)
        self.state = state._replace(owed=owed, sent=state.sent + 1)
        return Task(
            np.array([client]),
            sent.model,
            state.sent,
            rate,
            self._clock,
            version=state.round,
            losses=getattr(self.sampler, "reads_losses", False),
        )

    def _present(self, known: Known) -> NDArray[np.bool_] | None:
        """Return who is there, free or at work; None for all."""
        if known.present is None:
            return None
        here = known.present.copy()
        here[[*self._at_work]] = True
        return here

    def _factor(self, design: Dispatch, known: Known) -> float:
        """Return what makes weights as if p and f were divided by their sums over those present."""
        if self._here is None:
            return 1.0
        here = self._here[: design.n]
        if here.all():
            return 1.0
        return float(design.q[here].sum() / known.weights[: design.n][here].sum())

    def _in_turn(self, plan: Plan) -> Dispatch:
        """Return the plan's design; of one that draws with replacement, shares of completions."""
        design: Any = plan.design
        if hasattr(design, "next"):
            return design  # type: ignore[no-any-return]
        if not isinstance(design, WithReplacement):
            raise InputError(
                f"design must have `next` where no round is waited for, got "
                f"{type(design).__name__}; choose another scheme, or mode synchronous"
            )
        if self._made[0] is not design:
            self._made = design, InTurn(design.q, design.weights, self._at_once)
        made: Dispatch = self._made[1]
        return made

    def _back(self, reply: Reply, place: int) -> _Back | None:
        """Return one reply with its task; None for one that nobody waits for."""
        client = int(reply.clients[place])
        sent = self._at_work.pop(client, None) or self._late.pop(client, None)
        if sent is None:
            return None
        age = self.state.round - sent.version
        if self._oldest is not None and age > self._oldest:
            return _Back(sent, None, self._clock - sent.began, refused=True)
        return _Back(sent, reply.of(place))

    def _silent(self, client: int, reply: Reply) -> _Back | None:
        """Return a task without a reply; one that comes later may still count."""
        sent = self._at_work.pop(client, None)
        if sent is None:
            return None
        refused = client in reply.refused
        if not refused:
            self._late[client] = sent
        return _Back(sent, None, self._clock - sent.began, refused)

    def _step(self, count: int) -> Row:
        """Let the server step with the first updates of the buffer, and record that."""
        taken, self._arrived = self._arrived[:count], self._arrived[count:]
        came = [each.sent for each in taken if each.reply is not None]
        lost = [each for each in taken if each.reply is None]
        passed = self._clock - self.state.seconds
        reply = _together(
            [each.reply for each in taken if each.reply is not None], passed, self.state
        )
        weights = np.array([sent.weight for sent in came]) / count
        self.state, seen = applied(
            self.state,
            self.server,
            Draw(reply.clients, weights),
            reply,
            asked=np.array([each.sent.client for each in taken], dtype=np.int64),
            weights=self.backend.weights,
            learning_rate=self._schedule(self.state.round),
            shown=hasattr(self.sampler, "see"),
            started=Started(
                np.array([usable(sent.rate) for sent in came]),
                [sent.model for sent in came],
                np.array([sent.version for sent in came], dtype=np.int64),
            ),
            step_rate=self._step_rate(count),
            present=self._here,
        )
        self.state = self.state._replace(seconds=self._clock)
        self._show(seen)
        row = self._row(reply, seen.draw, came, lost)
        waited, self._waited = self._waited, 0.0
        row = self._finished(row._replace(waiting_seconds=waited))
        if self.phase.model is not None or self.phase.until is not None:
            raise InputError(
                f"phase must go on with the latest model where no round is waited for, got "
                f"'{self.phase.name}'; choose mode synchronous"
            )
        return row

    def _step_rate(self, count: int) -> float:
        """Return the rate of a quarter as many steps ago as updates are old: C/B, or all so far."""
        done = self.state.round
        return self._schedule(done - math.ceil(min(self._at_once / count, done) / 4))

    def _row(self, reply: Reply, used: Draw, came: list[_Sent], lost: list[_Back]) -> Row:
        """Describe the step."""
        plan = self._plan
        return self._described(
            reply,
            used,
            self._expected_seconds(),
            missing=np.array([each.sent.client for each in lost], dtype=np.int64),
            refused=np.array([each.sent.client for each in lost if each.refused], dtype=np.int64),
            why="" if plan is None else plan.why,
            versions=np.array([sent.version for sent in came], dtype=np.int64),
            began=np.array([sent.began for sent in came]),
            missing_seconds=np.array([each.waited for each in lost]),
            **costs(
                reply,
                self.state.parameters.size,
                len(came) + len(lost),
                sum(each.waited for each in lost),
            ),
        )

    def _is_due(self, row: Row, *, promised: bool) -> bool:
        """As in rounds; where clients must be asked, after as many updates as a round has.

        Before that the estimate is of few clients, and a promise of theirs says little.
        """
        if not getattr(self.backend, "asks_to_evaluate", False):
            return super()._is_due(row, promised=promised)
        every, updates, steps = self._evaluate_every, row.clients.size, 1
        for before in reversed(self.rows):
            enough = updates >= self._at_once and steps >= every
            if enough or before.evaluated or not before.round:
                break
            updates, steps = updates + before.clients.size, steps + 1
        return updates >= self._at_once and (promised or 0 < every <= steps)

    def _expected_seconds(self) -> float:
        """Return B Σ f_i t_i / C; Σ f_i t_i is computed once for each design."""
        plan = self._plan
        if plan is None:
            return math.nan
        if self._expected[0] is not plan.design:
            times: Any = self.backend.usual_times if plan.profile is None else plan.profile.times
            design = self._in_turn(plan)
            unknown = times is None or times.size != design.n
            expected = math.nan if unknown else design.seconds_per_completion(times)
            self._expected = plan.design, expected
        return self._buffer * self._expected[1]

    def _record_in(self, journal: Journal) -> Callable[[State, Row, np.random.Generator], None]:
        """Return how a step is recorded: behind, so that no client waits for the disk."""
        return getattr(journal, "record_soon", journal.record)

    def _kept(self) -> State:
        """Return the state to resume from: what is under way is drawn again, and is still owed."""
        owed = self.state.owed.copy()
        for sent in (*self._at_work.values(), *(each.sent for each in self._arrived)):
            owed[sent.client : sent.client + 1] += sent.weight
        return self.state._replace(owed=owed)


def turned(
    design: Dispatch, owed: FloatArray, free: NDArray[np.bool_], rng: np.random.Generator
) -> Turn:
    """Return whose turn it is, and what clients are owed then, as weights.

    Turns have the weight p_i / f_i. What is owed is kept as weights, so that it stays right when
    the shares f change. Whoever has no account begins with a part of a turn. Then all are given
    the same multiple of p_i, so that credits have the sum that they begin with: turns count on it.
    """
    n, weights = design.n, getattr(design, "weights", design.q)
    per_turn = weights / design.q
    owed = np.append(owed, np.full(max(n - owed.size, 0), np.nan))
    new = np.isnan(owed[:n])
    if new.any():
        owed[:n][new] = (design.start(rng) * per_turn)[new]
    credit = owed[:n] / per_turn
    credit += ((n + 1) / 2 - credit.sum()) * design.q
    client, weight, turns = design.next(free[:n], credit, rng)
    owed[:n] = turns * per_turn
    return Turn(client, weight, owed)


def _together(replies: list[Reply], passed: float, state: State) -> Reply:
    if replies:
        return together(replies, waited=passed)
    nothing = np.empty((0, state.parameters.size))
    return Reply(NOBODY, nothing, NOTHING, NOTHING, waited=passed)
