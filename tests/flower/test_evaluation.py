"""Who evaluates, when, and what follows from it."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.serverapp import Grid

from fedpace.flower import AdaptiveSampling
from tests.flower.federation import (
    CLIENTS,
    START,
    client_app,
    grid_with,
    steady,
    strategy_on,
)
from tests.flower.memory_grid import MemoryGrid


def with_loss(reply: Message, _: int) -> None:
    metrics = reply.content.metric_records["metrics"]
    metrics["initial-loss"] = metrics["train_loss"]


def test_ends_at_the_target() -> None:
    grid = grid_with()
    strategy = strategy_on(grid, fraction_evaluate=1.0, evaluate_every=1, target_loss=0.9)
    strategy.start(grid, START, num_rounds=100)
    assert strategy.outcome is not None
    assert strategy.outcome.state.ended == "target loss"
    assert strategy.history.rows[-1].loss <= 0.9 < strategy.history.rows[-2].loss


def test_a_loss_that_replies_promise_is_checked_at_once() -> None:
    grid = grid_with(change=with_loss)
    strategy = strategy_on(
        grid, scheme="uniform", fraction_evaluate=1.0, evaluate_every=90, target_loss=0.9
    )
    strategy.start(grid, START, num_rounds=100)
    rows = strategy.history.rows[1:]
    assert strategy.outcome is not None
    assert strategy.outcome.state.ended == "target loss"
    assert rows[-1].round < 90
    assert rows[-1].loss <= 0.9
    assert rows[-1].evaluated
    # Nobody evaluates where the estimate promises nothing; it stands in for the loss.
    evaluations = sum(kind == "evaluate" for kind, _ in grid.asked)
    assert evaluations == sum(row.loss_estimate <= 0.9 for row in rows) < len(rows)
    assert all(row.loss == row.loss_estimate for row in rows if row.loss_estimate > 0.9)


def test_nobody_is_waited_for_to_evaluate() -> None:
    class Leaving(AdaptiveSampling):
        def configure_evaluate(
            self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
        ) -> Iterable[Message]:
            assert isinstance(grid, MemoryGrid)
            grid.partitions.clear()
            return super().configure_evaluate(server_round, arrays, config, grid)

    grid = grid_with()
    strategy = Leaving(k=4, scheme="uniform", count_start=True, clock=grid.clock)
    result = strategy.start(grid, START, num_rounds=2)
    assert not result.evaluate_metrics_clientapp
    assert grid.time == pytest.approx(strategy.history.rows[-1].seconds)


def test_evaluations_that_fail_are_mentioned(caplog: pytest.LogCaptureFixture) -> None:
    app = client_app()

    @app.evaluate("broken")
    def broken(message: Message, context: Context) -> Message:
        raise RuntimeError("no test data")

    class Own(AdaptiveSampling):
        def configure_evaluate(
            self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
        ) -> Iterable[Message]:
            messages = list(super().configure_evaluate(server_round, arrays, config, grid))
            content, node = messages[0].content, messages[0].metadata.dst_node_id
            return [Message(content, node, "evaluate.broken"), *messages[1:]]

    grid = MemoryGrid(app, steady, partitions=range(CLIENTS))
    Own(k=4, scheme="uniform", query=True, clock=grid.clock).start(grid, START, num_rounds=1)
    assert "1 of 12 evaluations failed, the first with error 2" in caplog.text
    assert "no test data" in caplog.text


def test_only_a_share_of_the_clients_evaluates() -> None:
    grid = grid_with()
    strategy = strategy_on(grid, fraction_evaluate=0.25, evaluate_every=2)
    strategy.start(grid, START, num_rounds=5)
    asked = [partitions for kind, partitions in grid.asked if kind == "evaluate"]
    assert [len(each) for each in asked] == [3, 3, 3]  # after rounds 2, 4 and the last


def test_where_only_the_accuracy_is_measured_the_estimate_stands_for_the_loss() -> None:
    grid = grid_with(change=with_loss)
    strategy = strategy_on(grid, scheme="full", target_loss=0.85)
    strategy.start(
        grid, START, num_rounds=8, evaluate_fn=lambda *_: MetricRecord({"accuracy": 0.25})
    )
    rows = strategy.history.rows[1:]
    assert [row.round for row in rows] == list(range(1, 9))  # an estimate alone ends nothing
    assert {row.accuracy for row in rows} == {0.25}
    promised = [row.loss_estimate <= 0.85 for row in rows]
    assert True in promised
    assert False in promised
    assert [math.isnan(row.loss) for row in rows] == promised
