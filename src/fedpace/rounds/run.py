"""One training: draw, collect, apply, record [Luo22, Alg. 1]."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from fedpace.checks import FloatArray
from fedpace.errors import InputError
from fedpace.profile import Profile
from fedpace.rounds.backend import Backend, Reply, Task
from fedpace.rounds.checkpoint import Journal
from fedpace.rounds.rows import History, Row, sustained_loss
from fedpace.rounds.sampler import START, Known, Phase, Plan, Sampler, phase_of, plan_of
from fedpace.rounds.schedules import Schedule
from fedpace.rounds.seen import Seen
from fedpace.rounds.server import AUTO, Server, applied, server_named
from fedpace.rounds.state import State
from fedpace.rounds.stopping import Stop
from fedpace.sampling.design import Design, Draw
from fedpace.seeds import Seeds


class Outcome(NamedTuple):
    """A finished run: what happened, where it ended, and what the last design was solved for."""

    history: History
    state: State
    design: Design
    profile: Profile
    notes: Mapping[str, Any] = {}


class _Drawn(NamedTuple):
    """A draw whose replies are still to come."""

    draw: Draw
    expected: float
    waited: float
    why: str
    learning_rate: float


class Run:
    """Hold one training; whoever drives it calls `draw` and `complete` in turn.

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
        self.backend, self.sampler = backend, sampler
        self.server = server_named(AUTO, sampler) if server is None else server
        self._schedule, self._stop, self._seeds = schedule, stop, seeds
        self._evaluate_every, self._journal = evaluate_every, journal
        self._chance = float(seeds.stream("chance").random())
        self._expected: tuple[Plan | None, float] = (None, math.nan)
        self._drawn: _Drawn | None = None
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

    def draw(self, parameters: FloatArray | None = None) -> Task:
        """Draw among those present, and return what they are to do, from `parameters` if given."""
        if self._drawn is not None:
            raise InputError("draw must come after complete, got two in a row; complete the round")
        state = self.state
        presence = self.backend.present(state.round, state.seconds)
        if presence.waited:
            state = state._replace(seconds=state.seconds + presence.waited)
        if parameters is not None:
            state = state._replace(parameters=parameters)
        known = self._known()._replace(present=presence.clients, seconds=state.seconds)
        plan = plan_of(self.sampler, state.sampler, known)
        self.state = state
        draw = _drawn(plan.design, known, self._rng)
        rate = self._schedule(state.round)
        expected = self._expected_seconds(plan, known)
        self._drawn = _Drawn(draw, expected, presence.waited, plan.why, rate)
        return Task(draw.clients, state.parameters, state.round, rate, state.seconds)

    def complete(self, reply: Reply) -> Row:
        """Apply what came back, evaluate the model where that is due, and record the round."""
        if self._drawn is None:
            raise InputError("complete must come after draw, got none; draw first")
        drawn, self._drawn = self._drawn, None
        # A diverging run leaves float64; its loss says so, and `stop` ends it.
        with np.errstate(over="ignore", invalid="ignore"):
            self.state, seen = applied(
                self.state,
                self.server,
                drawn.draw,
                reply,
                weights=self.backend.weights,
                learning_rate=drawn.learning_rate,
                shown=hasattr(self.sampler, "see"),
            )
            self._show(seen)
            row = self._evaluated(self._row(drawn, reply, seen.draw))
        if self.phase.until is None:
            row = row._replace(sustained_loss=sustained_loss(self.rows, row))
        row = row._replace(ended=self.phase.ending(self._stop).reason(row))
        self._record(row)
        return row

    def outcome(self) -> Outcome:
        """Return what the run came to."""
        known = self._known()
        plan = plan_of(self.sampler, self.state.sampler, known)
        profile = known.blank_profile if plan.profile is None else plan.profile
        return Outcome(History(self.rows), self.state, plan.design, profile, plan.notes)

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
        return known._replace(round=state.round, seconds=state.seconds)

    def _expected_seconds(self, plan: Plan, known: Known) -> float:
        """Return how long the round is expected to last; computed once for each design."""
        before, expected = self._expected
        if before is None or before.design is not plan.design:
            times = known.times if plan.profile is None else plan.profile.times
            expected = math.nan if times is None else plan.design.expected_round_time(times)
            self._expected = plan, expected
        return expected

    def _show(self, seen: Seen) -> None:
        """Let a sampler that wants to look at the updates do so."""
        see = getattr(self.sampler, "see", None)
        if see is not None and seen.draw.clients.size:
            self.state = self.state._replace(sampler=see(self.state.sampler, seen))

    def _row(self, drawn: _Drawn, reply: Reply, used: Draw) -> Row:
        """Describe the round, with the estimate of the loss in the place of the loss."""
        estimate = float(used.weights @ reply.losses) if reply.losses.size else math.nan
        return Row(
            self.state.phase,
            self.state.round,
            self.state.seconds,
            estimate,
            math.nan,
            drawn.expected,
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
            missing=np.setdiff1d(drawn.draw.clients, reply.clients, assume_unique=True),
            refused=reply.refused,
            waiting_seconds=drawn.waited,
            tier=drawn.draw.tier,
            why=drawn.why,
        )

    def _evaluated(self, row: Row) -> Row:
        """Put the evaluated loss in its place, where it is due: the only place that decides."""
        before = self.rows[-1]
        if before.phase == row.phase and before.evaluated and not row.clients.size:  # same model
            return row._replace(loss=before.loss, accuracy=before.accuracy)
        every = self._evaluate_every
        rule = self.phase.ending(self._stop)
        promise = rule.promise(row)
        unknown = not row.losses.size and not self._stop.blind
        due = bool(promise) or unknown or (every > 0 and row.round % every == 0)
        found = self.backend.evaluate(self.state.parameters, due=due)
        if found is not None:
            row = row._replace(accuracy=found.accuracy)
            if not (self._stop.blind and math.isnan(found.loss)):
                return row._replace(loss=found.loss)
        unmeasured = row._replace(loss=math.nan)
        # An estimate that nobody could check must not end the run.
        return unmeasured if promise and rule.promise(unmeasured) != promise else row

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
            self._journal.record(self.state, row, self._rng)

    def _end(self, row: Row) -> None:
        ended = self.phase.over(self._stop, self.state, row)
        self.state = self.state._replace(ended=ended)


def train(
    backend: Backend,
    sampler: Sampler,
    *,
    watch: Callable[[Row], object] | None = None,
    **how: Any,
) -> Outcome:
    """Train until `stop` says so; the arguments are those of `Run`, `watch` sees every row."""
    run = Run(backend, sampler, **how)
    while not run.ended:
        with np.errstate(over="ignore", invalid="ignore"):
            backend.submit(run.draw())
            reply = backend.collect()
        row = run.complete(reply)
        if watch is not None:
            watch(row)
    return run.outcome()


def _drawn(design: Design, known: Known, rng: np.random.Generator) -> Draw:
    """Draw among those who are present."""
    present = known.present
    if present is None or present.all():
        return design.draw(rng)
    if not present[: design.n].any():
        raise InputError(
            f"sampler must return a design for those present, got one for the first {design.n} of "
            f"{known.n} clients, of whom nobody is; solve again when others come"
        )
    return design.among(present).draw(rng)
