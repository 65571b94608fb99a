"""One client of twelve sends what it should not; the run goes on with the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedpace.flower import AdaptiveSampling, WarmUp
from tests.flower.federation import CLIENTS, START, client_app, grid_with, steady, strategy_on
from tests.flower.memory_grid import MemoryGrid

BAD = 3


def of_the_bad(change: Callable[[Message], None]) -> Callable[[Message, int], None]:
    return lambda reply, client: change(reply) if client == BAD else None


def trained(grid: MemoryGrid, rounds: int = 12, **settings: Any) -> AdaptiveSampling:
    usual: dict[str, Any] = {"pilots": WarmUp(2), "refresh": 2, "most_samples": 10.0}
    strategy = strategy_on(grid, **(usual | settings))
    strategy.start(grid, START, num_rounds=rounds)
    assert strategy.outcome is not None
    return strategy


def drawn(strategy: AdaptiveSampling, column: str) -> set[int]:
    """Return the clients of all rows that are in a column."""
    return {int(i) for row in strategy.history.rows for i in getattr(row, column)}


def header(text: str) -> bytes:
    """Return the bytes of an array whose header says what it likes."""
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


@pytest.mark.parametrize(
    "data",
    [
        header("{'descr': '<f8', 'fortran_order': False, 'shape': (3, 8), " + "(" * 40 + "\n"),
        header('"""' + " " * 60 + "\n"),
        header("(" * 3000 + "\n"),
        header("{'descr': '|O', 'fortran_order': False, 'shape': (3, 8), }\n"),
        b"\x93NUMPY\x09\x00" + b"x" * 100,
        b"nothing of the kind" * 10,
    ],
    ids=["unclosed", "unterminated", "deep", "objects", "version", "none"],
)
def test_bytes_that_are_no_array_are_a_missing_reply(data: bytes) -> None:
    def change(reply: Message) -> None:
        arrays = reply.content.array_records["arrays"]
        name = next(iter(arrays))
        arrays[name] = Array("float64", arrays[name].shape, "numpy.ndarray", data.ljust(200, b" "))

    strategy = trained(grid_with(change=of_the_bad(change)), scheme="uniform", k=8)
    assert drawn(strategy, "refused") == {BAD}
    assert drawn(strategy, "clients") == set(range(CLIENTS)) - {BAD}


def test_a_reply_that_raises_what_nobody_thought_of_is_a_missing_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Exploding(ArrayRecord):
        def __iter__(self) -> Any:
            raise ZeroDivisionError("x\nWARNING forged")

    def change(reply: Message) -> None:
        reply.content.array_records["arrays"].__class__ = Exploding

    strategy = trained(grid_with(change=of_the_bad(change)), scheme="uniform", k=8)
    assert drawn(strategy, "refused") == {BAD}


@pytest.mark.parametrize("name", ["train_loss", "num-examples", "eval_loss"])
def test_a_metric_of_four_hundred_digits_ends_no_run(name: str) -> None:
    def change(reply: Message) -> None:
        for record in reply.content.metric_records.values():
            record[name] = 10**400

    strategy = trained(grid_with(change=of_the_bad(change)), scheme="uniform", k=8)
    assert BAD in drawn(strategy, "clients") | drawn(strategy, "refused")


def test_a_client_cannot_forge_lines_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    app = client_app()

    class Raising(MemoryGrid):
        def _reply(self, message: Message, node: int) -> Message:
            reply = super()._reply(message, node)
            if self.partitions[node] == BAD and message.metadata.message_type == "train":
                from flwr.app import Error

                return Message(Error(2, "x\nWARNING forged\x1b[2J"), reply_to=message)
            return reply

    trained(Raising(app, steady, partitions=range(CLIENTS)), rounds=4, scheme="full")
    assert "forged" in caplog.text
    for record in caplog.records:
        if "left out" in record.getMessage():
            assert record.getMessage().isprintable()


