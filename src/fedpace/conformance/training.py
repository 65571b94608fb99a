"""Suites for samplers, servers and backends."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from fedpace.checks import IntArray
from fedpace.samplers.solve import Solve
from fedpace.sampling.design import Draw
from fedpace.sampling.dispatch import BaseDispatch, as_any_design
from fedpace.sampling.schemes import SCHEMES
from fedpace.seeds import Seeds
from fedpace.training.backend import NO_CLIENTS, BaseBackend, Reply, Task, as_backend
from fedpace.training.checkpoint import pack, unpack
from fedpace.training.history import Row
from fedpace.training.sampler import BaseSampler, SamplerContext, as_sampler
from fedpace.training.server import BaseServer, as_server
from fedpace.training.stopping import Stop, constant
from fedpace.training.train import train
from fedpace.training.updates import RoundUpdates

ROUNDS = 40
# Parameters of synthetic models, factors of one update per round, and learning rates; 1 stands for
# an unknown rate.
SIZE = 5
BAD = (1.0, 0.0, math.nan, 1e300, 1.0, math.inf, 1e6)
RATES = (0.1, 0.05, 1.0)


def check_sampler(make: Callable[[], BaseSampler], *, n: int = 6, seed: int = 0) -> None:
    """Run a sampler on synthetic rounds; raise AssertionError if it breaks a rule.

    The rules: its state can be stored, and determines the design together with the context; it
    accepts missing replies, unreported numbers, clients that are away, and clients that join later;
    its design always has a client that is present. `see` accepts updates that are zero, huge or not
    finite, and does not change them.

    Parameters
    ----------
    make : callable
        Returns a sampler; called twice, for a run and for the same run resumed.
    n, seed : int
        Clients at the start, at least 4; more join later. The seed of the rounds.

    Examples
    --------
    >>> from fedpace import SCHEMES, Solve
    >>> check_sampler(lambda: Solve(SCHEMES["optimal-mean"], k=3, warm_up=5, refresh=4))
    """
    rng = np.random.default_rng(seed)
    sampler = as_sampler(make())
    state = sampler.init(n)
    state = sampler.observe(state, _make_row(sampler, state, 0, NO_CLIENTS, rng))
    for index in range(1, ROUNDS):
        context = _make_context(n + (index > ROUNDS // 2), index, rng)
        state = _store(state, index)
        clients = _draw(sampler, state, context, index)
        again = _draw(as_sampler(make()), _store(state, index), context, index)
        _require(
            np.array_equal(clients, again),
            f"round {index}: the same state must give the same draw in a new sampler; keep "
            "everything that the design depends on in the state",
        )
        row = _make_row(sampler, state, index, clients, rng)
        state = _show_updates(sampler, state, row, context, rng)
        state = sampler.observe(state, row)


def check_server(make: Callable[[], BaseServer], *, size: int = 5, seed: int = 0) -> None:
    """Let a server apply synthetic replies; raise AssertionError if it breaks a rule.

    The rules: the new model is a finite vector as long as the old one, which is not changed; the
    state can be stored, and determines the next model together with the arguments; it accepts one
    reply or many, and new clients.

    Parameters
    ----------
    make : callable
        Returns a server; called twice, for a run and for the same run resumed.
    size, seed : int
        The number of parameters, at least 1, and the seed of the replies.

    Examples
    --------
    >>> from fedpace import Adam
    >>> check_server(lambda: Adam(rate=0.1))
    """
    rng = np.random.default_rng(seed)
    server = as_server(make())
    parameters = rng.normal(size=size)
    state = server.init(parameters)
    for index in range(10):
        draw, reply = _make_replies(1 + index % 4, size, rng, newest=3 + index)
        stored = _store(state, index)
        state = unpack(pack(state))
        before = parameters.copy()
        shares = np.full(4 + index, 1 / (4 + index))
        norms = np.linalg.norm(reply.updates / 0.1, axis=1)
        seen = RoundUpdates(parameters, 0.1, draw, reply, shares, norms)
        after, next_state = server.step(state, seen)
        again, _ = as_server(make()).step(stored, seen._replace(parameters=before.copy()))
        _require(
            np.array_equal(parameters, before), f"round {index}: the old model must not change"
        )
        _require(
            after.shape == (size,) and bool(np.isfinite(after).all()),
            f"round {index}: the new model must be {size} finite numbers, got {after!r:.80}",
        )
        _require(
            np.array_equal(after, again),
            f"round {index}: the same state must give the same model in a new server; keep "
            "everything that the model depends on in the state",
        )
        parameters, state = after, next_state


def check_backend(make: Callable[[], BaseBackend]) -> None:
    """Train a few rounds on a backend; raise AssertionError if it breaks a rule.

    The rules: weights are positive and sum to 1; presence is one truth value per client; `submit`
    does not wait, and replies are collected all together or one by one; a reply holds clients that
    were asked, each once; without tasks the reply is empty; an evaluation that is not due costs the
    clients nothing; training works in both modes.

    Parameters
    ----------
    make : callable
        Returns a backend with at least two clients that are present and answer.
    """
    backend = as_backend(make())
    _check_fleet(backend)
    here = _present_clients(backend)
    _require(here.size >= 2, f"at least two clients must be present, got {here.size}")
    _require(backend.collect().clients.size == 0, "without tasks, a reply must be empty")
    backend.submit(Task(here, backend.initial(), 0, 0.01, 0.0))
    reply = backend.collect()
    _check_reply(reply, here, backend.initial().size)
    _require(
        np.array_equal(reply.clients, here), "all clients asked must be in the reply, in order"
    )
    _check_single_tasks(backend, here[:2])
    found = backend.evaluate(backend.initial(), due=False)
    _require(found is None or len(found) == 2, "an evaluation must be loss and accuracy, or None")
    rows = _train(backend, 3)
    _require(len(rows) == 3, f"training must end after three rounds, got {len(rows)}")
    rows = _train(backend, 4, mode="asynchronous", at_once=2, buffer=1)
    counts = [row.clients.size + row.missing.size for row in rows]
    _require(counts == [1] * 4, f"each of four steps must be of one update, got {counts}")
    backend.collect()


def _require(condition: bool, sentence: str) -> None:
    """Raise AssertionError unless the condition holds, also under `-O`."""
    if not condition:
        raise AssertionError(sentence)


def _store(state: Any, index: int) -> Any:
    """Return a state after a checkpoint was written and read."""
    try:
        return unpack({name: array.copy() for name, array in pack(state).items()})
    except ValueError as error:
        raise AssertionError(f"round {index}: the state must be storable: {error}") from None


def _make_context(n: int, index: int, rng: np.random.Generator) -> SamplerContext:
    """Return the context of a round: all clients present, or some, at least one."""
    weights = np.arange(1.0, n + 1)
    present = None if index % 3 == 0 else rng.random(n) < 0.5
    if present is not None:
        present[rng.integers(n)] = True
    times = None if index % 2 else np.linspace(1.0, 3.0, n)
    return SamplerContext(weights / weights.sum(), times, present, index - 1, 2.0 * index)


def _draw(sampler: BaseSampler, state: Any, context: SamplerContext, index: int) -> IntArray:
    design = as_any_design(sampler.plan(state, context).design)
    _require(design.n <= context.n, f"round {index}: a design must not have more clients than N")
    rng = np.random.default_rng(index)
    if isinstance(design, BaseDispatch):
        here = np.ones(context.n, dtype=np.bool_) if context.present is None else context.present
        turn = design.next(here[: design.n], design.start(rng), rng)
        return NO_CLIENTS if turn is None else np.array([turn.client])
    if context.present is None or context.present.all():
        clients: IntArray = design.draw(rng).clients
        return clients
    _require(
        bool(context.present[: design.n].any()),
        f"round {index}: the design must have a client that is present; solve again without any",
    )
    among: IntArray = design.among(context.present).draw(rng).clients
    return among


def _make_row(
    sampler: BaseSampler, state: Any, index: int, drawn: IntArray, rng: np.random.Generator
) -> Row:
    """Return a synthetic round; in some, replies or norms are missing."""
    answers = rng.random(drawn.size) < (0.0 if index % 7 == 0 else 0.8)
    clients = drawn[answers]
    norms = rng.exponential(1.0, clients.size)
    if index % 5 == 0:
        norms[:] = math.nan
    phase, loss = sampler.phase(state), 3.0 / (1 + index)
    weights, seconds = rng.random(clients.size), 0.5 + rng.random(clients.size)
    columns = (clients, weights, seconds, norms)
    row = Row(phase.name, index, 2.0 * index, loss, 0.5, math.nan, 2.0, *columns)
    row = row._replace(missing=drawn[~answers])
    return row if phase.until is None else row._replace(ended=phase.until.reason(row))


def _show_updates(
    sampler: BaseSampler, state: Any, row: Row, context: SamplerContext, rng: np.random.Generator
) -> Any:
    """Show the updates of a round to the sampler; in some rounds one is bad."""
    if not sampler.sees_updates or not row.clients.size:
        return state
    updates = rng.normal(size=(row.clients.size, SIZE))
    updates[0] *= BAD[row.round % len(BAD)]
    reply = Reply(row.clients, updates, row.client_seconds, row.grad_norms)
    rate = RATES[row.round % len(RATES)]
    with np.errstate(over="ignore"):
        norms = np.linalg.norm(updates / rate, axis=1)
    draw = Draw(row.clients, row.weights)
    seen = RoundUpdates(rng.normal(size=SIZE), rate, draw, reply, context.weights, norms)
    before = (seen.parameters.copy(), updates.copy(), context.weights.copy())
    with np.errstate(over="ignore", invalid="ignore"):  # as in a run
        state = sampler.see(state, seen)
    after = (seen.parameters, updates, context.weights)
    same = all(np.array_equal(a, b, equal_nan=True) for a, b in zip(before, after, strict=True))
    _require(same, f"round {row.round}: see must not change the model, updates and weights")
    return state


def _make_replies(
    count: int, size: int, rng: np.random.Generator, *, newest: int
) -> tuple[Draw, Reply]:
    clients = np.sort(rng.choice(newest + 1, count, replace=False))
    ones = np.ones(count)
    reply = Reply(clients, rng.normal(size=(count, size)), ones, ones)
    return Draw(clients, rng.random(count) + 0.1), reply


def _check_fleet(backend: BaseBackend) -> None:
    weights = backend.weights
    _require(bool((weights > 0).all()), f"weights must be positive, got {weights.min()}")
    _require(abs(weights.sum() - 1) < 1e-9, f"weights must sum to 1, got {weights.sum()}")
    times = backend.usual_times
    if times is not None:
        _require(times.shape == weights.shape, "usual_times must be one per client, or None")
        _require(bool((times > 0).all()), f"usual_times must be positive, got {times.min()}")
    start = backend.initial()
    finite = start.ndim == 1 and bool(np.isfinite(start).all())
    _require(finite, "the model must be a finite vector")
    _require(np.array_equal(start, backend.initial()), "the initial model must always be the same")


def _present_clients(backend: BaseBackend) -> IntArray:
    presence = backend.present(0, 0.0)
    _require(presence.waited >= 0, f"waited must be at least 0 seconds, got {presence.waited}")
    n = backend.weights.size
    if presence.clients is None:
        return np.arange(n)
    _require(
        presence.clients.shape == (n,) and presence.clients.dtype == np.bool_,
        f"present must be one truth value for each of {n} clients, got {presence.clients!r:.80}",
    )
    return np.flatnonzero(presence.clients)


def _check_reply(reply: Reply, asked: IntArray, size: int) -> None:
    count = reply.clients.size
    _require(bool(np.isin(reply.clients, asked).all()), "a reply must hold only clients asked")
    _require(np.unique(reply.clients).size == count, "a client may be in a reply only once")
    _require(
        reply.updates.shape == (count, size),
        f"updates must have shape {(count, size)}, got {reply.updates.shape}",
    )
    for name in ("seconds", "grad_norms"):
        column = getattr(reply, name)
        _require(column.shape == (count,), f"{name} must be one per client, got {column.shape}")
    for name in ("losses", "computing_seconds", "bytes_down", "bytes_up", "local_steps"):
        column = getattr(reply, name)
        _require(column.size in (0, count), f"{name} must be one per client or none")
    _require(bool((reply.seconds >= 0).all()), "seconds must be at least 0")
    _require(reply.lasted >= 0, f"a reply must last at least 0 seconds, got {reply.lasted}")


def _check_single_tasks(backend: BaseBackend, pair: IntArray) -> None:
    """Submit two tasks of one client each, and collect them one after the other."""
    for client in pair.tolist():
        backend.submit(Task(np.array([client]), backend.initial(), 0, 0.01, 0.0))
    replies = [backend.collect(1)]
    while sum(each.clients.size for each in replies) < pair.size:
        more = backend.collect(1)
        _require(more.clients.size > 0, "the second of two single tasks must be answered as well")
        replies.append(more)
    came = np.sort(np.concatenate([each.clients for each in replies]))
    _require(np.array_equal(came, pair), "both of two single tasks must be answered, each once")
    for reply in replies:
        _check_reply(reply, pair, backend.initial().size)


def _train(backend: BaseBackend, rounds: int, **mode: Any) -> list[Row]:
    """Train some rounds, or asynchronous steps; return their rows."""
    outcome = train(
        backend,
        Solve(SCHEMES["weighted"], k=2),
        schedule=constant(0.01),
        stop=Stop(rounds=rounds),
        seeds=Seeds(0),
        **mode,
    )
    rows = list(outcome.history.rows[1:])
    seconds = [row.seconds for row in rows]
    _require(seconds == sorted(seconds), f"the clock must not go back, got {seconds}")
    return rows
