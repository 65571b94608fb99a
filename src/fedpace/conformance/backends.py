"""What any backend must keep to."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedpace.checks import IntArray
from fedpace.conformance.saying import must
from fedpace.estimation.solve import Solve
from fedpace.rounds.backend import Backend, Reply, Task
from fedpace.rounds.run import train
from fedpace.rounds.schedules import constant
from fedpace.rounds.stopping import Stop
from fedpace.sampling.schemes import SCHEMES
from fedpace.seeds import Seeds


def check_backend(make: Callable[[], Backend]) -> None:
    """Train a few rounds on a backend, and raise AssertionError where it breaks a rule.

    The rules: weights are positive and sum to 1; who is present is one truth value per client; a
    task is given out without waiting, and its replies are collected all at once or one by one;
    a reply tells of clients that were asked, each once; with nothing given out there is nothing
    to collect; an evaluation that is not due costs the clients nothing; training works in rounds
    and without.

    Parameters
    ----------
    make : callable
        Returns a backend of at least two clients that are there and answer.
    """
    backend = make()
    _check_fleet(backend)
    here = _present(backend)
    must(here.size >= 2, f"at least two clients must be present, got {here.size}")
    must(backend.collect().clients.size == 0, "with nothing given out, a reply must be empty")
    backend.submit(Task(here, backend.initial(), 0, 0.01, 0.0))
    whole = backend.collect()
    _check_reply(whole, here, backend.initial().size)
    must(np.array_equal(whole.clients, here), "all who were asked must be in the reply, in order")
    _check_one_by_one(backend, here[:2])
    found = backend.evaluate(backend.initial(), due=False)
    must(found is None or len(found) == 2, "an evaluation must be loss and accuracy, or None")
    _check_training(backend)
    _check_stream(backend)


def _check_fleet(backend: Backend) -> None:
    weights = backend.weights
    must(bool((weights > 0).all()), f"weights must be positive, got {weights.min()}")
    must(abs(weights.sum() - 1) < 1e-9, f"weights must sum to 1, got {weights.sum()}")
    times = backend.usual_times
    if times is not None:
        must(times.shape == weights.shape, "usual_times must be one per client, or None")
        must(bool((times > 0).all()), f"usual_times must be positive, got {times.min()}")
    start = backend.initial()
    must(start.ndim == 1 and bool(np.isfinite(start).all()), "the model must be a finite vector")
    must(np.array_equal(start, backend.initial()), "the initial model must always be the same")


def _present(backend: Backend) -> IntArray:
    presence = backend.present(0, 0.0)
    must(presence.waited >= 0, f"waited must be at least 0 seconds, got {presence.waited}")
    n = backend.weights.size
    if presence.clients is None:
        return np.arange(n)
    must(
        presence.clients.shape == (n,) and presence.clients.dtype == np.bool_,
        f"present must be one truth value for each of {n} clients, got {presence.clients!r:.80}",
    )
    return np.flatnonzero(presence.clients)


def _check_reply(reply: Reply, asked: IntArray, size: int) -> None:
    count = reply.clients.size
    must(bool(np.isin(reply.clients, asked).all()), "only who was asked may be in a reply")
    must(np.unique(reply.clients).size == count, "a client may be in a reply only once")
    must(
        reply.updates.shape == (count, size),
        f"updates must have shape {(count, size)}, got {reply.updates.shape}",
    )
    for name in ("seconds", "grad_norms"):
        column = getattr(reply, name)
        must(column.shape == (count,), f"{name} must be one per client, got {column.shape}")
    for name in ("losses", "computing_seconds", "bytes_down", "bytes_up"):
        column = getattr(reply, name)
        must(column.size in (0, count), f"{name} must be one per client or none")
    must(bool((reply.seconds >= 0).all()), "seconds must be at least 0")
    must(reply.lasted >= 0, f"a reply must last at least 0 seconds, got {reply.lasted}")


def _check_one_by_one(backend: Backend, pair: IntArray) -> None:
    """Give out two tasks of one client each, and collect them one after the other."""
    for client in pair.tolist():
        backend.submit(Task(np.array([client]), backend.initial(), 0, 0.01, 0.0))
    replies = [backend.collect(1)]
    while sum(each.clients.size for each in replies) < pair.size:
        more = backend.collect(1)
        must(more.clients.size > 0, "the second of two single tasks must come back as well")
        replies.append(more)
    came = np.sort(np.concatenate([each.clients for each in replies]))
    must(np.array_equal(came, pair), "both of two single tasks must come back, each once")
    for reply in replies:
        _check_reply(reply, pair, backend.initial().size)


def _check_training(backend: Backend) -> None:
    outcome = train(
        backend,
        Solve(SCHEMES["weighted"], k=2),
        schedule=constant(0.01),
        stop=Stop(rounds=3),
        seeds=Seeds(0),
    )
    seconds = [row.seconds for row in outcome.history.rows]
    must(seconds == sorted(seconds), f"the clock must not go back, got {seconds}")
    must(outcome.state.round == 3, f"three rounds must be three, got {outcome.state.round}")


def _check_stream(backend: Backend) -> None:
    """Train without a barrier: two clients at work, each sent out again as soon as it is back."""
    outcome = train(
        backend,
        Solve(SCHEMES["weighted"], k=2),
        schedule=constant(0.01),
        stop=Stop(rounds=4),
        seeds=Seeds(0),
        mode="asynchronous",
        at_once=2,
        buffer=1,
    )
    rows = outcome.history.rows[1:]
    seconds = [row.seconds for row in rows]
    must(seconds == sorted(seconds), f"the clock must not go back, got {seconds}")
    counts = [row.clients.size + row.missing.size for row in rows]
    must(counts == [1] * 4, f"each of four steps must be of one update, got {counts}")
    backend.collect()
