"""Strategies that override ours, and loops other than ours."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedpace.errors import InputError
from fedpace.flower import AdaptiveSampling
from fedpace.rounds.schedules import inverse
from tests.flower.federation import (
    CLIENTS,
    START,
    as_vector,
    grid_with,
    strategy_on,
)


@pytest.mark.parametrize("wrong", ["a stranger", "the same twice", "nobody known"])
def test_a_message_to_a_node_that_was_not_drawn_is_refused(wrong: str) -> None:
    class Own(AdaptiveSampling):
        def configure_train(
            self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
        ) -> Iterable[Message]:
            messages = list(super().configure_train(server_round, arrays, config, grid))
            drawn = {each.metadata.dst_node_id for each in messages}
            strangers = {
                "a stranger": next(node for node in grid.get_node_ids() if node not in drawn),
                "the same twice": min(drawn),
                "nobody known": 123,
            }
            return [*messages, Message(messages[0].content, strangers[wrong], "train")]

    grid = grid_with()
    strategy = Own(4, "uniform", fraction_evaluate=0, clock=grid.clock)
    with pytest.raises(InputError, match="configure_train must keep to the nodes drawn"):
        strategy.start(grid, START, num_rounds=2)


def test_a_configure_train_that_leaves_out_a_client_only_loses_its_reply() -> None:
    class Own(AdaptiveSampling):
        def configure_train(
            self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
        ) -> Iterable[Message]:
            return list(super().configure_train(server_round, arrays, config, grid))[1:]

    grid = grid_with()
    strategy = Own(4, "full", fraction_evaluate=0, clock=grid.clock)
    strategy.start(grid, START, num_rounds=1)
    assert strategy.history.rows[1].missing.tolist() == [0]


def test_an_aggregate_train_that_is_never_called_is_mentioned(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Own(AdaptiveSampling):
        def aggregate_train(self, server_round: int, replies: Iterable[Message]):  # type: ignore[no-untyped-def]
            return super().aggregate_train(server_round, replies)

    grid = grid_with()
    Own(4, "uniform", fraction_evaluate=0, clock=grid.clock).start(grid, START, num_rounds=1)
    assert caplog.text.count("start does not call aggregate_train") == 1


def test_the_schedule_reaches_the_clients() -> None:
    seen: list[float] = []

    class Watching(AdaptiveSampling):
        def configure_train(
            self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
        ) -> Iterable[Message]:
            seen.append(float(config["lr"]))  # type: ignore[arg-type]
            return super().configure_train(server_round, arrays, config, grid)

    grid = grid_with()
    Watching(2, "uniform", schedule=inverse(0.1), fraction_evaluate=0, clock=grid.clock).start(
        grid, START, num_rounds=3
    )
    assert seen == pytest.approx([0.1, 0.05, 0.1 / 3])


def test_works_in_flowers_own_loop_too() -> None:
    grid = grid_with()
    strategy = strategy_on(grid, scheme="optimal-mean", fraction_evaluate=1.0, refresh=4)
    result = Strategy.start(strategy, grid, START, num_rounds=12)
    losses = [result.evaluate_metrics_clientapp[i]["eval_loss"] for i in (1, 12)]
    assert losses[1] < losses[0]  # type: ignore[operator]
    assert [row.round for row in strategy.history.rows] == list(range(1, 13))


def test_a_round_of_flowers_loop_is_a_round_of_ours() -> None:
    models = []
    for start in (AdaptiveSampling.start, Strategy.start):
        grid = grid_with()
        strategy = strategy_on(grid, scheme="weighted", refresh=50, min_available_nodes=CLIENTS)
        models.append(as_vector(start(strategy, grid, START, num_rounds=6).arrays))
    np.testing.assert_allclose(models[0], models[1], atol=1e-9)


def test_a_reply_of_somebody_who_was_not_asked_is_not_heard() -> None:
    grid = grid_with()
    strategy = strategy_on(grid, scheme="weighted")
    messages = list(strategy.configure_train(1, START, ConfigRecord(), grid))
    asked = {message.metadata.dst_node_id for message in messages}
    stranger = next(node for node in grid.get_node_ids() if node not in asked)
    extra = Message(messages[0].content, stranger, "train", group_id="1")
    replies = list(grid.send_and_receive([*messages, extra]))
    assert len(replies) == len(messages) + 1
    strategy.aggregate_train(1, replies)
    assert strategy.history.rows[0].clients.size == len(messages)


def test_aggregating_what_was_never_configured_is_refused() -> None:
    with pytest.raises(InputError, match="configure_train must come before"):
        AdaptiveSampling(2).aggregate_train(1, [])
