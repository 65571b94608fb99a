"""A server that remembers is unbiased, and forgets memory that does not help."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedpace.checks import FloatArray, IntArray
from fedpace.errors import InputError
from fedpace.samplers.pace import Pace
from fedpace.sampling.design import Draw, WithReplacement
from fedpace.sampling.tiers import Tiered
from fedpace.seeds import Seeds
from fedpace.servers.average import Average
from fedpace.servers.build import AverageBuffers, server_for
from fedpace.servers.memory import Memory, Remembered, _log_off
from fedpace.training.backend import Reply
from fedpace.training.stopping import Stop, constant
from fedpace.training.train import train
from fedpace.training.updates import RoundUpdates, Started
from tests.training.fakes import Fixed, Fleet, small_simulator

N, SIZE, RATE = 5, 3, 0.1
SHARES = np.array([0.4, 0.2, 0.2, 0.1, 0.1])


def stepped(
    server: Any, state: Any, start: FloatArray, draw: Draw, updates: FloatArray, **more: Any
) -> tuple[FloatArray, Any]:
    ones = np.ones(draw.clients.size)
    reply = Reply(draw.clients, updates[draw.clients], ones, ones)
    seen = RoundUpdates(start, more.get("rate", RATE), draw, reply, more.get("shares", SHARES))
    seen = seen._replace(present=more.get("present"))
    found: tuple[FloatArray, Any] = server.step(state, seen)
    return found


def remembered(seed: int = 0, *, beta: float = 0.6) -> Remembered:
    updates = np.random.default_rng(seed).normal(size=(4, SIZE)).astype(np.float32)
    return in_slots(np.array([4, 0, 2, 1]), updates, agreed=beta)


def in_slots(clients: IntArray, updates: NDArray[np.float32], *, agreed: float) -> Remembered:
    """Return a memory of these clients' updates over their rates."""
    slots = np.full(N, -1)
    slots[clients] = np.arange(clients.size)
    return Remembered(
        slots=slots,
        clients=clients,
        used=np.zeros(clients.size, dtype=np.int64),
        updates=updates,
        shares=np.zeros((2, clients.size)),
        totals=np.empty((0, updates.shape[1])),
        agreed=agreed,
        squares=1.0,
        count=0,
    )


@given(seed=st.integers(0, 10**6), beta=st.floats(-0.5, 1.5))
@settings(max_examples=30, deadline=None)
def test_the_mean_over_all_samples_is_full_participation(seed: int, beta: float) -> None:
    rng = np.random.default_rng(seed)
    start, updates = rng.normal(size=SIZE), rng.normal(size=(N, SIZE))
    design = Tiered([0, 0, 1, 1, 1], [0.7, 0.3], [1, 1, 0.8, 0.7, 0.5], SHARES)
    mean = np.zeros(SIZE)
    for chance, draw in design.samples():
        mean += chance * stepped(Memory(), remembered(seed, beta=beta), start, draw, updates)[0]
    np.testing.assert_allclose(mean, start + SHARES @ updates, atol=1e-6)


def test_the_mean_over_all_draws_with_replacement_is_full_participation() -> None:
    rng = np.random.default_rng(1)
    start, updates = rng.normal(size=SIZE), rng.normal(size=(N, SIZE))
    mean = np.zeros(SIZE)
    for pair in itertools.product(range(N), repeat=2):
        clients, counts = np.unique(pair, return_counts=True)
        draw = Draw(clients, counts * SHARES[clients] * N / 2)
        mean += stepped(Memory(), remembered(), start, draw, updates)[0] / N**2
    np.testing.assert_allclose(mean, start + SHARES @ updates, atol=1e-6)


HERE = np.array([True, False, True, False, True])


def mean_among_those_here(server: Any, updates: FloatArray) -> FloatArray:
    """Return the mean step over all draws of one of those here."""
    shares, mean = HERE * SHARES / (HERE * SHARES).sum(), np.zeros(SIZE)
    for client in np.flatnonzero(HERE):
        draw = Draw(np.array([client]), np.array([3 * shares[client]]))
        mean += stepped(server, remembered(), np.zeros(SIZE), draw, updates, present=HERE)[0] / 3
    return mean


