"""What becomes of the replies: the base class of servers, and one step of a run."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpace.adapt import adapt
from fedpace.checks import FloatArray, IntArray
from fedpace.errors import InputError
from fedpace.sampling.design import Draw
from fedpace.training.backend import Differences, Reply
from fedpace.training.checkpoint import State
from fedpace.training.updates import RoundUpdates, Started, add_weighted, blocks, length_of

# Floor on the estimated response rate; limits the correction for missing replies to 5×.
LEAST_CHANCE = 0.2


class BaseServer:
    """Make the next model from the replies: w ← w + Σ_i weights_i (w_i − w) [Luo22, Lemma 1].

    A subclass overrides `apply`, or `step` where it needs learning rates, weights p_i or the models
    that updates began with. State is as free as a sampler's.

    Attributes
    ----------
    oldest : int ≥ 0, optional
        In asynchronous training, refuse updates that are older than this many steps.
    needs_rounds : str
        Why the server does not work in asynchronous training, and the remedy; empty if it does.
    scales : bool
        Whether half the weights make half the step. If not, a planned length of steps is left out,
        and asynchronous steps take a quarter of the updates under way.
    """

    oldest: int | None = None
    needs_rounds: str = ""
    scales: bool = True

    def init(self, parameters: FloatArray) -> Any:  # noqa: ARG002
        """Return the state before the first round."""
        return None

    def apply(
        self, state: Any, parameters: FloatArray, draw: Draw, reply: Reply
    ) -> tuple[FloatArray, Any]:
        """Return the new model and the new state.

        `draw` holds the clients that answered, in the order of `reply`, and their weights. It is
        not called for a round without replies. The weights are not renormalised: that they sum to 1
        only on average is what keeps the model unbiased.
        """
        return add_weighted(parameters, draw.weights, reply.updates), state

    def step(self, state: Any, updates: RoundUpdates) -> tuple[FloatArray, Any]:
        """Return the new model and the new state, from everything known of the round."""
        draw = updates.draw._replace(weights=updates.step_weights)
        return self.apply(state, updates.parameters, draw, updates.reply)

    def weigh(self, updates: RoundUpdates) -> FloatArray:
        """Return the weights of the updates, by default those of the draw."""
        return updates.draw.weights

    def residual_norms(self, state: Any, updates: RoundUpdates) -> FloatArray:  # noqa: ARG002
        """Return the lengths of what the server weights, over the learning rate.

        By default those of the updates.
        """
        rows: Any = updates.reply.updates
        if isinstance(rows, Differences):
            return np.asarray(rows.lengths / updates.scales)
        if rows.dtype == np.float32:
            return np.array([length_of(row) for row in rows]) / updates.scales
        squares = np.zeros(updates.draw.clients.size)
        for piece in blocks(squares.size, updates.parameters.size):
            part = updates.directions(piece)
            squares += np.vecdot(part, part)
        return np.sqrt(squares)


def as_server(value: Any, *, argument: str = "server") -> BaseServer:
    """Return a server; an object that does not subclass `BaseServer` is wrapped."""
    return adapt(value, BaseServer, argument=argument, required=("apply",))


def check_asynchronous(server: BaseServer) -> None:
    """Refuse a server that needs rounds."""
    if server.needs_rounds:
        name = type(server).__name__
        raise InputError(
            f"server must work in asynchronous training, got {name}: {server.needs_rounds}"
        )


def apply_replies(
    state: State,
    server: BaseServer,
    came: Draw,
    reply: Reply,
    *,
    asked: IntArray,
    weights: FloatArray,
    learning_rate: float,
    with_residuals: bool = False,
    started: Started | None = None,
    step_rate: float | None = None,
    present: NDArray[np.bool_] | None = None,
    corrected: bool = True,
    step: float | None = None,
) -> tuple[State, RoundUpdates]:
    """Let the server make the next model; return the state after it, and the updates.

    `came` holds those who answered, in the order of `reply`, `asked` all who were asked (in
    asynchronous training a client may be there twice). Client i's update is weighted by
    weights_i / π_i, where π_i is its response rate as estimated from *earlier* rounds,
    (answers + 1) / (draws + 1) and at least 0.2. If answering is independent of the update, and π_i
    is right, the aggregate is unbiased: see docs/method.md. Without any reply the model stays as it
    is. Unless weights are to be `corrected`, π_i is taken to be 1.
    """
    draws, answers = _extend(state.asked, weights.size), _extend(state.answered, weights.size)
    chances = (answers[came.clients] + 1) / (draws[came.clients] + 1) if corrected else 1.0
    used = Draw(came.clients, came.weights / np.maximum(chances, LEAST_CHANCE))
    updates = RoundUpdates(
        state.parameters,
        rate_or_one(learning_rate),
        used,
        reply,
        weights,
        started=started,
        version=state.round,
        step_rate=None if step_rate is None else rate_or_one(step_rate),
        present=present,
        step=step,
    )
    if reply.clients.size:
        updates = updates._replace(draw=used._replace(weights=server.weigh(updates)))
        if with_residuals:
            norms = server.residual_norms(state.server, updates)
            updates = updates._replace(residual_norms=norms)
        parameters, memory = server.step(state.server, updates)
        state = state._replace(parameters=parameters, server=memory)
    np.add.at(draws, asked, 1)
    np.add.at(answers, reply.clients, 1)
    seconds = state.seconds + reply.lasted
    return state._replace(
        round=state.round + 1, seconds=seconds, asked=draws, answered=answers
    ), updates


def rate_or_one(learning_rate: float) -> float:
    """Return the rate, or 1 where it is unknown."""
    return learning_rate if 0 < learning_rate < np.inf else 1.0


def _extend(counts: IntArray, n: int) -> IntArray:
    """Return the counts, with zeros for new clients; no copy in most rounds."""
    more = n - counts.size
    return np.append(counts, np.zeros(more, dtype=np.int64)) if more > 0 else counts
