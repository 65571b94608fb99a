"""Conformance suites for designs, samplers, servers and backends, yours as well as ours."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedpace.checks import FloatArray, IntArray
from fedpace.profile import Profile
from fedpace.samplers.solve import Solve
from fedpace.sampling.design import Design, Draw
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


# Draws for each mean: enough to detect a weight that is wrong by a tenth.
DRAWS = 2000
# Draws of two generators in the same state.
REPEATS = 20
# Standard errors that a mean may be off by; one in 2 million is off by more.
ERRORS = 5
# With fewer weights than this, the largest weight bounds their spread.
FEW = 30
# Tolerance of a mean without any spread.
ROUNDING = 1e-9


def check_design(
    make: Callable[[Profile, int], Design], *, exact_time: bool = True, seed: int = 0
) -> None:
    """Raise AssertionError unless designs have the properties that `Design` promises.

    On a few small fleets, with all clients present or some: clients are distinct, ascending and
    present; weights are positive and p_i on average; no weight exceeds K times `largest_weight`;
    the expected round time is that of the draws; the variance term is at least 0; clients keep
    their numbers; and the draw depends on the generator only. Means are compared within five
    standard errors of 2000 draws.

    Parameters
    ----------
    make, seed : callable, int
        Makes a design from a profile and K, such as a scheme does, and the seed of the draws.
    exact_time : bool
        Whether `expected_round_time` is exact. Otherwise it must only lie between the times of
        the fastest and the slowest client present.

    Examples
    --------
    >>> from fedpace import SCHEMES
    >>> check_design(SCHEMES["uniform"])
    """
    rng = np.random.default_rng(seed)
    for profile, k in _fleets():
        design = make(profile, k)
        for present, those in _attendances(design, profile.n):
            _Trial(those, profile, k, present, exact_time).check(rng)


def _fleets() -> Iterator[tuple[Profile, int]]:
    """Yield one client, six with ties, and twelve without; with a K each."""
    yield Profile([1.0], [2.0], [1.0]), 2
    alike = Profile(np.arange(1, 7) / 21, [1, 1, 2, 2, 4, 4], [1, 2, 1, 3, 1, 2])
    yield alike, 1
    yield alike, 4
    rank = np.arange(1, 13)
    yield Profile.from_samples(60 / rank, 1 + (5 * rank) % 12, 1 + rank % 3), 3


def _attendances(design: Design, n: int) -> Iterator[tuple[NDArray[np.bool_], Design]]:
    """Yield the clients present, and the design among them."""
    number = np.arange(n)
    even, third = number % 2 == 0, number % 3 == 0
    yield np.ones(n, np.bool_), design
    yield even, design.among(even)
    yield even, design.among(np.append(even, [True, True]))  # two joined after the design
    yield number == n - 1, design.among(number == n - 1)
    yield even & third, design.among(even).among(third)


class _Trial(NamedTuple):
    """A design and its fleet."""

    design: Design
    profile: Profile
    k: int
    present: NDArray[np.bool_]
    exact_time: bool

    def check(self, rng: np.random.Generator) -> None:
        """Check its properties, then its draws."""
        self._check_figures()
        self._check_repeats(int(rng.integers(2**32)))
        draws = [self.design.draw(rng) for _ in range(DRAWS)]
        for draw in draws:
            self._check_draw(draw)
        self._check_weights(draws)
        if self.exact_time:
            self._check_time(draws)

    def _check_figures(self) -> None:
        n, times = self.profile.n, self.profile.times[self.present]
        time = self.design.expected_round_time(self.profile.times)
        variance = self.design.variance_term(self.profile)
        if self.design.n != n:
            raise self._broken(f"n must be {n}, got {self.design.n}")
        if not times.min() * (1 - ROUNDING) <= time <= times.max() * (1 + ROUNDING):
            raise self._broken(
                f"expected_round_time must lie between {times.min():g} and {times.max():g}, "
                f"got {time:g}"
            )
        if not (np.isfinite(variance) and variance >= 0):
            raise self._broken(f"variance_term must be finite and at least 0, got {variance:g}")

    def _check_repeats(self, seed: int) -> None:
        one, other = (np.random.default_rng(seed) for _ in range(2))
        for _ in range(REPEATS):
            a, b = self.design.draw(one), self.design.draw(other)
            same = np.array_equal(a.clients, b.clients) and np.array_equal(a.weights, b.weights)
            if same and a.tier == b.tier:
                continue
            raise self._broken("draws with the same generator must be the same, got two different")

    def _check_draw(self, draw: Draw) -> None:
        clients, weights = draw.clients, draw.weights
        if not (clients.size and (clients[1:] > clients[:-1]).all()):
            raise self._broken(f"clients must be distinct and ascending, got {clients}")
        if clients[0] < 0 or clients[-1] >= self.profile.n or not self.present[clients].all():
            raise self._broken(f"clients must be among those present, got {clients}")
        if not (weights.shape == clients.shape and (np.isfinite(weights) & (weights > 0)).all()):
            raise self._broken(f"weights must be positive and finite, one each, got {weights}")
        if weights.max() > (most := self.k * self.design.largest_weight) * (1 + ROUNDING):
            raise self._broken(
                f"weights must be at most K times largest_weight = {most:g}, got {weights.max():g}"
            )

    def _check_weights(self, draws: list[Draw]) -> None:
        weights = np.zeros((DRAWS, self.profile.n))
        for row, draw in zip(weights, draws, strict=True):
            row[draw.clients] = draw.weights
        shares = np.where(self.present, self.profile.weights, 0.0)
        shares /= shares.sum()
        mean, error = weights.mean(axis=0), _error(weights)
        few = (weights > 0).sum(axis=0) < FEW
        # A weight of mean p that never exceeds w has a variance of at most p w.
        bound = np.sqrt(shares * self.design.largest_weight / DRAWS)
        error[few] = np.maximum(error, bound)[few]
        excess = np.abs(mean - shares) - ERRORS * error
        if excess.max() > ROUNDING:
            worst = int(np.argmax(excess))
            raise self._broken(
                f"the weights of client {worst} must be {shares[worst]:.4g} on average, got "
                f"{mean[worst]:.4g} with a standard error of {error[worst]:.2g}: draws are biased"
            )

    def _check_time(self, draws: list[Draw]) -> None:
        slowest = np.array([self.profile.times[draw.clients].max() for draw in draws])
        mean, error = float(slowest.mean()), float(_error(slowest))
        said = self.design.expected_round_time(self.profile.times)
        if abs(mean - said) > ERRORS * error + ROUNDING * mean:
            raise self._broken(
                f"expected_round_time must be the mean time of the slowest drawn, {mean:.4g} with "
                f"a standard error of {error:.2g}, got {said:.4g}"
            )

    def _broken(self, sentence: str) -> AssertionError:
        there = np.flatnonzero(self.present).tolist()
        return AssertionError(f"{sentence} (N = {self.profile.n}, K = {self.k}, present: {there})")


def _error(values: FloatArray) -> FloatArray:
    """Return the standard error of the mean over the first axis."""
    error: FloatArray = np.std(values, axis=0, ddof=1) / np.sqrt(len(values))
    return error
