"""An app in which Flower's strategies, and one of a user's, aggregate what fedpace draws."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, FedProx, FedYogi

from fedpace.flower import AdaptiveSampling

client = ClientApp()
server = ServerApp()


class Own(FedAvg):
    """A user's own: it tells clients how far to go, and goes half the way."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Any:
        """Send the model, and what clients do with it."""
        config["towards"], self.before = 2.0, arrays.to_numpy_ndarrays()
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Any
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the mean of the model before and that of FedAvg."""
        arrays, metrics = super().aggregate_train(server_round, replies)
        assert arrays is not None
        halves = zip(self.before, arrays.to_numpy_ndarrays(), strict=True)
        return ArrayRecord([(one + other) / 2 for one, other in halves]), metrics


STRATEGIES: dict[str, Callable[[], FedAvg]] = {
    "FedAvg": FedAvg,
    "FedAdam": FedAdam,
    "FedYogi": FedYogi,
    "FedProx": lambda: FedProx(proximal_mu=0.1),
    "FedAvgM": FedAvgM,
    "Own": Own,
}


def received(message: Message) -> np.ndarray:
    return message.content.array_records["arrays"].to_numpy_ndarrays()[0]


@client.train()
def train(message: Message, context: Context) -> Message:
    if context.run_config["broken"]:
        raise ValueError("the disk of this client is full")
    weights, config = received(message), message.content.config_records["config"]
    towards = float(config.get("towards", 1.0))  # type: ignore[arg-type]
    metrics = MetricRecord({"num-examples": 1 + int(context.node_config["partition-id"])})
    arrays = ArrayRecord([weights + 0.5 * (towards - weights)])
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    settings = context.run_config
    start, out = ArrayRecord([np.zeros(3)]), Path(str(settings["out"]))

    def evaluated(_: int, arrays: ArrayRecord) -> MetricRecord:
        return MetricRecord({"loss": float(((1 - arrays.to_numpy_ndarrays()[0]) ** 2).mean())})

    rounds, nodes = int(settings["rounds"]), int(settings["nodes"])
    for name in str(settings["strategies"]).split() or STRATEGIES:
        strategy = AdaptiveSampling(
            STRATEGIES[name](),
            k=2,
            expected_nodes=nodes,
            evaluate_every=0,
            target_loss=1e-9,
            out=out / name,
        )
        strategy.start(grid, start, num_rounds=rounds, evaluate_fn=evaluated)
        strategy.history.write_csv(f"{out}/{name}.csv")  # a string
    plain = strategy.recorded(FedAvg(min_available_nodes=nodes, fraction_evaluate=0.0))
    plain.start(grid, start, num_rounds=rounds, evaluate_fn=evaluated)
    print("the app is over")
