"""Synchronous training: draw, collect, apply, record, round by round [Luo22, Alg. 1]."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedpace.checks import FloatArray
from fedpace.errors import InputError
from fedpace.sampling.design import BaseDesign, Draw, as_design
from fedpace.training.asynchronous import AsynchronousTraining
from fedpace.training.backend import NO_CLIENTS, NO_VALUES, BaseBackend, Probing, Reply, Task
from fedpace.training.history import Row
from fedpace.training.sampler import BaseSampler, Plan, SamplerContext
from fedpace.training.server import apply_replies
from fedpace.training.share_limit import (
    LATEST,
    MOST_DRAWS,
    DrawShares,
    agreement,
    asked_share,
    keep_rarest,
    limit_shares,
    update_draw_shares,
)
from fedpace.training.training import Training


class _Drawn(NamedTuple):
    """A draw whose replies are still to come."""

    draw: Draw
    expected: float
    waited: float
    why: str
    task: Task
    probing: Probing
    present: NDArray[np.bool_] | None


class SynchronousTraining(Training):
    """Train in rounds: call `advance` for a round, or `draw` and `complete` in turn.

    Parameters
    ----------
    backend, sampler, **how
        As in `Training`.
    take, deadline : int ≥ 1, float > 0, optional
        A round ends when `take` clients have answered, or after `deadline` seconds.
    """

    def __init__(
        self,
        backend: BaseBackend,
        sampler: BaseSampler,
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
        """Draw among the clients present and return their task; `parameters` replaces the model."""
        if self._drawn is not None:
            raise InputError("draw must come after complete, got two in a row; complete the round")
        state = self.state
        presence = self.backend.present(state.round, state.seconds)
        if presence.waited:
            state = state._replace(seconds=state.seconds + presence.waited)
        if parameters is not None:
            state = state._replace(parameters=parameters)
        rate = self._schedule(state.round)
        task = Task(NO_CLIENTS, state.parameters, state.round, rate, state.seconds)
        probing = Probing(self.backend, task)
        context = self._context()._replace(
            present=presence.clients, seconds=state.seconds, probe=probing
        )
        plan = self.sampler.plan(state.sampler, context)
        self.state = state
        draw = self._draw_within_limit(as_design(plan.design), context)
        self.state = self.state._replace(seconds=state.seconds + probing.seconds)
        task = task._replace(
            clients=draw.clients,
            seconds=self.state.seconds,
            take=self._take if draw.take is None else draw.take,
            deadline=self._deadline,
            losses=self.sampler.reads_losses,
            local_steps=plan.steps_of(draw.clients),
        )
        expected = self._expected_seconds(plan, context)
        self._drawn = _Drawn(
            draw,
            expected,
            presence.waited,
            plan.why,
            task,
            probing,
            presence.clients,
        )
        return task

    def complete(self, reply: Reply) -> Row:
        """Apply the replies, evaluate the model where that is due, and record the round."""
        if self._drawn is None:
            raise InputError("complete must come after draw, got none; draw first")
        drawn, self._drawn = self._drawn, None
        asked, reply = self._select_replies(drawn, reply)
        places = np.searchsorted(asked.clients, reply.clients)  # replies come in any order
        # A diverging run leaves float64; its loss says so, and `stop` ends it.
        with np.errstate(over="ignore", invalid="ignore"):
            self.state, updates = apply_replies(
                self.state,
                self.server,
                Draw(reply.clients, asked.weights[places]),
                reply,
                asked=asked.clients,
                weights=self.backend.weights,
                learning_rate=drawn.task.learning_rate,
                with_residuals=self.sampler.sees_updates,
                present=drawn.present,
                corrected=not self.sampler.biased,
            )
            self._show(
                updates._replace(probes=drawn.probing.probes, times=self.backend.usual_times)
            )
            row = self._row(drawn._replace(draw=asked), reply, updates.draw)
            del drawn, reply, updates  # the memory of large models, before the next is packed
            return self._finish(row)

    def advance(self) -> list[Row]:
        """Do one round."""
        self.backend.submit(self.draw())
        return [self.complete(self.backend.collect())]

    def hand_over(self) -> Training:
        """Return this training, or the asynchronous one that the sampler hands over to.

        The rest of the rounds becomes as many updates.
        """
        found = self.sampler.handover(self.state.sampler, self._context())
        if found is None or self._drawn is not None:
            return self
        stop, updates = self._stop, None
        if stop.rounds is not None:
            done = sum(row.clients.size + row.missing.size for row in self.rows)
            updates = max(stop.rounds * found.at_once - done, 0)
            stop = replace(stop, rounds=self.state.round + updates)  # a step has one at least
        return AsynchronousTraining(
            self.backend,
            found.sampler,
            at_once=found.at_once,
            updates=updates,
            schedule=self._schedule,
            stop=stop,
            seeds=self._seeds,
            server=self.server,
            evaluate_every=self._evaluate_every,
            callbacks=self._callbacks,
            name=self._name,
            continues=(self, found.state),
        )

    def _select_replies(self, drawn: _Drawn, reply: Reply) -> tuple[Draw, Reply]:
        """Return the part of a draw and of its replies that counts.

        Of more than `take` replies the first count; then the sampler may choose.
        """
        draw, take = drawn.draw, drawn.task.take
        if take is not None and reply.clients.size > take:
            keep = np.zeros(reply.clients.size, dtype=np.bool_)
            keep[np.argsort(reply.seconds, kind="stable")[:take]] = True
            reply = reply.only(keep)
        if not reply.clients.size:
            return draw, reply
        wanted = self.sampler.choose(self.state.sampler, draw, reply, self._rng)
        if wanted is None:
            return draw, reply
        left_out = np.setdiff1d(reply.clients, wanted.clients, assume_unique=True)
        weights = draw.weights.copy()
        weights[np.searchsorted(draw.clients, wanted.clients)] = wanted.weights
        rest = ~np.isin(draw.clients, left_out)
        draw = draw._replace(clients=draw.clients[rest], weights=weights[rest])
        return draw, reply.only(np.isin(reply.clients, wanted.clients))

    def _draw_within_limit(self, design: BaseDesign, context: SamplerContext) -> Draw:
        """Draw; where the backend limits shares, leave out clients drawn too often."""
        share = self.backend.largest_share
        if share >= 1:
            return _draw(design, context, self._rng)
        asked = asked_share(self.state.asked, len(self.rows) - 1, context.n)
        before, drawn = self.state.draws, self.state.often
        for draws in range(1, MOST_DRAWS + 1):
            draw = _draw(design, context, self._rng)
            drawn = update_draw_shares(drawn, draw, context.n)
            often = DrawShares(drawn, asked, before)
            kept = limit_shares(draw, often, share=share, rng=self._rng)
            if kept.clients.size or not draw.clients.size:  # a design may draw no client
                break
            if draws == MOST_DRAWS:
                kept = keep_rarest(draw, often, share=share)
        after = (1 - LATEST) * before + LATEST * draws if before != draws else before
        self.state = self.state._replace(often=drawn, draws=after)
        return kept

    def _expected_seconds(self, plan: Plan, context: SamplerContext) -> float:
        """Return the expected duration of the round; computed once per design."""
        before, expected = self._expected
        if before is None or before.design is not plan.design:
            times = context.times if plan.profile is None else plan.profile.times
            design = as_design(plan.design)
            expected = math.nan if times is None else design.expected_round_time(times)
            self._expected = plan, expected
        return expected

    def _row(self, drawn: _Drawn, reply: Reply, used: Draw) -> Row:
        """Describe the round."""
        return self._describe(
            reply,
            used,
            drawn.expected,
            missing=np.setdiff1d(drawn.draw.clients, reply.clients, assume_unique=True),
            refused=reply.refused,
            left_out=np.setdiff1d(drawn.task.clients, drawn.draw.clients, assume_unique=True),
            waiting_seconds=drawn.waited,
            tier=drawn.draw.tier,
            why=drawn.why,
            agreement=NO_VALUES
            if self.backend.largest_share >= 1
            else agreement(used.weights, reply),
            **drawn.probing.costs(drawn.task, reply),
        )


def _draw(design: BaseDesign, context: SamplerContext, rng: np.random.Generator) -> Draw:
    """Draw among the clients present."""
    present = context.present
    if present is None or present.all():
        return design.draw(rng)
    if not present[: design.n].any():
        raise InputError(
            f"sampler must return a design for those present, got one for the first {design.n} of "
            f"{context.n} clients, none of them present; solve again when others join"
        )
    return design.among(present).draw(rng)
