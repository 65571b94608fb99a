"""Who evaluates, when, and what follows from it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from fedpace.flower import AdaptiveSampling
from fedpace.flower.replies import mean_metrics
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


def test_evaluations_count_up_by_one_when_nodes_leave_and_after_a_resume(tmp_path: Path) -> None:
    seen: list[int] = []

    def seconds(client: int, _: int) -> float:
        return 1.0 + 0.1 * client

    for rounds in (12, 20):
        grid = MemoryGrid(client_app(), seconds, partitions=range(CLIENTS))
        strategy = strategy_on(
            grid, k=6, scheme="weighted", mode="asynchronous", buffer=1, min_available_nodes=1,
            checkpoint=tmp_path / "run.npz",
        )  # fmt: skip

        def evaluate(number: int, arrays: ArrayRecord, grid: MemoryGrid = grid) -> MetricRecord:
            seen.append(number)
            if number in (4, 14):  # what is under way still comes
                for node in list(grid.partitions)[:10]:
                    del grid.partitions[node]
            return MetricRecord({"loss": 1.0})

        strategy.start(grid, START, num_rounds=rounds, evaluate_fn=evaluate)
    assert seen == list(range(21))


def replies_with(*metrics: dict[str, Any]) -> list[Message]:
    grid_with()  # lets this process make messages
    records = [RecordDict({"metrics": MetricRecord(each)}) for each in metrics]
    return [Message(record, node, "evaluate") for node, record in enumerate(records, 1)]


def test_lists_are_averaged_as_fedavg_does() -> None:
    metrics = [
        {"per_class": [0.1, 0.9], "num-examples": 30, "lengths": [1.0]},
        {"per_class": [0.5, 0.5], "num-examples": 10, "lengths": [1.0]},
    ]
    mean = mean_metrics(replies_with(*metrics), "num-examples")
    theirs = FedAvg().aggregate_evaluate(1, replies_with(*metrics))
    assert mean is not None
    assert theirs is not None
    for name, value in theirs.items():
        np.testing.assert_allclose(mean[name], value)
    uneven = [{"a": [1.0], "num-examples": 1}, {"a": [1.0, 2.0], "num-examples": 1}]
    assert not mean_metrics(replies_with(*uneven), "num-examples")


def test_zero_examples_weigh_nothing_unless_all_have_none() -> None:
    metrics = [{"loss": 1.0, "num-examples": 8}, {"loss": math.nan, "num-examples": 0}]
    assert mean_metrics(replies_with(*metrics), "num-examples") == {"loss": 1.0}
    none = [{"loss": 1.0, "num-examples": 0}, {"loss": 2.0, "num-examples": 0}]
    assert mean_metrics(replies_with(*none), "num-examples") == {"loss": 1.5}
