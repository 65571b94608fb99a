"""What synchronous and asynchronous training share: begin, resume, evaluate, record, end."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from fedpace.checks import FloatArray
from fedpace.errors import InputError
from fedpace.profile import Profile
from fedpace.sampling.design import BaseDesign, Draw
from fedpace.sampling.dispatch import BaseDispatch, as_any_design
from fedpace.seeds import Seeds
from fedpace.training.backend import BaseBackend, Evaluation, Reply, as_backend
from fedpace.training.callbacks import Callback, RunInfo, as_callback
from fedpace.training.checkpoint import State
from fedpace.training.history import History, Row, SustainedLoss
from fedpace.training.sampler import START, BaseSampler, Phase, SamplerContext, as_sampler
from fedpace.training.server import BaseServer, as_server
from fedpace.training.stopping import Schedule, Stop
from fedpace.training.updates import RoundUpdates


class Outcome(NamedTuple):
    """A finished run: its history, final state, last design and the profile behind that."""

    history: History
    state: State
    design: BaseDesign | BaseDispatch
    profile: Profile
    notes: Mapping[str, Any] = {}

    @property
    def parameters(self) -> FloatArray:
        """The trained model, as one vector; `TorchModel.module` makes a module of it."""
        return self.state.handed_out


# What a state of wrong types, names or lengths raises.
DAMAGE = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError)


@contextmanager
def checkpoint_errors(active: bool = True) -> Iterator[None]:
    """Name the checkpoint as the reason of errors in the first step after it was read."""
    try:
        yield
    except DAMAGE as error:
        if not active or isinstance(error, InputError):
            raise
        raise InputError(
            f"checkpoint must hold the state of this run, got {type(error).__name__}: "
            f"{error!s:.200}; remove it to start again"
        ) from error


class Training:
    """One training; see `SynchronousTraining` and `AsynchronousTraining`.

    Parameters
    ----------
    backend, sampler : BaseBackend, BaseSampler
        Where clients train, and what to draw them from.
    schedule, stop : function of the round, Stop
        The learning rate, and when to end.
    seeds, server : Seeds, BaseServer
        For the draws, and what becomes of the replies; by default the sampler's server, or the
        weighted average.
    evaluate_every : int ≥ 0
        Evaluate the global loss in every n-th round, and estimate it from the clients' own
        losses in between; 0 for never. An estimate that would end the run is checked first.
    callbacks : sequence of Callback, or functions of a row
        Receive every finished round; a `Checkpoint` also resumes the run.
    name : str
        The name of the run for callbacks, such as its scheme.
    continues : Training and state, optional
        A training to continue, and the state of the sampler for it; see `handed_over`.

    Attributes
    ----------
    state, rows : State, list of Row
        Where it stands, and what happened so far.
    resumed : bool
        Whether it continues from a checkpoint.
    """

    def __init__(
        self,
        backend: BaseBackend,
        sampler: BaseSampler,
        *,
        schedule: Schedule,
        stop: Stop,
        seeds: Seeds,
        server: BaseServer | None = None,
        evaluate_every: int = 1,
        callbacks: Sequence[Any] = (),
        name: str = "",
        continues: tuple[Training, Any] | None = None,
    ) -> None:
        _check_arguments(sampler, schedule, stop, seeds)
        self.backend, self.sampler = as_backend(backend), as_sampler(sampler)
        chosen = self.sampler.server if server is None else server
        self.server = BaseServer() if chosen is None else as_server(chosen)
        self._schedule, self._stop, self._seeds = schedule, stop, seeds
        self._evaluate_every, self._name = evaluate_every, name
        self._callbacks: list[Callback] = [as_callback(each) for each in callbacks]
        self._chance = float(seeds.stream("chance").random())
        self.state: State
        self._rng: np.random.Generator
        self.rows: list[Row] = []
        self.resumed = False
        self._sustained: SustainedLoss
        if continues is not None:
            before, state = continues
            self.rows, self._rng = before.rows, before._rng
            self.state = before.state._replace(sampler=state)
            self._sustained = self._sustained_loss()
            self._end(self.rows[-1])
            return
        with checkpoint_errors():
            self.resumed = self._resume()
        if not self.resumed:
            self._begin()
        self._sustained = self._sustained_loss()
        self._notify_start()

    @property
    def ended(self) -> str:
        """Why the run ended; empty while it continues."""
        return self.state.ended

    @property
    def phase(self) -> Phase:
        """The current part of the run."""
        return self.sampler.phase(self.state.sampler)

    def hand_over(self) -> Training:
        """Return the training to continue with: an asynchronous one if the sampler says so."""
        return self

    def advance(self) -> list[Row]:
        """Do the next round, or wait for the next asynchronous reply; return the new rows."""
        raise NotImplementedError

    def outcome(self) -> Outcome:
        """Return the result of the run."""
        context = self._context()
        plan = self.sampler.plan(self.state.sampler, context)
        profile = context.blank_profile if plan.profile is None else plan.profile
        design = as_any_design(plan.design)
        return Outcome(History(self.rows), self.state, design, profile, plan.notes)

    def finish(self) -> None:
        """Tell the callbacks that the run has ended."""
        for callback in self._callbacks:
            callback.on_end(self._info())

    def flush(self) -> None:
        """Return when callbacks have stored all rows; to be called however a run ends."""
        for callback in self._callbacks:
            callback.flush()

    def _sustained_loss(self) -> SustainedLoss:
        return SustainedLoss(None, self.rows)

    def _begin(self) -> None:
        parameters = self.backend.initial()
        sampler = self.sampler.init(self.backend.weights.size)
        phase = self.sampler.phase(sampler)
        server = self.server.init(parameters)
        self.state = State(parameters, 0, 0.0, phase=phase.name, sampler=sampler, server=server)
        self._rng = self._seeds.stream(*phase.stream)
        found = self.backend.evaluate(parameters, due=not self._stop.blind)
        loss, accuracy = (math.nan, math.nan) if found is None else found
        row = Row(phase.name, 0, 0.0, loss, accuracy, 0.0, 0.0)
        self.state = phase.keep_model(START, self.state, row)
        self._learn(row)

    def _resume(self) -> bool:
        """Continue from what a callback has stored; return whether there is anything."""
        found = next(filter(None, (each.resume() for each in self._callbacks)), None)
        if found is None:
            return False
        self.state, self.rows = found.state, list(found.rows)
        self._rng = self._seeds.stream(*self.phase.stream)
        self._rng.bit_generator.state = found.rng
        self._end(self.rows[-1])
        return True

    def _notify_start(self) -> None:
        if self._callbacks:
            info = self._info()
            for callback in self._callbacks:
                callback.on_start(info, self.rows)
            self._after_row()

    def _context(self) -> SamplerContext:
        backend, state = self.backend, self.state
        return SamplerContext(
            backend.weights,
            backend.usual_times,
            round=state.round,
            seconds=state.seconds,
            chance=self._chance,
            rate=self._schedule(state.round),
            local_steps=backend.local_steps,
            computing=backend.usual_computing,
            shared_by=backend.shared_by,
        )

    def _show(self, updates: RoundUpdates) -> None:
        """Let the sampler look at the updates."""
        if updates.draw.clients.size:
            self.state = self.state._replace(sampler=self.sampler.see(self.state.sampler, updates))

    def _describe(self, reply: Reply, used: Draw, expected: float, **more: Any) -> Row:
        """Return the row of a reply, with the estimated loss in place of the loss."""
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
            local_steps=reply.local_steps,
            **more,
        )

    def _finish(self, row: Row) -> Row:
        """Evaluate the model where that is due, and record the row."""
        row = self._evaluate(row)
        if self.phase.until is None:
            row = row._replace(sustained_loss=self._sustained.add(row))
        row = row._replace(ended=self.phase.stopping_rule(self._stop).reason(row))
        self._record(row)
        return row

    def _evaluate(self, row: Row) -> Row:
        """Return the row with the evaluated loss, where an evaluation is due."""
        before = self.rows[-1]
        if before.phase == row.phase and before.evaluated and not row.clients.size:  # same model
            return row._replace(
                loss=before.loss, accuracy=before.accuracy, slow_accuracy=before.slow_accuracy
            )
        rule = self.phase.stopping_rule(self._stop)
        promise = rule.promise(row)
        unknown = not row.losses.size and not self._stop.blind
        over = bool(rule.promise(row._replace(loss=sys.float_info.max)))  # whatever the loss
        due = unknown or over or self._is_due(row, promised=bool(promise))
        if promise and not due:  # too few clients to check it
            row = row._replace(loss=before.loss, loss_estimate=before.loss)
            promise = ""
        found = self._evaluate_model(due=due)
        if found is not None:
            row = row._replace(accuracy=found.accuracy, slow_accuracy=self.backend.slow_accuracy)
            if not (self._stop.blind and math.isnan(found.loss)):
                return row._replace(loss=found.loss)
        unmeasured = row._replace(loss=math.nan)
        # An estimate that could not be checked must not end the run.
        return unmeasured if promise and rule.promise(unmeasured) != promise else row

    def _evaluate_model(self, *, due: bool) -> Evaluation | None:
        """Evaluate the model that is handed out."""
        return self.backend.evaluate(self.state.parameters, due=due)

    def _is_due(self, row: Row, *, promised: bool) -> bool:
        """Whether this is one of every n rounds, or its estimate promises an end."""
        every = self._evaluate_every
        return promised or (every > 0 and row.round % every == 0)

    def _record(self, row: Row) -> None:
        """Let the sampler learn, and pass the row to the callbacks."""
        self._learn(row)
        if self._callbacks:
            info = self._info()
            for callback in self._callbacks:
                callback.on_row(info, row)
            self._after_row()

    def _learn(self, row: Row) -> None:
        """Let the sampler learn, and change the phase if it says so."""
        before, state = self.phase, self.state
        self.rows.append(row)
        self.state = state._replace(sampler=self.sampler.observe(state.sampler, row))
        phase = self.phase
        if phase.name != before.name:
            self._rng = self._seeds.stream(*phase.stream)
            self.state = phase.enter(before.keep_model(before.name, self.state, row))
        self._end(row)

    def _after_row(self) -> None:
        """Wait until the row is stored; asynchronous training does not."""
        self.flush()

    def _info(self) -> RunInfo:
        return RunInfo(self._name, self._seeds.seed, self._state_to_resume(), self._rng)

    def _state_to_resume(self) -> State:
        return self.state

    def _end(self, row: Row) -> None:
        ended = self.phase.end_reason(self._stop, self.state, row)
        self.state = self.state._replace(ended=ended)


def _check_arguments(sampler: object, schedule: object, stop: object, seeds: object) -> None:
    """Validate arguments that are easily confused."""
    for name, value, fine, remedy in (
        ("sampler", sampler, not isinstance(sampler, str), 'give sampler_for("pace", k=10)'),
        ("schedule", schedule, callable(schedule), "give constant(0.1), from fedpace"),
        ("stop", stop, isinstance(stop, Stop), "give Stop(rounds=100)"),
        ("seeds", seeds, isinstance(seeds, Seeds), "give Seeds(0)"),
    ):
        if not fine:
            got = f"{value!r:.60}; {remedy}"
            raise InputError(f"{name} must be what `train` documents, got {got}")
