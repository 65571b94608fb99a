"""Servers that bear liars: against their definitions, and against a lie."""

import numpy as np
import pytest

from fedpace.errors import InputError
from fedpace.sampling.design import Draw
from fedpace.servers.average import Average
from fedpace.servers.build import server_for
from fedpace.servers.robust import Clipped, Krum, Trimmed
from fedpace.training.backend import Reply
from fedpace.training.server import BaseServer

ROBUST = [Clipped(), Trimmed(), Krum()]


def told(updates: np.ndarray) -> Reply:
    count = len(updates)
    return Reply(np.arange(count), updates, np.ones(count), np.ones(count))


def step(server: BaseServer, updates: np.ndarray, weights: np.ndarray) -> np.ndarray:
    draw = Draw(np.arange(len(updates)), weights)
    start = np.zeros(updates.shape[1])
    found: np.ndarray = server.apply(server.init(start), start, draw, told(updates))[0]
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