@pytest.mark.parametrize("norm", [1e-40, 1e-150, 1e308])
@pytest.mark.parametrize("scheme", ["optimal-mean", "optimal-max", "pace"])
def test_no_gradient_norm_ends_a_run(norm: float, scheme: str) -> None:
    def change(reply: Message) -> None:
        reply.content.metric_records["metrics"]["grad-norm"] = norm

    strategy = trained(grid_with(change=of_the_bad(change)), scheme=scheme)
    assert strategy.outcome is not None
    assert strategy.outcome.state.ended == "rounds"
    assert np.isfinite(strategy.history.rows[-1].weights).all()


@pytest.mark.parametrize("norm", [1e-150, 1e308])
def test_of_two_clients_one_may_say_any_gradient_norm(norm: float) -> None:
    def change(reply: Message, client: int) -> None:
        if client == 0:
            reply.content.metric_records["metrics"]["grad-norm"] = norm

    grid = MemoryGrid(client_app(change=change), steady, partitions=range(2))
    strategy = trained(grid, k=2, min_available_nodes=2)
    assert all(np.isfinite(row.weights).all() for row in strategy.history.rows[1:])
    assert drawn(strategy, "clients") == {0, 1}


EVALUATIONS: dict[str, dict[str, float]] = {
    "infinite": {"eval_loss": float("inf")},
    "none": {"eval_loss": float("nan")},
    "negative": {"eval_loss": -1e9},
    "many_examples": {"eval_loss": 0.0, "num-examples": 2**60},
    "accuracy": {"eval_acc": 1e9},
    "many_right": {"eval_acc": 1.0, "num-examples": 2**60},
}


@pytest.mark.parametrize("said", EVALUATIONS.values(), ids=EVALUATIONS)
@pytest.mark.parametrize("bad", [0, CLIENTS - 1])
def test_one_evaluation_does_not_end_a_run(said: dict[str, float], bad: int) -> None:
    honest, app = client_app(), ClientApp()
    app.train()(lambda message, context: honest(message, context))

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        reply = honest(message, context)
        if context.node_config["partition-id"] == bad:
            record = reply.content.metric_records["metrics"]
            return Message(
                RecordDict({"metrics": MetricRecord({**record, **said})}), reply_to=message
            )
        return reply

    grid = MemoryGrid(app, steady, partitions=range(CLIENTS))
    stop = {"target_loss": 0.3, "target_accuracy": 0.95}
    strategy = trained(
        grid, 4, scheme="uniform", fraction_evaluate=1.0, evaluate_every=1, query=False, **stop
    )
    assert strategy.outcome is not None
    assert strategy.outcome.state.ended == "rounds"
    assert all(0.5 < row.loss < 4 for row in strategy.history.rows[1:])


def test_a_model_that_diverges_is_said_to_by_most() -> None:
    honest, app = client_app(), ClientApp()
    app.train()(lambda message, context: honest(message, context))

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        record = MetricRecord({"eval_loss": float("inf"), "num-examples": 5})
        return Message(RecordDict({"metrics": record}), reply_to=message)

    grid = MemoryGrid(app, steady, partitions=range(CLIENTS))
    strategy = strategy_on(
        grid, scheme="uniform", fraction_evaluate=1.0, evaluate_every=1, query=False
    )
    strategy.start(grid, START, num_rounds=4)
    assert strategy.outcome is not None
    assert strategy.outcome.state.ended == "diverged"


def test_a_first_update_of_1e37_is_refused_also_after_a_restart(tmp_path: Any) -> None:
    def change(reply: Message) -> None:
        arrays = reply.content.array_records["arrays"]
        for name, array in list(arrays.items()):
            arrays[name] = Array(np.full(array.shape, 1e37))

    for rounds in (3, 6):
        grid = grid_with(change=of_the_bad(change))
        strategy = trained(grid, rounds, scheme="full", checkpoint=tmp_path / "run.npz")
        assert drawn(strategy, "clients") == set(range(CLIENTS)) - {BAD}
        assert np.abs(strategy.history.rows[-1].grad_norms).max() < 1e6