def test_with_clients_away_the_mean_is_that_of_those_here_and_the_memory_of_the_others() -> None:
    updates = np.random.default_rng(4).normal(size=(N, SIZE))
    here = HERE * SHARES @ updates / (HERE * SHARES).sum()
    memory = remembered()
    of_client_1 = RATE * 0.6 * SHARES[1] * memory["updates"][-1]  # of client 3 there is none
    expected = (1 - 0.6 * SHARES[1]) * here + of_client_1
    np.testing.assert_allclose(mean_among_those_here(Memory(), updates), expected, atol=1e-6)


def test_published_servers_count_what_is_remembered_whoever_is_there() -> None:
    updates = np.random.default_rng(4).normal(size=(N, SIZE))
    memory, shares = remembered(), HERE * SHARES / (HERE * SHARES).sum()
    clients = memory["clients"]
    kept = RATE * 0.6 * (SHARES - shares)[clients] @ memory["updates"]
    found = mean_among_those_here(Memory(beta=0.6), updates)
    np.testing.assert_allclose(found, shares @ updates + kept, atol=1e-6)


def test_where_updates_do_not_change_memory_takes_away_all_variance() -> None:
    rng = np.random.default_rng(2)
    start, updates = rng.normal(size=SIZE), rng.normal(size=(N, SIZE))
    for client in range(N):
        state = in_slots(np.arange(N), (updates / RATE).astype(np.float32), agreed=1.0)
        draw = Draw(np.array([client]), np.array([SHARES[client] * N]))
        model, _ = stepped(Memory(), state, start, draw, updates)
        np.testing.assert_allclose(model, start + SHARES @ updates, rtol=1e-5)


@pytest.mark.parametrize("beta", [0.0, -3.0])
def test_without_agreement_it_is_the_average(beta: float) -> None:
    rng = np.random.default_rng(3)
    start, updates = rng.normal(size=SIZE), rng.normal(size=(N, SIZE))
    draw = Draw(np.array([1, 4]), np.array([0.7, 0.2]))
    model, _ = stepped(Memory(), remembered(beta=beta), start, draw, updates)
    np.testing.assert_allclose(model, start + draw.weights @ updates[draw.clients])


def test_beta_is_the_regression_on_what_was_remembered_over_the_rates() -> None:
    server, start = Memory(), np.zeros(1)
    state = server.init(start)
    draw = Draw(np.array([0]), np.array([0.5]))
    models = []
    for update, rate in ((4.0, 2.0), (1.0, 1.0), (1.0, 1.0)):
        sent = np.array([[update]])
        model, state = stepped(server, state, start, draw, sent, rate=rate, shares=np.ones(1))
        models.append(float(model[0]))
    # Over its rate the first update is 2, the others 1. Nothing is known in the first two rounds;
    # then β = 0.5·1·2 / (0.5·2·2) = 1/2, and h = 1.
    assert models == [2.0, 0.5, 0.5 * 1.0 + 0.5 * (1.0 - 0.5)]
    assert state["agreed"] == pytest.approx(0.9 * 1.0 + 0.5)
    assert state["squares"] == pytest.approx(0.9 * 2.0 + 0.5)


def test_memory_that_does_not_help_fades() -> None:
    rng, server = np.random.default_rng(0), Memory()
    state = server.init(np.zeros(50))
    for _ in range(40):
        updates = rng.normal(size=(N, 50))
        _, state = stepped(server, state, np.zeros(50), Draw(np.arange(N), SHARES), updates)
    assert abs(state["agreed"] / state["squares"]) < 0.2


def test_only_the_latest_clients_are_remembered_where_room_is_short() -> None:
    server, start = Memory(most=2 * SIZE), np.zeros(SIZE)
    state = server.init(start)
    for client in (0, 1, 0, 3):
        draw = Draw(np.array([client]), np.ones(1))
        _, state = stepped(server, state, start, draw, np.ones((N, SIZE)))
    assert sorted(state["clients"]) == [0, 3]
    assert state["updates"].shape == (2, SIZE)


