"""What no gradient moves stays between what was and what clients sent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from hypothesis import given
from hypothesis import strategies as st

from fedpace import Adam, Average, Draw, Reply
from fedpace.checks import FloatArray
from fedpace.conformance import check_server
from fedpace.servers.build import AverageBuffers
from fedpace.training.updates import RoundUpdates
from tests.flower.federation import strategy_on
from tests.flower.memory_grid import MemoryGrid

VARIANCES = st.floats(0, 1e3)


def applied(
    server: AverageBuffers, before: FloatArray, weights: FloatArray, sent: FloatArray
) -> Any:
    """Return the model after one round in which clients sent these, one row each."""
    m = weights.size
    reply = Reply(np.arange(m), sent - before, np.ones(m), np.ones(m))
    draw = Draw(np.arange(m), weights)
    updates = RoundUpdates(before, 1.0, draw, reply, np.full(m, 1 / m))
    return server.step(server.init(before), updates)[0]


@pytest.mark.parametrize("inner", [Average(), Adam(0.1)], ids=["average", "adam"])
@given(
    VARIANCES,
    st.lists(st.tuples(st.floats(0.01, 5), VARIANCES), min_size=1, max_size=5),
)
def test_a_buffer_stays_between_what_it_was_and_what_clients_sent(
    inner: Average | Adam, before: float, sent: list[tuple[float, float]]
) -> None:
    weights, values = np.array(sent).T
    start, both = np.full(2, before), np.column_stack([values, values])
    parameter, buffer = applied(
        AverageBuffers(inner, np.array([True, False])), start, weights, both
    )
    whole = applied(AverageBuffers(inner, np.array([True, True])), start, weights, both)
    assert parameter == whole[0]  # a parameter takes the inner server's whole step
    slack = 1e-9 * (1 + max(before, values.max()))
    assert min(before, values.min()) - slack <= buffer <= max(before, values.max()) + slack


def test_weights_that_sum_to_3_leave_a_variance_positive() -> None:
    before, weights, sent = np.ones(1), np.array([1.0, 2.0]), np.full((2, 1), 0.1)
    assert applied(AverageBuffers(Average(), np.array([True])), before, weights, sent) < 0
    after = applied(AverageBuffers(Average(), np.array([False])), before, weights, sent)
    np.testing.assert_allclose(after, [0.1])


def test_weights_below_1_are_left_alone() -> None:
    server = AverageBuffers(Average(), np.array([False]))
    after = applied(server, np.ones(1), np.array([0.5]), np.array([[0.1]]))
    np.testing.assert_allclose(after, [1 - 0.5 * 0.9])


@pytest.mark.parametrize("inner", [Average(), Adam(0.1)], ids=["average", "adam"])
def test_it_is_a_server(inner: Average | Adam) -> None:
    check_server(lambda: AverageBuffers(inner, np.arange(5) < 3))


def test_a_running_variance_is_positive_in_every_round() -> None:
    app, asked = ClientApp(), dict.fromkeys(range(6), 0)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        client = int(context.node_config["partition-id"])
        asked[client] += 1
        if (asked[client] + client) % 2:
            raise RuntimeError("every other time")  # so that those who answer weigh more
        arrays = message.content.array_records["arrays"].to_numpy_ndarrays()
        changed = {"weight": arrays[0] + 1, "running_var": np.full(2, 0.01)}
        metrics = MetricRecord({"num-examples": 1 if client else 40, "grad-norm": 1.0})
        record = ArrayRecord({name: Array(value) for name, value in changed.items()})
        return Message(RecordDict({"arrays": record, "metrics": metrics}), reply_to=message)

    grid = MemoryGrid(app, lambda *_: 1.0, partitions=range(6))
    variances = []

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        variances.append(arrays["running_var"].numpy().min())
        return MetricRecord({"loss": 1.0})

    start = {"weight": np.zeros(3), "running_var": np.ones(2)}
    strategy = strategy_on(grid, k=3, scheme="uniform", min_available_nodes=6)
    strategy.start(
        grid,
        ArrayRecord({name: Array(value) for name, value in start.items()}),
        num_rounds=30,
        evaluate_fn=evaluate,
    )
    assert max(row.weights.sum() for row in strategy.history.rows[1:]) > 2
    assert min(variances) >= 0.01 - 1e-12
