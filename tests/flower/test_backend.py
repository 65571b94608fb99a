"""A Flower federation is a backend like any other: rounds, single clients, evaluations, waiting."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedpace import Task
from fedpace.checks import FloatArray
from fedpace.conformance import check_backend
from fedpace.flower import StartArguments
from fedpace.flower.backend import GridBackend
from tests.flower.federation import (
    CLIENTS,
    START,
    as_vector,
    client_app,
    grid_with,
    strategy_on,
)
from tests.flower.memory_grid import MemoryGrid


def echo(move: float = 0.0) -> ClientApp:
    """Return an app whose clients send the model back as it came, or moved by this."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        metrics = MetricRecord({"num-examples": 1, "grad-norm": 1.0})
        arrays = message.content.array_records["arrays"]
        if move:
            arrays = ArrayRecord([each.numpy() + move for each in arrays.values()])
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    return app


def backend_of(
    waits: list[float], *, deadline: float = 60.0, floats: type = np.float64, move: float = 0.0
) -> tuple[GridBackend, MemoryGrid]:
    grid = MemoryGrid(echo(move), lambda client, _: waits[client], partitions=range(len(waits)))
    strategy = strategy_on(grid, min_available_nodes=len(waits))
    training = StartArguments(ArrayRecord([np.zeros(3, floats)]), deadline)
    return strategy.backend_on(grid, training), grid


def warm_backend_of(waits: list[float], **how: Any) -> tuple[GridBackend, MemoryGrid]:
    """Return a backend whose clients have answered a round, so that no first reply is held."""
    before = [1.0] * len(waits)
    backend, grid = backend_of(before, move=1.0, **how)
    backend.submit(task(range(len(waits)), np.zeros(3)))
    assert backend.collect().clients.size == len(waits)
    before[:], grid.time = waits, 0.0
    return backend, grid


def task(clients: Iterable[int], parameters: FloatArray, index: int = 0) -> Task:
    return Task(np.array([*clients]), parameters, index, 0.1, 0.0)


def test_keeps_to_the_rules_of_a_backend() -> None:
    def make() -> GridBackend:
        grid = grid_with()
        strategy = strategy_on(grid, fraction_evaluate=1.0)
        return strategy.backend_on(grid, StartArguments(START, 60.0))

    check_backend(make)


def test_an_update_counts_from_the_model_as_it_was_sent() -> None:
    backend, _ = backend_of([1.0, 1.0], floats=np.float32)
    # A tenth is no number of 32 bits; a client that does nothing still has an update of nothing.
    backend.submit(task([0, 1], np.full(3, 0.1)))
    np.testing.assert_array_equal(backend.collect().updates, np.zeros((2, 3)))


def test_single_clients_come_back_one_by_one_each_with_its_own_model_and_time() -> None:
    # The ids, which numbers follow, run against the partitions: the first client takes 3 s.
    backend, grid = warm_backend_of([2.5, 5.0, 3.0])
    for client in range(3):
        backend.submit(task([client], np.full(3, 1.0 + client)))
        grid.time += 0.5
    first = backend.collect(1)
    assert first.clients.tolist() == [0]
    np.testing.assert_allclose([first.seconds[0], first.lasted], [3.0, 3.0])
    backend.submit(task([0], np.full(3, 9.0), index=1))
    rest = [backend.collect(1), backend.collect(2)]
    assert [each.clients.tolist() for each in rest] == [[2], [0, 1]]
    np.testing.assert_allclose(rest[0].seconds, [2.5])
    np.testing.assert_allclose(rest[1].seconds, [3.0, 5.0])
    for reply in (first, *rest):  # each from the model that it was sent
        np.testing.assert_array_equal(reply.updates, np.ones((reply.clients.size, 3)))
    assert first.lasted + sum(each.lasted for each in rest) == pytest.approx(grid.time)
    assert backend.collect().clients.size == 0
    assert backend.collect().lasted == 0


def test_a_late_client_counts_as_collected_and_is_in_no_reply() -> None:
    backend, _ = warm_backend_of([1.0, 1.0, 50.0], deadline=4.0)
    for client in range(2):
        backend.submit(task([client], np.zeros(3)))
    replies = [backend.collect(1), backend.collect(1)]
    assert [each.clients.tolist() for each in replies] == [[1], []]
    assert [each.missing.tolist() for each in replies] == [[], [0]]
    assert sum(each.lasted for each in replies) == pytest.approx(4.0)
    here = backend.present(1, 4.0).clients
    assert here is not None
    assert here.tolist() == [False, True, True]


def test_the_first_single_replies_are_held_until_they_can_be_judged_together() -> None:
    backend, _ = backend_of([1.0, 2.0, 3.0])
    for client in range(3):
        backend.submit(task([client], np.zeros(3)))
    replies = [backend.collect(1) for _ in range(3)]
    assert [each.clients.tolist() for each in replies] == [[], [], [0, 1, 2]]
    assert [each.missing.size for each in replies] == [0, 0, 0]


def test_waiting_for_clients_counts() -> None:
    class Leaving(MemoryGrid):
        def get_node_ids(self) -> Iterable[int]:
            away = 20.0 <= self.time < 50.0
            return [] if away else super().get_node_ids()

    grid = Leaving(client_app(), lambda *_: 8.0, partitions=range(CLIENTS))
    strategy = strategy_on(grid, scheme="uniform")
    strategy.start(grid, START, num_rounds=5)
    waiting = [row.waiting_seconds for row in strategy.history.rows]
    assert waiting[:4] == [0, 0, 0, 0]
    assert waiting[4] == pytest.approx(26, abs=1)  # gone after three rounds, until 50
    seconds = np.diff([row.seconds for row in strategy.history.rows])
    np.testing.assert_allclose(seconds, np.array(waiting[1:]) + 8.0)


def test_clients_evaluate_only_where_it_is_due_and_the_server_always() -> None:
    def asked(grid: MemoryGrid) -> int:
        return sum(kind == "evaluate" for kind, _ in grid.asked)

    grid = grid_with()
    model = as_vector(START)
    clients = strategy_on(grid, fraction_evaluate=1.0).backend_on(grid, StartArguments(START, 60.0))
    assert clients.evaluate(model, due=False) is None
    assert asked(grid) == 0
    assert clients.evaluate(model, due=True) is not None
    assert asked(grid) == 1
    for settings in ({"fraction_evaluate": 0.0}, {"evaluate_every": 0, "fraction_evaluate": 1.0}):
        nobody = strategy_on(grid, **settings).backend_on(grid, StartArguments(START, 60.0))
        assert nobody.evaluate(model, due=True) is None
    training = StartArguments(START, 60.0, evaluate_fn=lambda *_: MetricRecord({"loss": 3.0}))
    server = strategy_on(grid).backend_on(grid, training)
    assert server.evaluate(model, due=False) == pytest.approx((3.0, np.nan), nan_ok=True)
    assert asked(grid) == 1
