"""Strategies that override ours."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid

from fedpace.errors import InputError
from fedpace.flower import AdaptiveSampling
from fedpace.training.stopping import inverse
from tests.flower.federation import (
    START,
    grid_with,
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
                "a stranger": next(node for node in connected if node not in drawn),
                "the same twice": min(drawn),
                "nobody known": 123,
            }
            return [*messages, Message(messages[0].content, strangers[wrong], "train")]

    grid = grid_with()
    connected = list(grid.get_node_ids())
    strategy = Own(k=4, scheme="uniform", query=True, fraction_evaluate=0, clock=grid.clock)
    with pytest.raises(InputError, match="configure_train must keep to the nodes drawn"):
        strategy.start(grid, START, num_rounds=2)


def test_a_configure_train_that_leaves_out_a_client_only_loses_its_reply() -> None:
    class Own(AdaptiveSampling):
        def configure_train(
            self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
        ) -> Iterable[Message]:
            return list(super().configure_train(server_round, arrays, config, grid))[1:]

    grid = grid_with()
    strategy = Own(k=4, scheme="full", query=True, fraction_evaluate=0, clock=grid.clock)
    strategy.start(grid, START, num_rounds=1)
    assert strategy.history.rows[1].missing.tolist() == [0]


def test_an_aggregate_train_that_is_never_called_is_mentioned(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Own(AdaptiveSampling):
        def aggregate_train(self, server_round: int, replies: Iterable[Message]):  # type: ignore[no-untyped-def]
            return super().aggregate_train(server_round, replies)

    grid = grid_with()
    Own(k=4, scheme="uniform", query=True, fraction_evaluate=0, clock=grid.clock).start(
        grid, START, num_rounds=1
    )
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
    Watching(
        k=2,
        scheme="uniform",
        query=True,
        schedule=inverse(0.1),
        fraction_evaluate=0,
        clock=grid.clock,
    ).start(grid, START, num_rounds=3)
    assert seen == pytest.approx([0.1, 0.05, 0.1 / 3])
