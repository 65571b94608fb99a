"""Replies that never come: the aggregate stays unbiased as far as can be known."""

from typing import Any

import numpy as np
import pytest

from fedpace.sampling.design import Draw, Everyone, WithReplacement
from fedpace.seeds import Seeds
from fedpace.training.backend import NO_CLIENTS, NO_VALUES, Reply
from fedpace.training.history import Row
from fedpace.training.server import LEAST_CHANCE
from fedpace.training.stopping import Stop, constant
from fedpace.training.synchronous import SynchronousTraining

from .fakes import Fixed, Fleet

DRAW = Draw(np.array([0, 2, 3]), np.array([0.5, 0.25, 0.75]))


class Given(Everyone):
    """A design that always draws the same."""

    def draw(self, rng: np.random.Generator) -> Draw:
        return DRAW


def started(design: Any = None, n: int = 4, **known: Any) -> SynchronousTraining:
    """Return a run of `n` clients of which something is known already."""
    fleet = Fleet(samples=np.ones(n), known=n)
    given = Fixed(design or Given(np.full(n, 1 / n)))
    run = SynchronousTraining(
        fleet, given, schedule=constant(1), stop=Stop(blind=True), seeds=Seeds(0), evaluate_every=0
    )
    counts: dict[str, Any] = {name: np.array(values) for name, values in known.items()}
    run.state = run.state._replace(**counts)
    return run


def reply(clients: list[int], n: int = 4) -> Reply:
    ones = np.ones(len(clients))
    chosen = np.array(clients, dtype=np.int64)
    return Reply(chosen, np.eye(n)[chosen], ones, ones, waited=1.0)


def completed(run: SynchronousTraining, clients: list[int], n: int = 4) -> Row:
    run.draw()
    return run.complete(reply(clients, n))


def test_everyone_answers_and_nothing_changes() -> None:
    run = started(asked=[3, 3, 3, 3], answered=[3, 3, 3, 3])
    row = completed(run, [0, 2, 3])
    np.testing.assert_array_equal(row.weights, DRAW.weights)
    np.testing.assert_array_equal(run.state.parameters, [0.5, 0, 0.25, 0.75])
    assert (run.state.round, run.state.seconds, row.missing.size) == (1, 1.0, 0)


def test_a_client_that_answers_every_other_time_counts_double() -> None:
    run = started(asked=[9, 0, 9, 9], answered=[4, 0, 9, 9])
    row = completed(run, [0, 2])
    np.testing.assert_allclose(row.weights, [0.5 / 0.5, 0.25])
    np.testing.assert_array_equal(row.missing, [3])
    np.testing.assert_array_equal(run.state.asked, [10, 0, 10, 10])
    np.testing.assert_array_equal(run.state.answered, [5, 0, 10, 9])


def test_nobody_answers_and_the_model_stays() -> None:
    run = started(parameters=np.arange(4.0))
    run.draw()
    row = run.complete(Reply(NO_CLIENTS, np.empty((0, 4)), NO_VALUES, NO_VALUES, waited=7.0))
    np.testing.assert_array_equal(run.state.parameters, np.arange(4.0))
    assert row.weights.size == 0
    assert run.state.seconds == row.round_seconds == 7.0
    np.testing.assert_array_equal(row.missing, DRAW.clients)


def test_the_rarest_answer_counts_at_most_five_times() -> None:
    row = completed(started(asked=[1000] * 4, answered=[0] * 4), [0, 2, 3])
    np.testing.assert_allclose(row.weights, DRAW.weights / LEAST_CHANCE)


def test_clients_that_came_later_count_from_nothing() -> None:
    run = started(n=6, asked=[5], answered=[5])
    row = completed(run, [0, 2, 3], n=6)
    np.testing.assert_array_equal(run.state.asked, [6, 0, 1, 1, 0, 0])
    np.testing.assert_array_equal(row.weights, DRAW.weights)


def test_the_aggregate_is_unbiased_once_the_chances_are_known() -> None:
    rng = np.random.default_rng(3)
    weights = np.array([0.1, 0.2, 0.3, 0.4])
    chances = np.array([0.3, 0.6, 0.9, 1.0])
    design = WithReplacement([0.4, 0.3, 0.2, 0.1], 3, weights)
    answered = (chances * 10**6).astype(np.int64)
    run = started(design)
    totals = []
    for _ in range(6000):
        run.state = run.state._replace(
            parameters=np.zeros(4), asked=np.full(4, 10**6), answered=answered.copy()
        )
        clients = run.draw().clients
        run.complete(reply(clients[rng.random(clients.size) < chances[clients]].tolist()))
        totals.append(run.state.parameters)
    error = np.std(totals, axis=0) / np.sqrt(len(totals))
    assert (np.abs(np.mean(totals, axis=0) - weights) < 5 * error).all()


def test_the_estimated_chance_makes_up_for_what_is_lost_over_many_rounds() -> None:
    rng = np.random.default_rng(4)
    run = started(WithReplacement([0.5, 0.5], 1, [0.5, 0.5]), n=2)
    for _ in range(4000):
        (client,) = run.draw().clients.tolist()
        run.complete(reply([client] if client == 1 or rng.random() < 0.4 else [], n=2))
    assert run.state.parameters[0] / run.state.parameters[1] == pytest.approx(1.0, abs=0.15)
