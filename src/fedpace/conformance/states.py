"""What any sampler and any server must keep to: both have a state that the run carries."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from fedpace.checks import IntArray
from fedpace.conformance.saying import must
from fedpace.rounds.backend import Reply
from fedpace.rounds.rows import Row
from fedpace.rounds.sampler import Known, Sampler, phase_of, plan_of
from fedpace.rounds.seen import Seen
from fedpace.rounds.server import Server, next_model
from fedpace.rounds.state import packed, unpacked
from fedpace.sampling.design import Draw

ROUNDS = 40
# Parameters of made-up models, what spoils one update in most rounds, and learning rates; 1 is
# what a run gives where it does not know it.
SIZE = 5
BAD = (1.0, 0.0, math.nan, 1e300, 1.0, math.inf, 1e6)
RATES = (0.1, 0.05, 1.0)


def check_sampler(make: Callable[[], Sampler], *, n: int = 6, seed: int = 0) -> None:
    """Let a sampler see made-up rounds, and raise AssertionError where it breaks a rule.

    The rules: its state can be stored, and is all that a design depends on besides what is known;
    it bears clients that do not answer, numbers that nobody reported, clients that are away, and
    clients that come later; it always returns a design for somebody who is there. Where it has
    `see`, it bears updates that are zero, huge or no numbers, and leaves them as they are.

    Parameters
    ----------
    make : callable
        Returns a sampler; called twice, for a run and for the same run resumed.
    n, seed : int
        Clients at the start, at least 4; more come later. The seed of the made-up rounds.

    Examples
    --------
    >>> from fedpace import SCHEMES, Solve
    >>> check_sampler(lambda: Solve(SCHEMES["optimal-mean"], k=3, warm_up=5, refresh=4))
    """
    rng = np.random.default_rng(seed)
    sampler = make()
    state = sampler.init(n)
    state = sampler.observe(state, _row(sampler, state, 0, np.empty(0, dtype=np.int64), rng))
    for index in range(1, ROUNDS):
        known = _known(n + (index > ROUNDS // 2), index, rng)
        state = _stored(state, index)
        clients = _drawn(sampler, state, known, index)
        again = _drawn(make(), _stored(state, index), known, index)
        must(
            np.array_equal(clients, again),
            f"round {index}: the same state must give the same draw in a sampler made anew; keep "
            "in the state whatever the design depends on",
        )
        row = _row(sampler, state, index, clients, rng)
        state = _shown(sampler, state, row, known, rng)
        state = sampler.observe(state, row)


def check_server(make: Callable[[], Server], *, size: int = 5, seed: int = 0) -> None:
    """Let a server apply made-up replies, and raise AssertionError where it breaks a rule.

    The rules: the new model is a finite vector as long as the old one, which stays as it is; the
    state can be stored, and is all that the next model depends on besides its arguments; it
    bears one reply as well as many, and clients that it has not seen before.

    Parameters
    ----------
    make : callable
        Returns a server; called twice, for a run and for the same run resumed.
    size, seed : int
        The number of parameters, at least 1, and the seed of the made-up replies.

    Examples
    --------
    >>> from fedpace import Adam
    >>> check_server(lambda: Adam(rate=0.1))
    """
    rng = np.random.default_rng(seed)
    server = make()
    parameters = rng.normal(size=size)
    state = server.init(parameters)
    for index in range(10):
        draw, reply = _replies(1 + index % 4, size, rng, newest=3 + index)
        stored = _stored(state, index)
        state = unpacked(packed(state))
        before = parameters.copy()
        shares = np.full(4 + index, 1 / (4 + index))
        seen = Seen(parameters, 0.1, draw, reply, shares, reply.updates / 0.1)
        after, next_state = next_model(server, state, seen)
        again, _ = next_model(make(), stored, seen._replace(parameters=before.copy()))
        must(np.array_equal(parameters, before), f"round {index}: the old model must stay as it is")
        must(
            after.shape == (size,) and bool(np.isfinite(after).all()),
            f"round {index}: the new model must be {size} finite numbers, got {after!r:.80}",
        )
        must(
            np.array_equal(after, again),
            f"round {index}: the same state must give the same model in a server made anew; keep "
            "in the state whatever the model depends on",
        )
        parameters, state = after, next_state


def _stored(state: Any, index: int) -> Any:
    """Return a state as it is after a checkpoint was written and read."""
    try:
        return unpacked({name: array.copy() for name, array in packed(state).items()})
    except ValueError as error:
        raise AssertionError(f"round {index}: the state must be storable: {error}") from None


def _known(n: int, index: int, rng: np.random.Generator) -> Known:
    """Return what is known in a round: in some everyone is there, in some few, at least one."""
    weights = np.arange(1.0, n + 1)
    present = None if index % 3 == 0 else rng.random(n) < 0.5
    if present is not None:
        present[rng.integers(n)] = True
    times = None if index % 2 else np.linspace(1.0, 3.0, n)
    return Known(weights / weights.sum(), times, present, index - 1, 2.0 * index)


def _drawn(sampler: Sampler, state: Any, known: Known, index: int) -> IntArray:
    design: Any = plan_of(sampler, state, known).design
    must(design.n <= known.n, f"round {index}: a design must not know more clients than there are")
    rng = np.random.default_rng(index)
    if hasattr(design, "next"):
        here = np.ones(known.n, dtype=np.bool_) if known.present is None else known.present
        turn = design.next(here[: design.n], design.start(rng), rng)
        return np.array([turn.client])
    if known.present is None or known.present.all():
        clients: IntArray = design.draw(rng).clients
        return clients
    must(
        bool(known.present[: design.n].any()),
        f"round {index}: the design must know somebody who is present; solve again if nobody is",
    )
    among: IntArray = design.among(known.present).draw(rng).clients
    return among


def _row(
    sampler: Sampler, state: Any, index: int, drawn: IntArray, rng: np.random.Generator
) -> Row:
    """Make up a round: now and then nobody answers, somebody is missing, or reports no norm."""
    answers = rng.random(drawn.size) < (0.0 if index % 7 == 0 else 0.8)
    clients = drawn[answers]
    norms = rng.exponential(1.0, clients.size)
    if index % 5 == 0:
        norms[:] = math.nan
    phase = phase_of(sampler, state)
    row = Row(
        phase.name,
        index,
        2.0 * index,
        3.0 / (1 + index),
        0.5,
        math.nan,
        2.0,
        clients,
        rng.random(clients.size),
        0.5 + rng.random(clients.size),
        norms,
        missing=drawn[~answers],
    )
    return row if phase.until is None else row._replace(ended=phase.until.reason(row))


def _shown(sampler: Sampler, state: Any, row: Row, known: Known, rng: np.random.Generator) -> Any:
    """Show the updates of a round to a sampler that wants to see them: now and then a bad one."""
    see = getattr(sampler, "see", None)
    if see is None or not row.clients.size:
        return state
    updates = rng.normal(size=(row.clients.size, SIZE))
    updates[0] *= BAD[row.round % len(BAD)]
    reply = Reply(row.clients, updates, row.client_seconds, row.grad_norms)
    rate = RATES[row.round % len(RATES)]
    with np.errstate(over="ignore"):
        residuals = updates / rate
    draw = Draw(row.clients, row.weights)
    seen = Seen(rng.normal(size=SIZE), rate, draw, reply, known.weights, residuals)
    before = (seen.parameters.copy(), updates.copy(), known.weights.copy())
    with np.errstate(over="ignore", invalid="ignore"):  # as in a run
        state = see(state, seen)
    after = (seen.parameters, updates, known.weights)
    same = all(np.array_equal(a, b, equal_nan=True) for a, b in zip(before, after, strict=True))
    must(same, f"round {row.round}: see must leave the model, updates and weights as they are")
    return state


def _replies(count: int, size: int, rng: np.random.Generator, *, newest: int) -> tuple[Draw, Reply]:
    clients = np.sort(rng.choice(newest + 1, count, replace=False))
    ones = np.ones(count)
    reply = Reply(clients, rng.normal(size=(count, size)), ones, ones)
    return Draw(clients, rng.random(count) + 0.1), reply