class LookingAtAll:
    """Memory that recalls single updates from a dict and adds up all of them in every step."""

    def __init__(self, room: int, beta: float | None) -> None:
        self.room, self.beta = room, beta
        self.known: dict[int, FloatArray] = {}
        self.agreed = self.squares = 0.0

    def step(self, seen: RoundUpdates) -> FloatArray:
        size, shares = seen.parameters.size, seen.weights
        measured = min(max(self.agreed / self.squares, 0), 1) if self.squares else 0.0
        beta = measured if self.beta is None else self.beta
        here = np.ones(N, dtype=np.bool_) if seen.present is None else seen.present
        part = shares[here].sum() if self.beta is None else 1.0
        away = [i for i in self.known if not here[i]] if part < 1 else []
        rest = 1 - beta * shares[away].sum()
        clients = seen.draw.clients.tolist()
        before = [self.known.get(i, np.zeros(size)) for i in clients]
        step = np.zeros(size)
        for i, update in self.known.items():
            step += beta * shares[i] * update * (1.0 if i in away else rest / part)
        for weight, update, old in zip(seen.draw.weights, seen.reply.updates, before, strict=True):
            step += rest * weight * (update / seen.learning_rate - beta * old)
        self.agreed, self.squares = 0.9 * self.agreed, 0.9 * self.squares
        for place, i in enumerate(clients):
            latest, importance = (
                seen.reply.updates[place] / RATE,
                shares[i] * seen.draw.weights[place],
            )
            self.agreed += importance * (latest @ before[place])
            self.squares += importance * (before[place] @ before[place])
        for place, i in enumerate(clients):
            self.known.pop(i, None)
            self.known[i] = (seen.reply.updates[place] / RATE).astype(np.float32).astype(float)
        self.known = dict([*self.known.items()][-self.room :])
        return np.asarray(seen.parameters + seen.learning_rate * step, dtype=np.float64)


@pytest.mark.parametrize("beta", [None, 1.0])
@pytest.mark.parametrize("room", [2, N])
@pytest.mark.parametrize("precision", [np.float32, np.float64])
def test_what_is_kept_by_differences_is_the_sum_over_all(
    beta: float | None, room: int, precision: type[np.floating[Any]]
) -> None:
    """Clients come and go, the least recent make room, and their parts of the data change."""
    rng, size = np.random.default_rng(0), 90
    server, oracle = Memory(most=room * size, beta=beta), LookingAtAll(room, beta)
    model, usual = np.zeros(size), rng.normal(size=(N, size))
    state = server.init(model)
    for step in range(60):
        draw = Draw(np.sort(rng.permutation(N)[: rng.integers(1, 4)]), rng.random(3))
        draw = draw._replace(weights=draw.weights[: draw.clients.size])
        shares = SHARES if step < 30 else np.full(N, 1 / N)
        here = None if step % 3 else rng.random(N) < 0.7
        if here is not None:
            here[draw.clients] = True
        updates = (usual + rng.normal(size=(N, size))).astype(precision)
        ones = np.ones(draw.clients.size)
        reply = Reply(draw.clients, updates[draw.clients], ones, ones)
        seen = RoundUpdates(model, RATE, draw, reply, shares, present=here)
        model.setflags(write=False)
        reply.updates.setflags(write=False)
        expected = oracle.step(seen)
        model, state = server.step(state, seen)
        np.testing.assert_allclose(model, expected, rtol=1e-5, atol=1e-5)
        assert state["agreed"] == pytest.approx(oracle.agreed, rel=1e-4)
        assert len(state["updates"]) <= room


def test_memory_that_would_hold_few_is_off_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    rng, server = np.random.default_rng(0), Memory(most=SIZE, beta=1.0)
    _log_off.cache_clear()
    start, state = np.zeros(SIZE), server.init(np.zeros(SIZE))
    for _ in range(3):
        updates = rng.normal(size=(N, SIZE))
        draw = Draw(np.arange(N), SHARES)
        model, state = stepped(server, state, start, draw, updates)
        np.testing.assert_allclose(model, SHARES @ updates)
    (line,) = caplog.messages
    assert "memory is off: 1 of 5 clients fit" in line
    assert not state["updates"].size


def test_what_is_no_number_is_not_remembered() -> None:
    updates = np.full((N, SIZE), np.nan)
    draw = Draw(np.array([0]), np.ones(1))
    _, after = stepped(Memory(), remembered(), np.zeros(SIZE), draw, updates)
    np.testing.assert_array_equal(after["updates"], remembered()["updates"])
    assert after["agreed"] == pytest.approx(0.9 * 0.6)


