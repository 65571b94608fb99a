"""Apps in the shape of Flower's quickstarts: they run with FedAvg, and with ours instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from fedpace.flower import AdaptiveSampling, measured
from tests.flower.memory_grid import MemoryGrid

NODES, ROUNDS = 5, 8
rng = np.random.default_rng(0)
X = rng.normal(size=(NODES, 40, 4))
Y = (X @ np.array([1.0, -2.0, 0.5, 0.0]) + 0.3 > 0).astype(np.int64)


def net() -> torch.nn.Module:
    torch.manual_seed(0)
    layers = (
        torch.nn.Linear(4, 6),
        torch.nn.BatchNorm1d(6),
        torch.nn.ReLU(),
        torch.nn.Linear(6, 2),
    )
    return torch.nn.Sequential(*layers)


def reply_with(arrays: ArrayRecord, metrics: dict[str, Any], message: Message) -> Message:
    content = RecordDict({"arrays": arrays, "metrics": MetricRecord(metrics)})
    return Message(content=content, reply_to=message)


def evaluated(app: ClientApp, loss: Callable[[ArrayRecord, int], float]) -> ClientApp:
    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        client = int(context.node_config["partition-id"])
        value = loss(message.content.array_records["arrays"], client)
        metrics = MetricRecord({"eval_loss": value, "num-examples": 40})
        return Message(content=RecordDict({"metrics": metrics}), reply_to=message)

    return app


def numpy_app() -> tuple[ClientApp, ArrayRecord]:
    app = ClientApp()

    def loss(weights: np.ndarray, client: int) -> float:
        return float(np.logaddexp(0, -(2 * Y[client] - 1) * (X[client] @ weights)).mean())

    @app.train()
    def train(message: Message, context: Context) -> Message:
        client = int(context.node_config["partition-id"])
        (weights,) = message.content.array_records["arrays"].to_numpy_ndarrays()
        for _ in range(5):
            chance = 1 / (1 + np.exp(-X[client] @ weights))
            weights = weights - 0.5 * X[client].T @ (chance - Y[client]) / 40
        return reply_with(ArrayRecord([weights]), {"num-examples": 40}, message)

    app = evaluated(app, lambda arrays, client: loss(arrays.to_numpy_ndarrays()[0], client))
    return app, ArrayRecord([np.zeros(4)])


def sklearn_app() -> tuple[ClientApp, ArrayRecord]:
    linear_model = pytest.importorskip("sklearn.linear_model", reason="needs scikit-learn")
    app = ClientApp()

    def model_of(arrays: ArrayRecord) -> Any:
        model = linear_model.LogisticRegression(max_iter=5, warm_start=True)
        model.classes_ = np.array([0, 1])
        model.coef_, model.intercept_ = arrays.to_numpy_ndarrays()
        return model

    @app.train()
    def train(message: Message, context: Context) -> Message:
        client = int(context.node_config["partition-id"])
        model = model_of(message.content.array_records["arrays"])
        model.fit(X[client], Y[client])
        arrays = ArrayRecord([model.coef_, model.intercept_])
        return reply_with(arrays, {"num-examples": 40}, message)

    def loss(arrays: ArrayRecord, client: int) -> float:
        chances = model_of(arrays).predict_proba(X[client])
        return float(-np.log(chances[np.arange(40), Y[client]]).mean())

    return evaluated(app, loss), ArrayRecord([np.zeros((1, 4)), np.zeros(1)])


def torch_app(*mods: Any) -> tuple[ClientApp, ArrayRecord]:
    app = ClientApp(mods=list(mods))

    def data(client: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tensor(X[client], dtype=torch.float32), torch.tensor(Y[client])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        x, y = data(int(context.node_config["partition-id"]))
        model = net()
        model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(5):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        metrics = {"train_loss": 0.0, "num-examples": 40}
        return reply_with(ArrayRecord(model.state_dict()), metrics, message)

    def loss(arrays: ArrayRecord, client: int) -> float:
        model = net()
        # FedAvg makes counters floats; PyTorch takes them.
        model.load_state_dict(arrays.to_torch_state_dict())
        x, y = data(client)
        return float(torch.nn.functional.cross_entropy(model.eval()(x), y).detach())

    return evaluated(app, loss), ArrayRecord(net().state_dict())


APPS: dict[str, Callable[[], tuple[ClientApp, ArrayRecord]]] = {
    "numpy": numpy_app,
    "sklearn": sklearn_app,
    "torch": torch_app,
    "torch with the mod": lambda: torch_app(measured),
}


@pytest.mark.filterwarnings("ignore::UserWarning:sklearn", "ignore:lbfgs failed")
@pytest.mark.parametrize("name", APPS)
def test_reaches_what_fedavg_reaches_with_the_same_client(name: str) -> None:
    losses = {}
    for ours in (False, True):
        app, arrays = APPS[name]()
        grid = MemoryGrid(app, lambda client, _: 0.2 + client, partitions=range(NODES))
        strategy = (
            AdaptiveSampling(k=3, scheme="optimal-mean", clock=grid.clock)
            if ours
            else FedAvg()  # everyone: its draws cannot be seeded
        )
        result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=ROUNDS)
        losses[ours] = float(result.evaluate_metrics_clientapp[ROUNDS]["eval_loss"])  # type: ignore[arg-type]
        if ours:
            kinds = [each.numpy().dtype for each in result.arrays.values()]
            assert kinds == [each.numpy().dtype for each in arrays.values()]
    assert losses[True] < 0.6
    assert losses[True] < 2 * losses[False]
