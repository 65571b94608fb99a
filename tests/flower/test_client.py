"""What the mod and the helper add to a reply."""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedpace.errors import InputError
from fedpace.flower import GradientNorms, answer_query, measure_mod
from tests.flower.memory_grid import MemoryGrid

CONTEXT = Context(1, 2, {"partition-id": 4}, RecordDict(), {})


def message(kind: str = "train") -> Message:
    MemoryGrid(ClientApp(), lambda *_: 0.0, partitions=())  # gives this process a task
    return Message(RecordDict({"arrays": ArrayRecord([np.zeros(2)])}), 2, kind)


def metrics_of(reply: Message) -> dict[str, Any]:
    (record,) = reply.content.metric_records.values()
    return dict(record)


def torch_training(metrics: dict[str, Any], norms: list[float]) -> ClientApp:
    """Return an app that trains a layer for three steps and notes the norms itself."""
    app = ClientApp(mods=[measure_mod])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        layer = torch.nn.Linear(3, 2)
        optimiser = torch.optim.SGD(layer.parameters(), lr=0.1)
        for step in range(3):
            optimiser.zero_grad()
            layer(torch.full((4, 3), 1.0 + step)).square().mean().backward()
            squares = [
                float(p.grad.square().sum()) for p in layer.parameters() if p.grad is not None
            ]
            norms.append(math.sqrt(sum(squares)))
            optimiser.step()
        return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)

    return app


def test_adds_the_root_mean_square_norm_of_every_optimiser_step() -> None:
    norms: list[float] = []
    reply = torch_training({"num-examples": 5}, norms)(message(), CONTEXT)
    found = metrics_of(reply)
    assert found["local-steps"] == 3
    assert found["grad-norm"] == pytest.approx(math.sqrt(np.mean(np.square(norms))), rel=1e-6)
    assert 0 < found["computing-seconds"] < 60
    assert found["num-examples"] == 5


def test_what_the_train_function_reports_itself_stays() -> None:
    reply = torch_training({"num-examples": 5, "grad-norm": 1.5}, [])(message(), CONTEXT)
    assert metrics_of(reply)["grad-norm"] == 1.5


def test_leaves_no_hook_behind_and_evaluations_alone() -> None:
    norms: list[float] = []
    app = torch_training({"num-examples": 5}, norms)
    app(message(), CONTEXT)
    from torch.optim.optimizer import _global_optimizer_pre_hooks

    assert not _global_optimizer_pre_hooks
    assert set(metrics_of(app(message("evaluate"), CONTEXT))) == {"num-examples"}


def test_steps_in_another_thread_do_not_count() -> None:
    app = ClientApp(mods=[measure_mod])

    def step() -> None:
        layer = torch.nn.Linear(1, 1)
        layer(torch.ones(1, 1)).sum().backward()
        torch.optim.SGD(layer.parameters(), lr=0.1).step()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        other = threading.Thread(target=step)
        other.start()
        other.join()
        return Message(RecordDict({"metrics": MetricRecord({"num-examples": 1})}), reply_to=message)

    assert "grad-norm" not in metrics_of(app(message(), CONTEXT))


@pytest.mark.parametrize("samples", [0, -3, 2.5, math.nan, math.inf, [4]])
def test_a_sample_count_that_is_none_is_refused_on_the_client(samples: int) -> None:
    app = torch_training({"num-examples": samples}, [])
    with pytest.raises(InputError, match="num-examples must be a positive integer"):
        app(message(), CONTEXT)


def test_a_missing_sample_count_is_mentioned(caplog: pytest.LogCaptureFixture) -> None:
    torch_training({}, [])(message(), CONTEXT)
    assert "num-examples" in caplog.text


def test_a_reply_without_metrics_gets_some() -> None:
    app = ClientApp(mods=[measure_mod])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return Message(RecordDict(), reply_to=message)

    assert set(metrics_of(app(message(), CONTEXT))) == {"computing-seconds"}


def test_gradients_of_numpy_and_torch_give_the_same_norm() -> None:
    arrays = [np.array([[3.0, 0.0], [4.0, 0.0]]), np.array([12.0])]
    plain, tensors = GradientNorms(), GradientNorms()
    plain.add(arrays)
    tensors.add(torch.tensor(each) for each in arrays)
    assert plain.metrics()["grad-norm"] == tensors.metrics()["grad-norm"] == 13.0


def test_gradients_of_16_bits_are_squared_in_more() -> None:
    arrays = [np.full(4, 300.0, np.float16), np.zeros(2, np.float16)]  # 300² is beyond 65504
    plain, tensors = GradientNorms(), GradientNorms()
    plain.add(arrays)
    tensors.add(torch.tensor(each) for each in arrays)
    assert plain.metrics()["grad-norm"] == tensors.metrics()["grad-norm"] == 600.0


def test_a_query_is_answered_with_partition_and_count() -> None:
    reply = answer_query(message("query"), CONTEXT, samples=12)
    assert metrics_of(reply) == {"partition-id": 4, "num-examples": 12}
    nobody = Context(1, 2, {}, RecordDict(), {})
    assert not metrics_of(answer_query(message("query"), nobody))
