"""What runs with and without a barrier share: begin, resume, evaluate, record, end."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from fedpace.checks import FloatArray
from fedpace.errors import InputError
from fedpace.profile import Profile
from fedpace.rounds.backend import Backend, Reply
from fedpace.rounds.checkpoint import Journal
from fedpace.rounds.rows import History, Row, sustained_loss
from fedpace.rounds.sampler import START, Known, Phase, Sampler, phase_of, plan_of
from fedpace.rounds.schedules import Schedule
from fedpace.rounds.seen import Seen
from fedpace.rounds.server import AUTO, Server, server_named
from fedpace.rounds.state import State
from fedpace.rounds.stopping import Stop
from fedpace.sampling.design import Design, Draw
from fedpace.sampling.turns import Dispatch
from fedpace.seeds import Seeds


class Outcome(NamedTuple):
    """A finished run: what happened, where it ended, and what the last design was solved for."""

    history: History
    state: State
    design: Design | Dispatch
    profile: Profile
    notes: Mapping[str, Any] = {}

    @property
    def parameters(self) -> FloatArray:
        """The trained model, as one vector; `TorchModel.module` makes a module of it."""
        return self.state.parameters


class Training:
    """Hold one training: `Run` goes by rounds, `Stream` has no barrier.

    Parameters
    ----------
    backend, sampler : Backend, Sampler
        Where clients train, and what to draw them from.
    schedule, stop : function of the round, Stop
        The learning rate, and when to end.
    seeds, server : Seeds, Server
        For the draws, and what becomes of the replies.
    evaluate_every : int ≥ 0
        Evaluate the global loss in every n-th round, and estimate it from the clients' own
        losses in between; 0 for never. An estimate that would end the run is checked first.
    journal : Journal, optional
        Is told every finished round; rounds that it knows already are not done again.

    Attributes
    ----------
    state, rows : State, list of Row
        Where it stands, and what happened so far.
    """

    def __init__(
        self,
        backend: Backend,
        sampler: Sampler,
        *,
        schedule: Schedule,
        stop: Stop,
        seeds: Seeds,
        server: Server | None = None,
        evaluate_every: int = 1,
        journal: Journal | None = None,
    ) -> None:
        _check(sampler, schedule, stop, seeds)
        self.backend, self.sampler = backend, sampler
        self.server = server_named(AUTO, sampler) if server is None else server
        self._schedule, self._stop, self._seeds = schedule, stop, seeds
        self._evaluate_every, self._journal = evaluate_every, journal
        self._chance = float(seeds.stream("chance").random())
        self.state: State
        self._rng: np.random.Generator
        self.rows: list[Row] = []
        if journal is None or not self._resumed(journal):
            self._begin()

    @property
    def ended(self) -> str:
        """Why the run ended; empty while it goes on."""
        return self.state.ended

    @property
    def phase(self) -> Phase:
        """The part that the run is in."""
        return phase_of(self.sampler, self.state.sampler)

    def outcome(self) -> Outcome:
        """Return what the run came to."""
        known = self._known()
        plan = plan_of(self.sampler, self.state.sampler, known)
        profile = known.blank_profile if plan.profile is None else plan.profile
        return Outcome(History(self.rows), self.state, plan.design, profile, plan.notes)

    def safe(self) -> None:
        """Return when the journal has all that was recorded; to be called however a run ends."""
        safe: Callable[[], None] | None = getattr(self._journal, "safe", None)
        if safe is not None:
            safe()

    def _begin(self) -> None:
        parameters = self.backend.initial()
        sampler = self.sampler.init(self.backend.weights.size)
        phase = phase_of(self.sampler, sampler)
        server = self.server.init(parameters)
        self.state = State(parameters, 0, 0.0, phase=phase.name, sampler=sampler, server=server)
        self._rng = self._seeds.stream(*phase.stream)
        found = self.backend.evaluate(parameters, due=not self._stop.blind)
        loss, accuracy = (math.nan, math.nan) if found is None else found
        row = Row(phase.name, 0, 0.0, loss, accuracy, 0.0, 0.0)
        self.state = phase.kept(START, self.state, row)
        self._record(row)

    def _resumed(self, journal: Journal) -> bool:
        """Take over what the journal knows; return whether that is anything."""
        found = journal.resume()
        if found is None:
            return False
        self.state, self.rows = found.state, list(found.rows)
        self._rng = self._seeds.stream(*self.phase.stream)
        self._rng.bit_generator.state = found.rng
        self._end(self.rows[-1])
        return True

    def _known(self) -> Known:
        backend, state = self.backend, self.state
        known = Known(backend.weights, backend.usual_times, chance=self._chance)
        rate = self._schedule(state.round)
        return known._replace(round=state.round, seconds=state.seconds, rate=rate)

    def _show(self, seen: Seen) -> None:
        """Let a sampler that wants to look at the updates do so."""
        see = getattr(self.sampler, "see", None)
        if see is not None and seen.draw.clients.size:
            self.state = self.state._replace(sampler=see(self.state.sampler, seen))

    def _described(self, reply: Reply, used: Draw, expected: float, **more: Any) -> Row:
        """Return a row of what came, with the estimate of the loss in the place of the loss."""
        estimate = float(used.weights @ reply.losses) if reply.losses.size else math.nan
        return Row(
            self.state.phase,
            self.state.round,
            self.state.seconds,
            estimate,
            math.nan,
            expected,
            reply.lasted,
            reply.clients,
            used.weights,
            reply.seconds,
            reply.grad_norms,
            loss_estimate=estimate,
            losses=reply.losses,
            computing_seconds=reply.computing_seconds,
            bytes_down=reply.bytes_down,
            bytes_up=reply.bytes_up,
            **more,
        )

    def _finished(self, row: Row) -> Row:
        """Evaluate the model where that is due, and keep the row; a diverging one may overflow."""
        row = self._evaluated(row)
        if self.phase.until is None:
            row = row._replace(sustained_loss=sustained_loss(self.rows, row))
        row = row._replace(ended=self.phase.ending(self._stop).reason(row))
        self._record(row)
        return row

    def _evaluated(self, row: Row) -> Row:
        """Put the evaluated loss in its place, where it is due: the only place that decides."""
        before = self.rows[-1]
        if before.phase == row.phase and before.evaluated and not row.clients.size:  # same model
            return row._replace(
                loss=before.loss, accuracy=before.accuracy, slow_accuracy=before.slow_accuracy
            )
        rule = self.phase.ending(self._stop)
        promise = rule.promise(row)
        unknown = not row.losses.size and not self._stop.blind
        over = bool(rule.promise(row._replace(loss=sys.float_info.max)))  # whatever the loss
        due = unknown or over or self._is_due(row, promised=bool(promise))
        if promise and not due:  # of so few clients that it is not even checked
            row = row._replace(loss=before.loss, loss_estimate=before.loss)
            promise = ""
        found = self.backend.evaluate(self.state.parameters, due=due)
        if found is not None:
            slow = getattr(self.backend, "slow_accuracy", math.nan)
            row = row._replace(accuracy=found.accuracy, slow_accuracy=slow)
            if not (self._stop.blind and math.isnan(found.loss)):
                return row._replace(loss=found.loss)
        unmeasured = row._replace(loss=math.nan)
        # An estimate that nobody could check must not end the run.
        return unmeasured if promise and rule.promise(unmeasured) != promise else row

    def _is_due(self, row: Row, *, promised: bool) -> bool:
        """Whether this is one of every n rounds, or its estimate promises an end."""
        every = self._evaluate_every
        return promised or (every > 0 and row.round % every == 0)

    def _record(self, row: Row) -> None:
        """Let the sampler learn, change the phase if it says so, and keep the round."""
        before, state = self.phase, self.state
        self.rows.append(row)
        self.state = state._replace(sampler=self.sampler.observe(state.sampler, row))
        phase = self.phase
        if phase.name != before.name:
            self._rng = self._seeds.stream(*phase.stream)
            self.state = phase.entered(before.kept(before.name, self.state, row))
        self._end(row)
        if self._journal is not None:
            self._record_in(self._journal)(self._kept(), row, self._rng)

    def _record_in(self, journal: Journal) -> Callable[[State, Row, np.random.Generator], None]:
        """Return how a round is recorded: the next begins when it is safe."""
        return journal.record

    def _kept(self) -> State:
        """Return the state as it is to be resumed from."""
        return self.state

    def _end(self, row: Row) -> None:
        ended = self.phase.over(self._stop, self.state, row)
        self.state = self.state._replace(ended=ended)


def _check(sampler: object, schedule: object, stop: object, seeds: object) -> None:
    """Say what an argument must be that is easily taken for another."""
    for name, value, fine, remedy in (
        ("sampler", sampler, hasattr(sampler, "observe"), 'give sampler_for("pace", k=10)'),
        ("schedule", schedule, callable(schedule), "give constant(0.1), from fedpace"),
        ("stop", stop, isinstance(stop, Stop), "give Stop(rounds=100)"),
        ("seeds", seeds, isinstance(seeds, Seeds), "give Seeds(0)"),
    ):
        if not fine:
            got = f"{value!r:.60}; {remedy}"
            raise InputError(f"{name} must be what `train` documents, got {got}")
