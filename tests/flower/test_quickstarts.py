"""Apps in the shape of Flower's quickstarts: they run with FedAvg, and with ours instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from fedpace.flower import AdaptiveSampling, WarmUp, measure_mod
from tests.flower.memory_grid import MemoryGrid

SIZES, ROUNDS = (80, 12, 40, 25, 60), 12
rng = np.random.default_rng(0)
X = [rng.normal(size=(size, 4)) for size in SIZES]
Y = [(x @ np.array([1.0, -2.0, 0.5, 0.0]) + 0.3 > 0).astype(np.int64) for x in X]


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
        metrics = MetricRecord({"eval_loss": value, "num-examples": SIZES[client]})
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
            weights = weights - 0.5 * X[client].T @ (chance - Y[client]) / SIZES[client]
        return reply_with(ArrayRecord([weights]), {"num-examples": SIZES[client]}, message)

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
        return reply_with(arrays, {"num-examples": SIZES[client]}, message)

    def loss(arrays: ArrayRecord, client: int) -> float:
        chances = model_of(arrays).predict_proba(X[client])
        return float(-np.log(chances[np.arange(SIZES[client]), Y[client]]).mean())

    return evaluated(app, loss), ArrayRecord([np.zeros((1, 4)), np.zeros(1)])


def torch_app(*mods: Any) -> tuple[ClientApp, ArrayRecord]:
    app = ClientApp(mods=list(mods))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        x, y = tensors(int(context.node_config["partition-id"]))
        model = net()
        model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        rate = float(message.content.config_records["config"]["lr"])  # type: ignore[arg-type]
        optimiser = torch.optim.SGD(model.parameters(), lr=rate)
        for _ in range(5):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        metrics = {"train_loss": 0.0, "num-examples": len(y)}
        return reply_with(ArrayRecord(model.state_dict()), metrics, message)

    return evaluated(app, torch_loss), ArrayRecord(net().state_dict())


def tensors(client: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor(X[client], dtype=torch.float32), torch.tensor(Y[client])


def torch_loss(arrays: ArrayRecord, *clients: int) -> float:
    """Return the loss on what some clients hold together."""
    model = net()
    # FedAvg makes counters floats; PyTorch takes them.
    model.load_state_dict(arrays.to_torch_state_dict())
    x, y = (torch.cat(each) for each in zip(*map(tensors, clients), strict=True))
    return float(torch.nn.functional.cross_entropy(model.eval()(x), y).detach())


def global_evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Evaluate on the server, as Flower's PyTorch quickstart does."""
    return MetricRecord({"loss": torch_loss(arrays, *range(len(SIZES)))})


APPS: dict[str, Callable[[], tuple[ClientApp, ArrayRecord]]] = {
    "numpy": numpy_app,
    "sklearn": sklearn_app,
    "torch": torch_app,
    "torch with the mod": lambda: torch_app(measure_mod),
}


@pytest.mark.filterwarnings("ignore::UserWarning:sklearn", "ignore:lbfgs failed")
@pytest.mark.parametrize("name", APPS)
def test_reaches_what_fedavg_reaches_with_the_same_client(name: str) -> None:
    losses = {}
    more: dict[str, Any] = {}
    if name.startswith("torch"):
        more = {"train_config": ConfigRecord({"lr": 0.1}), "evaluate_fn": global_evaluate}
    for ours in (False, True):
        app, arrays = APPS[name]()
        grid = MemoryGrid(app, lambda client, _: 0.2 + client, partitions=range(len(SIZES)))
        strategy = (
            AdaptiveSampling(k=3, scheme="optimal-mean", pilots=WarmUp(4), clock=grid.clock)
            if ours
            else FedAvg()  # everyone: its draws cannot be seeded
        )
        result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=ROUNDS, **more)
        losses[ours] = float(result.evaluate_metrics_clientapp[ROUNDS]["eval_loss"])  # type: ignore[arg-type]
        assert len(result.evaluate_metrics_serverapp) == (ROUNDS + 1 if more else 0)
        if isinstance(strategy, AdaptiveSampling):
            kinds = [each.numpy().dtype for each in result.arrays.values()]
            assert kinds == [each.numpy().dtype for each in arrays.values()]
            adaptive = [row for row in strategy.history.rows if row.phase == "train"]
            assert len(adaptive) == ROUNDS - 4
            assert any(np.ptp(row.weights) > 0.01 for row in adaptive)
    assert losses[True] < 0.6
    assert losses[True] < 2 * losses[False]
