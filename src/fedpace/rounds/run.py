"""One training by rounds: draw, collect, apply, record [Luo22, Alg. 1]."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedpace.checks import FloatArray
from fedpace.errors import InputError, nearest
from fedpace.rounds.backend import NOBODY, NOTHING, Backend, Reply, Task
from fedpace.rounds.limits import (
    LATEST,
    MOST_DRAWS,
    Often,
    agreement,
    asked_share,
    drawn_often,
    one_kept,
    thinned,
)
from fedpace.rounds.probing import Probing
from fedpace.rounds.rows import Row
from fedpace.rounds.sampler import Known, Plan, Sampler, chosen, plan_of
from fedpace.rounds.server import applied
from fedpace.rounds.stream import Stream
from fedpace.rounds.training import Outcome, Training
from fedpace.sampling.design import Design, Draw

# With a barrier: all of a round are waited for. Without: see `Stream`.
SYNCHRONOUS, ASYNCHRONOUS = MODES = ("synchronous", "asynchronous")


class _Drawn(NamedTuple):
    """A draw whose replies are still to come."""

    draw: Draw
    expected: float
    waited: float
    why: str
    task: Task
    probing: Probing
    present: NDArray[np.bool_] | None


class Run(Training):
    """Hold one training by rounds; whoever drives it calls `draw` and `complete` in turn.

    Parameters
    ----------
    backend, sampler, **how
        As in `Training`.
    take, deadline : int ≥ 1, float > 0, optional
        A round is over when so many have answered, or after so many seconds.
    """

    def __init__(
        self,
        backend: Backend,
        sampler: Sampler,
        *,
        take: int | None = None,
        deadline: float | None = None,
        **how: Any,
    ) -> None:
        self._take, self._deadline = take, deadline
        self._expected: tuple[Plan | None, float] = (None, math.nan)
        self._drawn: _Drawn | None = None
        super().__init__(backend, sampler, **how)

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
        rate = self._schedule(state.round)
        task = Task(NOBODY, state.parameters, state.round, rate, state.seconds)
        probing = Probing(self.backend, task)
        known = self._known()._replace(
            present=presence.clients, seconds=state.seconds, probe=probing
        )
        plan = plan_of(self.sampler, state.sampler, known)
        self.state = state
        draw = self._limited(_with_draw(plan), known)
        self.state = self.state._replace(seconds=state.seconds + probing.seconds)
        task = task._replace(
            clients=draw.clients,
            seconds=self.state.seconds,
            take=self._take if draw.take is None else draw.take,
            deadline=self._deadline,
            losses=getattr(self.sampler, "reads_losses", False),
        )
        expected = self._expected_seconds(plan, known)
        self._drawn = _Drawn(
            draw, expected, presence.waited, plan.why, task, probing, presence.clients
        )
        return task

    def complete(self, reply: Reply) -> Row:
        """Apply what came back, evaluate the model where that is due, and record the round."""
        if self._drawn is None:
            raise InputError("complete must come after draw, got none; draw first")
        drawn, self._drawn = self._drawn, None
        asked, reply = chosen(
            self.sampler, self.state.sampler, drawn.draw, reply, self._rng, take=drawn.task.take
        )
        places = np.searchsorted(asked.clients, reply.clients)  # replies come in any order
        # A diverging run leaves float64; its loss says so, and `stop` ends it.
        with np.errstate(over="ignore", invalid="ignore"):
            self.state, seen = applied(
                self.state,
                self.server,
                Draw(reply.clients, asked.weights[places]),
                reply,
                asked=asked.clients,
                weights=self.backend.weights,
                learning_rate=drawn.task.learning_rate,
                shown=hasattr(self.sampler, "see"),
                present=drawn.present,
                corrected=not getattr(self.sampler, "biased", False),
            )
            self._show(seen._replace(probes=drawn.probing.probes, times=self.backend.usual_times))
            return self._finished(self._row(drawn._replace(draw=asked), reply, seen.draw))

    def go_on(self) -> list[Row]:
        """Do one round."""
        self.backend.submit(self.draw())
        return [self.complete(self.backend.collect())]

    @property
    def _share(self) -> float:
        """The share of the rounds that one client may be in: limited where clients are remote."""
        return float(getattr(self.backend, "largest_share", 1.0))

    def _limited(self, design: Design, known: Known) -> Draw:
        """Draw, and leave out who is drawn too often, where there is a limit; again, if all are."""
        if self._share >= 1:
            return _drawn(design, known, self._rng)
        asked = asked_share(self.state.asked, len(self.rows) - 1, known.n)
        before, drawn = self.state.draws, self.state.often
        for draws in range(1, MOST_DRAWS + 1):
            draw = _drawn(design, known, self._rng)
            drawn = drawn_often(drawn, draw, known.n)
            often = Often(drawn, asked, before)
            kept = thinned(draw, often, share=self._share, rng=self._rng)
            if kept.clients.size or not draw.clients.size:  # a design may draw nobody
                break
            if draws == MOST_DRAWS:
                kept = one_kept(draw, often, share=self._share)
        after = (1 - LATEST) * before + LATEST * draws if before != draws else before
        self.state = self.state._replace(often=drawn, draws=after)
        return kept

    def _expected_seconds(self, plan: Plan, known: Known) -> float:
        """Return how long the round is expected to last; computed once for each design."""
        before, expected = self._expected
        if before is None or before.design is not plan.design:
            times = known.times if plan.profile is None else plan.profile.times
            design = _with_draw(plan)
            expected = math.nan if times is None else design.expected_round_time(times)
            self._expected = plan, expected
        return expected

    def _row(self, drawn: _Drawn, reply: Reply, used: Draw) -> Row:
        """Describe the round."""
        return self._described(
            reply,
            used,
            drawn.expected,
            missing=np.setdiff1d(drawn.draw.clients, reply.clients, assume_unique=True),
            refused=reply.refused,
            left_out=np.setdiff1d(drawn.task.clients, drawn.draw.clients, assume_unique=True),
            waiting_seconds=drawn.waited,
            tier=drawn.draw.tier,
            why=drawn.why,
            agreement=NOTHING if self._share >= 1 else agreement(used.weights, reply),
            **drawn.probing.costs(drawn.task, reply),
        )


def train(
    backend: Backend,
    sampler: Sampler,
    *,
    mode: str = SYNCHRONOUS,
    watch: Callable[[Row], object] | None = None,
    **how: Any,
) -> Outcome:
    """Train until `stop` says so; `watch` sees every row.

    The other arguments are those of `Run`, or of `Stream` where `mode` is "asynchronous".
    """
    if mode not in MODES:
        got = f"'{mode}'; {nearest(str(mode), MODES)}"
        raise InputError(f"mode must be synchronous or asynchronous, got {got}")
    run = Run(backend, sampler, **how) if mode == SYNCHRONOUS else Stream(backend, sampler, **how)
    try:
        while not run.ended:
            with np.errstate(over="ignore", invalid="ignore"):
                rows = run.go_on()
            if watch is not None:
                for row in rows:
                    watch(row)
    finally:
        run.safe()
    return run.outcome()


def _with_draw(plan: Plan) -> Design:
    """Return a plan's design, or say that it can only send out one client after another."""
    if not hasattr(plan.design, "draw"):
        raise InputError(
            f"design must have `draw` in rounds, got {type(plan.design).__name__}; choose another "
            "scheme, or mode asynchronous"
        )
    return plan.design  # type: ignore[return-value]


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
