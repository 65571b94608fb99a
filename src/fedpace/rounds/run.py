"""One training: draw, collect, apply, record [Luo22, Alg. 1]."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from fedpace.checks import FloatArray, IntArray
from fedpace.errors import InputError, listed
from fedpace.profile import Profile
from fedpace.rounds.backend import Backend, Reply, Task
from fedpace.rounds.history import History
from fedpace.rounds.journal import Journal
from fedpace.rounds.rows import Row
from fedpace.rounds.sampler import START, Known, Phase, Plan, Sampler, phase_of, plan_of
from fedpace.rounds.schedules import Schedule
from fedpace.rounds.server import Average, Server
from fedpace.rounds.state import State
from fedpace.rounds.stopping import TIME_IS_UP, Stop
from fedpace.sampling.design import Design, Draw
from fedpace.seeds import Seeds

# Floor on the estimated response rate; limits the correction for missing replies to 5×.
LEAST_CHANCE = 0.2


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


class Run:
    """Hold one training; whoever drives it calls `draw` and `complete` in turn.

    Parameters
    ----------
    backend : Backend
        Where clients train.
    sampler : Sampler
        What to draw from.
    schedule : function of the round
        The learning rate.
    stop : Stop
        When to end.
    seeds : Seeds
        For the draws.
    server : Server
        What becomes of the replies.
    evaluate_every : int ≥ 0
        Evaluate the global loss in every n-th round, and estimate it from the clients' own
        losses in between; 0 for never. An estimate that would end the run is checked first.
    journal : Journal, optional
        Is told every finished round; rounds that it knows already are not done again.

    Attributes
    ----------
    state : State
        Where it stands.
    rows : list of Row
        What happened so far.
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
        self.server: Server = Average() if server is None else server
        self._schedule, self._stop, self._seeds = schedule, stop, seeds
        self._evaluate_every, self._journal = evaluate_every, journal
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
        """Draw among those present, and return what they are to do.

        Whoever keeps the model elsewhere gives its `parameters`.
        """
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
        self._drawn = _Drawn(draw, self._expected_seconds(plan, known), presence.waited)
        rate = self._schedule(state.round)
        return Task(draw.clients, state.parameters, state.round, rate, state.seconds)

    def complete(self, reply: Reply) -> Row:
        """Apply what came back, evaluate the model where that is due, and record the round."""
        if self._drawn is None:
            raise InputError("complete must come after draw, got none; draw first")
        drawn, self._drawn = self._drawn, None
        # A diverging run leaves float64; its loss says so, and `stop` ends it.
        with np.errstate(over="ignore", invalid="ignore"):
            used, missing = self._applied(drawn.draw, reply)
            row = self._row(reply, used, missing)._replace(
                expected_round_seconds=drawn.expected, waiting_seconds=drawn.waited
            )
            row = self._evaluated(row)
        row = row._replace(ended=self._ending.reason(row))
        self._record(row)
        return row

    def outcome(self) -> Outcome:
        """Return what the run came to."""
        known = self._known()
        plan = plan_of(self.sampler, self.state.sampler, known)
        profile = known.blank_profile if plan.profile is None else plan.profile
        return Outcome(History(self.rows), self.state, plan.design, profile, plan.notes)

    def _begin(self) -> None:
        backend = self.backend
        parameters = backend.initial()
        self.state = State(
            parameters,
            0,
            0.0,
            sampler=self.sampler.init(backend.weights.size),
            server=self.server.init(parameters),
        )
        phase = self.phase
        self.state = self.state._replace(phase=phase.name)
        self._rng = self._seeds.stream(*phase.stream)
        found = backend.evaluate(parameters, due=not self._stop.blind)
        loss, accuracy = (math.nan, math.nan) if found is None else found
        row = Row(phase.name, 0, 0.0, loss, accuracy, 0.0, 0.0)
        if phase.until is not None:
            self._keep(START, row)
        self._record(row)

    def _resumed(self, journal: Journal) -> bool:
        """Take over what the journal knows; return whether that is anything."""
        found = journal.resume()
        if found is None:
            return False
        self.state, self.rows = found.state, list(found.rows)
        self._rng = self._seeds.stream(*self.phase.stream)
        self._rng.bit_generator.state = found.rng
        self.state = self.state._replace(ended=self._over(self.rows[-1]))
        return True

    def _known(self) -> Known:
        backend, state = self.backend, self.state
        return Known(backend.weights, backend.usual_times, round=state.round, seconds=state.seconds)

    def _expected_seconds(self, plan: Plan, known: Known) -> float:
        """Return how long the round is expected to last; computed once for each design."""
        before, expected = self._expected
        if before is None or before.design is not plan.design:
            times = known.times if plan.profile is None else plan.profile.times
            expected = math.nan if times is None else plan.design.expected_round_time(times)
            self._expected = plan, expected
        return expected

    def _applied(self, draw: Draw, reply: Reply) -> tuple[Draw, IntArray]:
        """Let the server make the next model; return the weights used, and who is missing.

        Client i's update is weighted by weights_i / π_i, where π_i is the chance that it answers
        as estimated from *earlier* rounds, (answers + 1) / (draws + 1) and at least 0.2. If
        answering is independent of what the update says, and π_i right, the aggregate is
        unbiased: see docs/method.md. If nobody answers the model stays as it is.
        """
        state, n = self.state, self.backend.weights.size
        asked, answered = _grown(state.asked, n), _grown(state.answered, n)
        places = np.searchsorted(draw.clients, reply.clients)  # replies come in any order
        chances = (answered[reply.clients] + 1) / (asked[reply.clients] + 1)
        used = Draw(reply.clients, draw.weights[places] / np.maximum(chances, LEAST_CHANCE))
        parameters, server = state.parameters, state.server
        if reply.clients.size:
            parameters, server = self.server.apply(server, parameters, used, reply)
        asked[draw.clients] += 1
        answered[reply.clients] += 1
        self.state = state._replace(
            parameters=parameters,
            round=state.round + 1,
            seconds=state.seconds + reply.lasted,
            asked=asked,
            answered=answered,
            server=server,
        )
        return used, np.delete(draw.clients, places)

    def _row(self, reply: Reply, used: Draw, missing: IntArray) -> Row:
        """Describe the round, with the estimate of the loss in the place of the loss."""
        estimate = float(used.weights @ reply.losses) if reply.losses.size else math.nan
        return Row(
            self.state.phase,
            self.state.round,
            self.state.seconds,
            estimate,
            math.nan,
            math.nan,
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
            missing=missing,
            refused=reply.refused,
        )

    def _evaluated(self, row: Row) -> Row:
        """Put the evaluated loss in its place, where it is due: the only place that decides."""
        before = self.rows[-1]
        if before.phase == row.phase and before.evaluated and not row.clients.size:  # same model
            return row._replace(loss=before.loss, accuracy=before.accuracy)
        every = self._evaluate_every
        promise = self._ending.reason(row)
        unknown = not row.losses.size and not self._stop.blind
        due = bool(promise) or unknown or (every > 0 and row.round % every == 0)
        found = self.backend.evaluate(self.state.parameters, due=due)
        if found is not None:
            row = row._replace(accuracy=found.accuracy)
            if not (self._stop.blind and math.isnan(found.loss)):
                return row._replace(loss=found.loss)
        unmeasured = row._replace(loss=math.nan)
        # An estimate that nobody could check must not end the run.
        return unmeasured if promise and self._ending.reason(unmeasured) != promise else row

    @property
    def _ending(self) -> Stop:
        """The rule that holds in this phase."""
        until = self.phase.until
        if until is None:
            return self._stop
        return replace(until, seconds=self._stop.seconds, blind=self._stop.blind)

    def _record(self, row: Row) -> None:
        """Let the sampler learn, change the phase if it says so, and keep the round."""
        phase, state = self.phase, self.state
        self.rows.append(row)
        self.state = state._replace(sampler=self.sampler.observe(state.sampler, row))
        if self.phase.name != phase.name:
            self._change_phase(phase, row)
        self.state = self.state._replace(ended=self._over(row))
        if self._journal is not None:
            self._journal.record(self.state, row, self._rng)

    def _over(self, row: Row) -> str:
        """Return why the run is over, by the rule of now: a resumed run may be given more."""
        phase, limit = self.phase, self._stop.seconds
        if phase.until is not None:
            late = row.ended == TIME_IS_UP and limit is not None and row.seconds >= limit
            return TIME_IS_UP if late else ""
        if phase.model is not None and row.phase != phase.name:
            model = self._kept(phase.model)
            row = row._replace(**{name: model[name] for name in ("round", "loss", "accuracy")})
        return self._stop.reason(row) if row.round else ""

    def _change_phase(self, old: Phase, row: Row) -> None:
        """Begin the next phase, with the model that it asks for."""
        if old.until is not None:
            self._keep(old.name, row)
        phase = self.phase
        self._rng = self._seeds.stream(*phase.stream)
        state = self.state._replace(phase=phase.name)
        if phase.model is not None:
            model = self._kept(phase.model)
            state = state._replace(
                parameters=model["parameters"],
                round=model["round"],
                server=deepcopy(model["server"]),
            )
        self.state = state

    def _kept(self, name: str) -> Mapping[str, Any]:
        models = self.state.models
        if name not in models:
            raise InputError(
                f"phase must begin with a model that was kept, got '{name}' of "
                f"{listed(models) or 'none'}; give the first phase, and that one, an `until`"
            )
        return models[name]  # type: ignore[no-any-return]

    def _keep(self, name: str, row: Row) -> None:
        """Keep the model, with the server's memory of it, for a later phase to begin with."""
        model = {
            "parameters": self.state.parameters,
            "server": deepcopy(self.state.server),
            "round": row.round,
            "loss": row.loss,
            "accuracy": row.accuracy,
        }
        self.state = self.state._replace(models={**self.state.models, name: model})


def train(
    backend: Backend,
    sampler: Sampler,
    *,
    watch: Callable[[Row], object] | None = None,
    **how: Any,
) -> Outcome:
    """Train until `stop` says so; the arguments are those of `Run`.

    `watch` is called with every row as it comes.
    """
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


def _grown(counts: IntArray, n: int) -> IntArray:
    """Return the counts, with zeros for clients that have come since: no copy in most rounds."""
    more = n - counts.size
    return np.concatenate([counts, np.zeros(more, dtype=np.int64)]) if more > 0 else counts
