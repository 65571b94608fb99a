"""Replies that never come: the aggregate stays unbiased as far as can be known."""

import numpy as np
import pytest

from fedpace.rounds.backend import NOBODY, Reply
from fedpace.rounds.loop import LEAST_CHANCE, completed
from fedpace.rounds.state import State
from fedpace.sampling.design import Draw, WithReplacement

DRAW = Draw(np.array([0, 2, 3]), np.array([0.5, 0.25, 0.75]))


def reply(clients: list[int], waited: float | None = None) -> Reply:
    m = len(clients)
    updates = np.eye(4)[clients]
    return Reply(np.array(clients, dtype=np.int64), updates, np.ones(m), np.ones(m), waited=waited)


def state(asked: list[int], answered: list[int]) -> State:
    return State(np.zeros(4), 5, 10.0, asked=np.array(asked), answered=np.array(answered))


def test_everyone_answers_and_nothing_changes() -> None:
    after, weights, missing = completed(
        state([3, 3, 3, 3], [3, 3, 3, 3]), DRAW, reply([0, 2, 3]), n=4
    )
    np.testing.assert_array_equal(weights, DRAW.weights)
    np.testing.assert_array_equal(after.parameters, [0.5, 0, 0.25, 0.75])
    assert (after.round, after.seconds, missing.size) == (6, 11.0, 0)


def test_a_client_that_answers_every_other_time_counts_double() -> None:
    after, weights, missing = completed(state([9, 0, 9, 9], [4, 0, 9, 9]), DRAW, reply([0, 2]), n=4)
    np.testing.assert_allclose(weights, [0.5 / 0.5, 0.25])
    np.testing.assert_array_equal(missing, [3])
    np.testing.assert_array_equal(after.asked, [10, 0, 10, 10])
    np.testing.assert_array_equal(after.answered, [5, 0, 10, 9])


def test_nobody_answers_and_the_model_stays() -> None:
    before = state([0] * 4, [0] * 4)._replace(parameters=np.arange(4.0))
    nobody = Reply(NOBODY, np.empty((0, 4)), np.empty(0), np.empty(0), waited=7.0)
    after, weights, missing = completed(before, DRAW, nobody, n=4)
    np.testing.assert_array_equal(after.parameters, before.parameters)
    assert weights.size == 0
    assert after.seconds == 17.0
    np.testing.assert_array_equal(missing, DRAW.clients)


def test_the_rarest_answer_counts_at_most_five_times() -> None:
    _, weights, _ = completed(state([1000] * 4, [0] * 4), DRAW, reply([0, 2, 3]), n=4)
    np.testing.assert_allclose(weights, DRAW.weights / LEAST_CHANCE)


def test_clients_that_came_later_count_from_nothing() -> None:
    after, weights, _ = completed(state([5], [5]), DRAW, reply([0, 2, 3]), n=6)
    np.testing.assert_array_equal(after.asked, [6, 0, 1, 1, 0, 0])
    np.testing.assert_array_equal(weights, DRAW.weights)


def test_the_aggregate_is_unbiased_once_the_chances_are_known() -> None:
    rng = np.random.default_rng(3)
    weights = np.array([0.1, 0.2, 0.3, 0.4])
    chances = np.array([0.3, 0.6, 0.9, 1.0])
    design = WithReplacement([0.4, 0.3, 0.2, 0.1], 3, weights)
    known = state([10**6] * 4, (chances * 10**6).astype(int).tolist())
    totals = []
    for _ in range(20_000):
        draw = design.draw(rng)
        here = draw.clients[rng.random(draw.clients.size) < chances[draw.clients]]
        after, _, _ = completed(known, draw, reply(here.tolist(), waited=1.0), n=4)
        totals.append(after.parameters)
    error = np.std(totals, axis=0) / np.sqrt(len(totals))
    assert (np.abs(np.mean(totals, axis=0) - weights) < 5 * error).all()


def test_the_estimated_chance_makes_up_for_what_is_lost_over_many_rounds() -> None:
    rng = np.random.default_rng(4)
    weights = np.array([0.5, 0.5])
    design = WithReplacement([0.5, 0.5], 1, weights)
    now = State(np.zeros(4), 0, 0.0)
    for _ in range(4000):
        draw = design.draw(rng)
        here = draw.clients[(draw.clients == 1) | (rng.random() < 0.4)]
        now, _, _ = completed(now, draw, reply(here.tolist(), waited=1.0), n=2)
    assert now.parameters[0] / now.parameters[1] == pytest.approx(1.0, abs=0.15)
