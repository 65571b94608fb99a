"""Algorithm 1: rounds with a given design."""

from __future__ import annotations

import math

import numpy as np

from fedpace.checks import FloatArray, IntArray
from fedpace.rounds.aggregate import aggregate
from fedpace.rounds.backend import NOBODY, Backend, Reply
from fedpace.rounds.history import Row
from fedpace.rounds.journal import Journal
from fedpace.rounds.schedules import Schedule
from fedpace.rounds.state import State
from fedpace.rounds.stopping import Stop
from fedpace.sampling.design import Design, Draw

# So rarely does even the worst client answer: its updates weigh at most five times as much.
LEAST_CHANCE = 0.2
# Why training ends if nobody whom the design knows is there: it wants another design.
NOBODY_LEFT = "nobody left"
EMPTY = (NOBODY, np.empty(0), np.empty(0), np.empty(0))


def start(
    backend: Backend, phase: str = "train", journal: Journal | None = None
) -> tuple[State, Row]:
    """Return the initial model and the row that describes it."""
    if journal is not None and (found := journal.resume("start")) is not None:
        return found.state, found.rows[0]._replace(phase=phase)
    parameters = backend.initial()
    loss, accuracy = backend.evaluate(parameters)
    row = Row(phase, 0, 0.0, loss, accuracy, 0.0, 0.0, *EMPTY)
    state = State(parameters, 0, 0.0)
    if journal is not None:
        journal.record("start", state, row)
    return state, row


def train(
    backend: Backend,
    design: Design,
    state: State,
    *,
    schedule: Schedule,
    stop: Stop,
    rng: np.random.Generator,
    phase: str = "train",
    journal: Journal | None = None,
    evaluate_every: int = 1,
    times: FloatArray | None = None,
) -> tuple[State, list[Row]]:
    """Draw, run, aggregate, record, until `stop` says so [Luo22, Alg. 1].

    The clock advances by the slowest drawn client of each round. The loop knows no policy: what
    to draw from is the design, and changing it means calling `train` again with another. Where
    everyone present came later than the design, training ends with "nobody left", as it stands.

    Parameters
    ----------
    backend, design, state, schedule, stop, rng
        Where, from whom, from where on, how fast, until when, and by which luck.
    phase : str
        What the rows are called.
    journal : Journal, optional
        Is told every finished round; rounds that it knows already are not done again.
    evaluate_every : int ≥ 0
        The global loss is evaluated in every so many rounds, and estimated from the clients' own
        losses in between; 0 for never. An estimate that would end the run is checked first.
    times : array of N, optional
        t_i, for the expected round time, where the backend does not know them.
    """
    rows: list[Row] = []
    known = backend.usual_times if times is None else times
    expected = math.nan if known is None else design.expected_round_time(known)
    if journal is not None and (found := journal.resume(phase)) is not None:
        rows = [row for row in found.rows if row.round > state.round]
        if rows:
            state = found.state._replace(ended="")
            rng.bit_generator.state = found.rng
            if reason := stop.reason(rows[-1]):
                return state._replace(ended=reason), rows
    while True:
        draw = drawn(backend, design, rng)
        if draw is None:
            return state._replace(ended=NOBODY_LEFT), rows
        index = state.round
        # A diverging run leaves float64; its loss says so, and `stop` ends it.
        with np.errstate(over="ignore", invalid="ignore"):
            reply = backend.run(
                state.parameters, draw, round_index=index, learning_rate=schedule(index)
            )
            state, weights, missing = completed(state, draw, reply, n=backend.weights.size)
            row = row_of(phase, state, reply, weights, missing, expected)
            due = evaluate_every > 0 and state.round % evaluate_every == 0
            if rows and rows[-1].evaluated and not reply.clients.size:  # the same model
                row = row._replace(loss=rows[-1].loss, accuracy=rows[-1].accuracy)
            elif due or not reply.losses.size or stop.reason(row):
                loss, accuracy = backend.evaluate(state.parameters)
                row = row._replace(loss=loss, accuracy=accuracy)
        rows.append(row)
        reason = stop.reason(row)
        state = state._replace(ended=reason or "")
        if journal is not None:
            journal.record(phase, state, row, rng)
        if reason:
            return state, rows


def drawn(backend: Backend, design: Design, rng: np.random.Generator) -> Draw | None:
    """Draw among those who are present; None if all of them came later than the design."""
    present = backend.present()
    if present is None or present.all():
        return design.draw(rng)
    if not present[: design.n].any():
        return None
    return design.among(present).draw(rng)


def completed(
    state: State, draw: Draw, reply: Reply, *, n: int
) -> tuple[State, FloatArray, IntArray]:
    """Aggregate what came back; return the state after the round, the weights used, who is missing.

    Client i's update is weighted by weights_i / π_i, where π_i is the chance that it answers as
    estimated from *earlier* rounds, (answers + 1) / (draws + 1) and at least 0.2. If answering is
    independent of what the update says, and π_i right, the aggregate is unbiased: see
    docs/method.md. If nobody answers the model stays as it is.
    """
    asked, answered = _counts(state.asked, n), _counts(state.answered, n)
    here = np.isin(draw.clients, reply.clients)
    chances = (answered[reply.clients] + 1) / (asked[reply.clients] + 1)
    weights = draw.weights[here] / np.maximum(chances, LEAST_CHANCE)
    parameters = state.parameters
    if reply.clients.size:
        parameters = aggregate(parameters, weights, reply.updates)
    asked[draw.clients] += 1
    answered[reply.clients] += 1
    seconds = state.seconds + _lasted(reply)
    after = State(parameters, state.round + 1, seconds, asked=asked, answered=answered)
    return after, weights, draw.clients[~here]


def _lasted(reply: Reply) -> float:
    return float(reply.seconds.max(initial=0.0)) if reply.waited is None else reply.waited


def _counts(counts: IntArray, n: int) -> IntArray:
    """Return a copy with one entry per client; those who are new count from 0."""
    return np.concatenate([counts, np.zeros(n - counts.size, dtype=np.int64)])


def row_of(
    phase: str,
    state: State,
    reply: Reply,
    weights: FloatArray,
    missing: IntArray,
    expected: float,
) -> Row:
    """Describe the round, with the estimate of the loss in the place of the loss."""
    estimate = float(weights @ reply.losses) if reply.losses.size else math.nan
    return Row(
        phase,
        state.round,
        state.seconds,
        estimate,
        math.nan,
        expected,
        _lasted(reply),
        reply.clients,
        weights,
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
