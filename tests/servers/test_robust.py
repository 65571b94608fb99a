"""Servers that bear liars: against their definitions, and against a lie."""

import numpy as np
import pytest

from fedpace import Seeds, Stop, constant, sampler_for, train
from fedpace.errors import InputError
from fedpace.sampling.design import Draw
from fedpace.servers.average import Average
from fedpace.servers.build import server_for
from fedpace.servers.robust import Clipped, Krum, Trimmed
from fedpace.training.backend import Reply
from fedpace.training.server import BaseServer
from fedpace.training.updates import RoundUpdates
from tests.training.fakes import small_simulator

ROBUST = [Clipped(), Trimmed(), Krum()]


def told(updates: np.ndarray) -> Reply:
    count = len(updates)
    return Reply(np.arange(count), updates, np.ones(count), np.ones(count))


def step(server: BaseServer, updates: np.ndarray, weights: np.ndarray) -> np.ndarray:
    draw = Draw(np.arange(len(updates)), weights)
    start = np.zeros(updates.shape[1])
    whole = RoundUpdates(start, 1.0, draw, told(updates), np.full(len(updates), 1 / len(updates)))
    found: np.ndarray = server.step(server.init(start), whole)[0]
    return found


@pytest.mark.parametrize("server", ROBUST, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("scale", [-10.0, 1e6, -1e12])
def test_one_liar_of_ten_does_not_turn_the_step(server: BaseServer, scale: float) -> None:
    rng = np.random.default_rng(0)
    updates = 1.0 + 0.1 * rng.normal(size=(10, 30))
    weights = np.full(10, 0.1)
    honest = step(Average(), updates, weights)
    updates[4] *= scale
    found = step(server, updates, weights)
    assert np.linalg.norm(found - honest) < 0.4 * np.linalg.norm(honest)
    assert np.linalg.norm(step(Average(), updates, weights) - honest) > np.linalg.norm(honest)


@pytest.mark.parametrize("server", ROBUST, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("count", [1, 2])
def test_one_or_two_replies_are_averaged(server: BaseServer, count: int) -> None:
    updates = np.random.default_rng(1).normal(size=(count, 4))
    updates /= np.linalg.norm(updates, axis=1, keepdims=True)
    weights = np.array([0.4, 0.7])[:count]
    np.testing.assert_allclose(step(server, updates, weights), weights @ updates)


def test_updates_of_like_length_are_not_clipped() -> None:
    updates = np.random.default_rng(2).normal(size=(7, 50))
    weights = np.linspace(0.1, 0.3, 7)
    np.testing.assert_allclose(step(Clipped(), updates, weights), weights @ updates)


def test_trims_each_coordinate_by_itself() -> None:
    updates = np.random.default_rng(3).normal(size=(9, 5))
    weights = np.random.default_rng(4).random(9) + 0.1
    expected = []
    for column in updates.T:
        kept = sorted(range(9), key=lambda i: column[i])[2:-2]
        mean = sum(weights[i] * column[i] for i in kept) / sum(weights[i] for i in kept)
        expected.append(weights.sum() * mean)
    np.testing.assert_allclose(step(Trimmed(0.25), updates, weights), expected)


def test_krum_leaves_out_who_is_farthest_from_its_neighbours() -> None:
    updates = np.random.default_rng(5).normal(size=(8, 3))
    weights = np.random.default_rng(6).random(8) + 0.1
    scores = []
    for i in range(8):
        squares = sorted(float(((updates[i] - other) ** 2).sum()) for other in updates)[1:]
        scores.append(sum(squares[: 8 - 2 - 2]))
    kept = sorted(sorted(range(8), key=lambda i: scores[i])[:6])
    expected = weights.sum() * (weights[kept] @ updates[kept]) / weights[kept].sum()
    np.testing.assert_allclose(step(Krum(2), updates, weights), expected)


@pytest.mark.parametrize(
    ("text", "server"),
    [
        ("clip", Clipped(2.0)), ("clip:3", Clipped(3.0)), ("trimmed", Trimmed(0.1)),
        ("trimmed:0.2", Trimmed(0.2)), ("krum", Krum(1)), ("krum:2", Krum(2)),
    ],
)  # fmt: skip
def test_is_chosen_by_name(text: str, server: BaseServer) -> None:
    assert server_for(text) == server


@pytest.mark.parametrize("text", ["clip:0", "clip:-1", "trimmed:0.5", "trimmed:x", "krum:1.5"])
def test_a_number_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=f"server must be {text.partition(':')[0]}:"):
        server_for(text)


def test_a_step_of_one_update_is_clipped_by_the_memory_of_others() -> None:
    server, rng = Clipped(2.0), np.random.default_rng(7)
    model, state = np.zeros(30), server.init(np.zeros(30))
    for client in [*range(8), 0, 0, 0]:
        update = 0.1 + 0.01 * rng.normal(size=30)
        update = -1e3 * update if client == 0 else update
        draw = Draw(np.array([client]), np.ones(1))
        reply = Reply(draw.clients, update[None], np.ones(1), np.ones(1))
        whole = RoundUpdates(model, 0.1, draw, reply, np.full(8, 1 / 8))
        before, (model, state) = model, server.step(state, whole)
        usual = 0.1 * np.sqrt(30)
        if client or np.isfinite(state).sum() < 5:
            continue
        assert np.linalg.norm(model - before) == pytest.approx(2 * usual, rel=0.1)


@pytest.mark.parametrize("server", [Trimmed(), Krum()], ids=lambda each: type(each).__name__)
def test_servers_that_compare_the_updates_of_a_round_are_refused_without_rounds(
    server: BaseServer,
) -> None:
    with pytest.raises(InputError, match=r"got \w+: it compares .* take clip:2"):
        train(
            small_simulator(),
            sampler_for("uniform", 3, mode="asynchronous"),
            mode="asynchronous",
            at_once=3,
            server=server,
            schedule=constant(0.1),
            stop=Stop(rounds=3),
            seeds=Seeds(0),
        )
