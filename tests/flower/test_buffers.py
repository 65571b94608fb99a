"""What no gradient moves stays between what was and what clients sent."""

from __future__ import annotations

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from hypothesis import given
from hypothesis import strategies as st

from fedpace.flower import AdaptiveSampling
from fedpace.flower.buffers import weights_in, with_averaged_buffers
from fedpace.rounds.aggregate import aggregate
from fedpace.rounds.backend import Reply
from fedpace.rounds.loop import completed
from fedpace.rounds.state import State
from fedpace.sampling.design import Draw
from tests.flower.memory_grid import MemoryGrid

VARIANCES = st.floats(0, 1e3)


@given(
    VARIANCES,
    st.lists(st.tuples(st.floats(0.01, 5), VARIANCES), min_size=1, max_size=5),
)
def test_a_buffer_stays_between_what_it_was_and_what_clients_sent(
    before: float, sent: list[tuple[float, float]]
) -> None:
    weights, values = np.array(sent).T
    m = weights.size
    updates = np.column_stack([values, values]) - before
    reply = Reply(np.arange(m), updates.copy(), np.ones(m), np.ones(m))
    changed = with_averaged_buffers(reply, weights, np.array([True, False])).updates
    np.testing.assert_array_equal(changed[:, 0], updates[:, 0])  # a parameter takes the whole step
    after = aggregate(np.full(2, before), weights, changed)[1]
    slack = 1e-9 * (1 + max(before, values.max()))
    assert min(before, values.min()) - slack <= after <= max(before, values.max()) + slack


def test_weights_that_sum_to_3_leave_a_variance_positive() -> None:
    reply = Reply(np.arange(2), np.full((2, 1), 0.1 - 1.0), np.ones(2), np.ones(2))
    weights = np.array([1.0, 2.0])
    assert aggregate(np.ones(1), weights, reply.updates)[0] < 0
    reply = with_averaged_buffers(reply, weights, np.array([False]))
    np.testing.assert_allclose(aggregate(np.ones(1), weights, reply.updates), [0.1])


def test_weights_below_1_are_left_alone() -> None:
    reply = Reply(np.arange(1), np.array([[-0.9]]), np.ones(1), np.ones(1))
    reply = with_averaged_buffers(reply, np.array([0.5]), np.array([False]))
    np.testing.assert_array_equal(reply.updates, [[-0.9]])


def test_the_weights_are_those_of_the_loop() -> None:
    draw = Draw(np.array([0, 2, 3]), np.array([0.5, 0.2, 0.7]))
    reply = Reply(np.array([0, 3]), np.ones((2, 4)), np.ones(2), np.ones(2))
    state = State(np.zeros(4), 3, 0.0, "", np.array([3, 1, 2, 3]), np.array([3, 1, 1, 0]))
    np.testing.assert_array_equal(
        weights_in(state, draw, reply, n=5), completed(state, draw, reply, n=5)[1]
    )
    assert weights_in(state, draw, reply, n=5)[1] > 0.7  # it has never answered before


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
    strategy = AdaptiveSampling(3, "uniform", fraction_evaluate=0, clock=grid.clock)
    strategy.start(
        grid,
        ArrayRecord({name: Array(value) for name, value in start.items()}),
        num_rounds=30,
        evaluate_fn=evaluate,
    )
    assert max(row.weights.sum() for row in strategy.history.rows[1:]) > 2
    assert min(variances) >= 0.01 - 1e-12
