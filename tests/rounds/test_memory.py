"""A server that remembers is unbiased, and forgets memory that does not help."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpace.checks import FloatArray
from fedpace.estimation.pace import Pace
from fedpace.estimation.solve import Solve
from fedpace.flower.buffers import Buffered
from fedpace.rounds.backend import Reply
from fedpace.rounds.memory import Memory, Remembered
from fedpace.rounds.run import train
from fedpace.rounds.schedules import constant
from fedpace.rounds.seen import Seen
from fedpace.rounds.server import Average, server_named
from fedpace.rounds.stopping import Stop
from fedpace.sampling.design import Draw, WithReplacement
from fedpace.sampling.schemes import SCHEMES
from fedpace.sampling.tiered import Tiered
from fedpace.seeds import Seeds

from .fakes import Fixed, Fleet, small_simulator

N, SIZE, RATE = 5, 3, 0.25
SHARES = np.array([0.4, 0.2, 0.2, 0.1, 0.1])


def stepped(
    state: Remembered,
    draw: Draw,
    updates: FloatArray,
    *,
    server: Any = None,
    start: FloatArray | None = None,
    shares: FloatArray = SHARES,
    rate: float = RATE,
) -> tuple[FloatArray, Remembered]:
    """Let those drawn send their row of `updates`."""
    begun = np.zeros(updates.shape[1]) if start is None else start
    ones = np.ones(draw.clients.size)
    reply = Reply(draw.clients, updates[draw.clients], ones, ones)
    seen = Seen(begun, rate, draw, reply, shares)
    made: tuple[FloatArray, Remembered] = (server or Memory()).apply(
        state, begun, draw, reply, seen=seen
    )
    return made


def remembered(seed: int = 0, *, share: float = 0.6) -> Remembered:
    """Return a memory of all but client 3, in no order."""
    rows = np.random.default_rng(seed).normal(size=(N - 1, SIZE)).astype(np.float32)
    return Remembered(clients=np.array([4, 0, 2, 1]), updates=rows, agreed=share, squares=1.0)


@given(seed=st.integers(0, 10**6), share=st.floats(-0.5, 1.5))
@settings(max_examples=30, deadline=None)
def test_the_mean_over_all_samples_is_full_participation(seed: int, share: float) -> None:
    rng = np.random.default_rng(seed)
    start, updates = rng.normal(size=SIZE), rng.normal(size=(N, SIZE))
    design = Tiered([0, 0, 1, 1, 1], [0.7, 0.3], [1, 1, 0.8, 0.7, 0.5], SHARES)
    mean = sum(
        chance * stepped(remembered(seed, share=share), draw, updates, start=start)[0]
        for chance, draw in design.samples()
    )
    # Memory is in single precision.
    np.testing.assert_allclose(mean, start + SHARES @ updates, atol=1e-6)


def test_the_mean_over_all_draws_with_replacement_is_full_participation() -> None:
    updates, q = np.random.default_rng(1).normal(size=(N, SIZE)), np.full(N, 1 / N)
    mean = np.zeros(SIZE)
    for pair in itertools.product(range(N), repeat=2):
        clients, counts = np.unique(pair, return_counts=True)
        draw = Draw(clients, counts * SHARES[clients] / (2 * q[clients]))
        mean += stepped(remembered(), draw, updates)[0] / N**2
    np.testing.assert_allclose(mean, SHARES @ updates, atol=1e-6)


def test_where_updates_do_not_change_memory_takes_away_all_variance() -> None:
    updates = np.random.default_rng(2).normal(size=(N, SIZE))
    rows = (updates / RATE).astype(np.float32)
    for client in range(N):
        state = Remembered(clients=np.arange(N), updates=rows.copy(), agreed=1.0, squares=1.0)
        draw = Draw(np.array([client]), np.array([SHARES[client] * N]))
        np.testing.assert_allclose(stepped(state, draw, updates)[0], SHARES @ updates, atol=1e-6)


@pytest.mark.parametrize("agreed", [0.0, -3.0])
def test_without_a_share_it_is_the_average(agreed: float) -> None:
    updates = np.random.default_rng(3).normal(size=(N, SIZE))
    draw = Draw(np.array([1, 4]), np.array([0.7, 0.2]))
    model, _ = stepped(remembered(share=agreed), draw, updates)
    np.testing.assert_allclose(model, draw.weights @ updates[draw.clients], rtol=1e-12)


def test_the_share_is_the_regression_on_the_memory() -> None:
    state, draw, models = Memory().init(np.zeros(1)), Draw(np.array([0]), np.array([0.5])), []
    for update in (4.0, 2.0, 2.0):
        model, state = stepped(state, draw, np.array([[update]]), shares=np.ones(1), rate=1.0)
        models.append(float(model[0]))
    # Nothing is known in the first two rounds; then β = 0.5·2·4 / (0.5·4·4) = 1/2.
    assert models == [2.0, 1.0, 0.5 * 2.0 + 0.5 * (2.0 - 1.0)]
    assert state["agreed"] == pytest.approx(0.9 * 4 + 2)
    assert state["squares"] == pytest.approx(0.9 * 8 + 2)


def test_a_falling_rate_does_not_change_what_is_remembered() -> None:
    state, draw = Memory().init(np.zeros(1)), Draw(np.array([0]), np.ones(1))
    for rate in (1.0, 0.5, 0.1):
        _, state = stepped(state, draw, np.array([[3 * rate]]), shares=np.ones(1), rate=rate)
    assert state["updates"].tolist() == [[3.0]]
    assert state["agreed"] / state["squares"] == pytest.approx(1.0)


def test_memory_that_does_not_help_fades() -> None:
    rng, state = np.random.default_rng(0), Memory().init(np.zeros(50))
    for _ in range(40):
        _, state = stepped(state, Draw(np.arange(N), SHARES), rng.normal(size=(N, 50)))
    assert abs(state["agreed"] / state["squares"]) < 0.2


def test_a_client_is_remembered_once_by_its_latest() -> None:
    state = Memory().init(np.zeros(1))
    for update in (1.0, 2.0):
        draw = Draw(np.array([2, 4]), np.ones(2))
        _, state = stepped(state, draw, np.full((N, 1), update), rate=1.0)
    assert state["clients"].tolist() == [2, 4]
    assert state["updates"].tolist() == [[2.0], [2.0]]


def test_where_there_is_too_much_the_latest_clients_are_remembered() -> None:
    server, updates = Memory(most=3 * SIZE), np.ones((N, SIZE))
    state = server.init(np.zeros(SIZE))
    for client in (0, 1, 2, 3, 1):
        draw = Draw(np.array([client]), np.ones(1))
        _, state = stepped(state, draw, updates, server=server)
    assert state["clients"].tolist() == [2, 3, 1]
    tiny = Memory(most=1)
    _, state = stepped(tiny.init(np.zeros(SIZE)), Draw(np.arange(N), SHARES), updates, server=tiny)
    assert state["clients"].tolist() == [N - 1]


def test_forgotten_clients_leave_it_unbiased() -> None:
    updates = np.random.default_rng(5).normal(size=(N, SIZE))
    design = Tiered([0, 0, 1, 1, 1], [0.7, 0.3], [1, 1, 0.8, 0.7, 0.5], SHARES)
    server = Memory(most=2 * SIZE)
    mean = np.zeros(SIZE)
    for chance, draw in design.samples():
        mean += chance * stepped(remembered(), draw, updates, server=server)[0]
    np.testing.assert_allclose(mean, SHARES @ updates, atol=1e-6)


# In runs.


def test_pace_has_it_where_nobody_says_otherwise() -> None:
    assert isinstance(server_named("auto", Pace(k=2)), Memory)
    assert isinstance(server_named("auto", Solve(SCHEMES["uniform"], k=2)), Average)
    assert isinstance(server_named("average", Pace(k=2)), Average)


def test_clients_may_come_later() -> None:
    fleet = Fleet(there=lambda task: [True] * (3 if task < 3 else 4), known=3)
    how: dict[str, Any] = {"stop": Stop(rounds=20), "seeds": Seeds(0), "server": Memory()}
    outcome = train(fleet, Solve(SCHEMES["uniform"], k=2), schedule=constant(1.0), **how)
    assert sorted(outcome.state.server["clients"].tolist()) == [0, 1, 2, 3]


def test_a_rate_that_nobody_knows_is_taken_to_be_constant() -> None:
    models = []
    for rate in (0.1, float("nan")):
        fleet = Fleet()
        fixed = Fixed(WithReplacement(np.full(4, 1 / 4), 2, fleet.weights))
        how: dict[str, Any] = {"stop": Stop(rounds=12), "seeds": Seeds(0), "server": Memory()}
        models.append(train(fleet, fixed, schedule=constant(rate), **how).state.parameters)
    np.testing.assert_allclose(models[0], models[1], rtol=1e-5)


def test_buffers_of_flower_hand_on_what_was_seen() -> None:
    memory: Any = Memory()
    server = Buffered(memory, np.array([True, False, True]))
    assert server.informed
    draw, state = Draw(np.array([0]), np.ones(1)), server.init(np.zeros(SIZE))
    model, _ = stepped(state, draw, np.ones((N, SIZE)), server=server)
    np.testing.assert_allclose(model, np.ones(SIZE))
    assert not Buffered(Average(), np.ones(3, np.bool_)).informed


def test_a_run_with_memory_learns() -> None:
    backend = small_simulator(2)
    design = WithReplacement(np.full(6, 1 / 6), 3, backend.weights)
    how: dict[str, Any] = {"schedule": constant(0.1), "stop": Stop(rounds=40), "seeds": Seeds(0)}
    outcome = train(backend, Fixed(design), server=Memory(), **how)
    assert outcome.history.rows[-1].loss < 0.9 * outcome.history.rows[0].loss
    assert outcome.state.server["agreed"] > 0