def test_buffers_of_flower_hand_on_what_was_seen() -> None:
    inner: Any = Memory()
    server = AverageBuffers(inner, np.array([True, False, True]))
    start = np.zeros(SIZE)
    draw = Draw(np.array([0]), np.ones(1))
    model, _ = stepped(server, server.init(start), start, draw, np.ones((N, SIZE)))
    np.testing.assert_allclose(model, np.ones(SIZE))
    plain, _ = stepped(
        AverageBuffers(Average(), server.trained), None, start, draw, np.ones((N, SIZE))
    )
    np.testing.assert_allclose(plain, np.ones(SIZE))


def test_auto_is_what_the_sampler_draws_best_with() -> None:
    design = WithReplacement(np.full(2, 0.5), 1, np.full(2, 0.5))
    plain = Fixed(design)
    assert isinstance(server_for("auto", plain), Average)
    assert isinstance(server_for("auto", Pace(k=2)), Memory)
    assert isinstance(server_for("memory", plain), Memory)


def test_a_run_with_memory_learns_and_remembers_everyone() -> None:
    backend = small_simulator(2)
    design = WithReplacement(np.full(6, 1 / 6), 3, backend.weights)
    how: dict[str, Any] = {"schedule": constant(0.1), "stop": Stop(rounds=40), "seeds": Seeds(0)}
    outcome = train(backend, Fixed(design), server=Memory(), **how)
    assert outcome.history.rows[-1].loss < 0.9 * outcome.history.rows[0].loss
    assert sorted(outcome.state.server["clients"].tolist()) == list(range(6))


def test_an_old_update_counts_with_the_rate_of_the_step() -> None:
    draw = Draw(np.array([1]), np.array([2.0]))
    reply = Reply(draw.clients, np.array([[0.8, 0.0, -0.4]]), np.ones(1), np.ones(1))
    begun = Started(np.array([0.4]), [np.zeros(SIZE)], np.array([3]))
    seen = RoundUpdates(np.zeros(SIZE), 0.1, draw, reply, SHARES, started=begun, version=9)
    server = Memory()
    model, _ = server.step(server.init(np.zeros(SIZE)), seen)
    np.testing.assert_allclose(model, [0.4, 0.0, -0.2])


def test_a_rate_that_nobody_knows_is_taken_to_be_constant() -> None:
    models = []
    for rate in (0.1, float("nan")):
        fleet = Fleet()
        fixed = Fixed(WithReplacement(np.full(4, 1 / 4), 2, fleet.weights))
        how: dict[str, Any] = {"stop": Stop(rounds=12), "seeds": Seeds(0), "server": Memory()}
        models.append(train(fleet, fixed, schedule=constant(rate), **how).state.parameters)
    np.testing.assert_allclose(models[0], models[1], rtol=1e-5)


def test_rounds_go_as_far_where_half_of_the_clients_are_away() -> None:
    fleet = Fleet(samples=np.ones(4), there=lambda _tasks: [True, False, True, False])
    fixed = Fixed(WithReplacement(np.full(4, 1 / 4), 2, np.full(4, 1 / 4)))
    how: dict[str, Any] = {"stop": Stop(rounds=40), "seeds": Seeds(0), "server": Memory()}
    model = train(fleet, fixed, schedule=constant(0.1), **how).state.parameters
    np.testing.assert_allclose(model.sum(), 40)  # everybody's update adds 1
    np.testing.assert_allclose(model[[1, 3]], 0)


@pytest.mark.parametrize(
    ("name", "number"), [("clients", 2**62), ("clients", -5), ("slots", 4), ("slots", -2)]
)
def test_a_memory_of_clients_that_are_not_there_is_refused(name: str, number: int) -> None:
    state = remembered(beta=0.0)  # also while memory counts for nothing, before it is looked at
    state[name][1] = number  # type: ignore[literal-required]
    draw = Draw(np.array([1]), np.array([1.0]))
    with pytest.raises(InputError, match=f"{name} of the server's memory must be from -1 to"):
        stepped(Memory(), state, np.zeros(SIZE), draw, np.ones((N, SIZE)))
