"""Algorithm 1: rounds with a given design."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedpace.profile import FloatArray
from fedpace.rounds.aggregate import aggregate
from fedpace.rounds.backend import Backend
from fedpace.rounds.history import Row
from fedpace.rounds.schedules import Schedule
from fedpace.rounds.stopping import Stop
from fedpace.sampling.design import Design

NOBODY = (np.empty(0, dtype=np.int64), np.empty(0), np.empty(0), np.empty(0))


class State(NamedTuple):
    """Where training stands: the model, the rounds and seconds behind it, and why it ended."""

    parameters: FloatArray
    round: int
    seconds: float
    ended: str = ""


def start(backend: Backend, phase: str = "train") -> tuple[State, Row]:
    """Return the initial model and the row that describes it."""
    parameters = backend.initial()
    loss, accuracy = backend.evaluate(parameters)
    row = Row(phase, 0, 0.0, loss, accuracy, 0.0, 0.0, *NOBODY)
    return State(parameters, 0, 0.0), row


def train(
    backend: Backend,
    design: Design,
    state: State,
    *,
    schedule: Schedule,
    stop: Stop,
    rng: np.random.Generator,
    phase: str = "train",
) -> tuple[State, list[Row]]:
    """Draw, run, aggregate, record, until `stop` says so [Luo22, Alg. 1].

    The clock advances by the slowest drawn client of each round. The loop knows no policy: what
    to draw from is the design, and changing it means calling `train` again with another.
    """
    rows: list[Row] = []
    expected = design.expected_round_time(backend.usual_times)
    parameters, index, seconds, _ = state
    while True:
        draw = design.draw(rng)
        # A diverging run leaves float64; its loss says so, and `stop` ends it.
        with np.errstate(over="ignore", invalid="ignore"):
            reply = backend.run(parameters, draw, round_index=index, learning_rate=schedule(index))
            parameters = aggregate(parameters, draw.weights, reply.updates)
            loss, accuracy = backend.evaluate(parameters)
        lasted = float(reply.seconds.max())
        index, seconds = index + 1, seconds + lasted
        rows.append(
            Row(
                phase,
                index,
                seconds,
                loss,
                accuracy,
                expected,
                lasted,
                draw.clients,
                draw.weights,
                reply.seconds,
                reply.grad_norms,
            )
        )
        if reason := stop.reason(rows[-1]):
            return State(parameters, index, seconds, reason), rows
