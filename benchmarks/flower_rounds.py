"""The work of one round of Simulation Setup 1 in Flower's simulation engine.

Run by rounds.py with the Python of an environment that has flwr[simulation]; prints one JSON line.
"""

from __future__ import annotations

import json
import os
import sys
import time

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

DATA, ROUNDS, EVALUATE = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "evaluate"
CLIENTS, DRAWN, STEPS, BATCH = 100, 10, 50, 24
client_app = ClientApp()
server_app = ServerApp()
shards: dict[str, np.ndarray] = {}


def loaded() -> dict[str, np.ndarray]:
    """Read the data once per process."""
    if not shards:
        shards.update(np.load(DATA))
    return shards


def softmax(scores: np.ndarray) -> np.ndarray:
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    return scores / scores.sum(axis=1, keepdims=True)


@client_app.train()
def train(message: Message, context: Context) -> Message:
    data = loaded()
    client = int(context.node_config["partition-id"])
    rows = slice(data["offsets"][client], data["offsets"][client + 1])
    x, y = data["x"][rows], data["y"][rows]
    weights = message.content["arrays"].to_numpy_ndarrays()[0].copy()
    rate = float(message.content["config"]["lr"])
    rng = np.random.default_rng(client)
    for _ in range(STEPS):
        batch = rng.integers(len(y), size=BATCH)
        residual = softmax(x[batch] @ weights)
        residual[np.arange(BATCH), y[batch]] -= 1
        weights -= rate * (x[batch].T @ residual) / BATCH
    content = RecordDict(
        {
            "arrays": ArrayRecord([weights]),
            "metrics": MetricRecord({"num-examples": len(y)}),
        }
    )
    return Message(content=content, reply_to=message)


def evaluated(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Return the global loss, on the server: the cheapest way that Flower offers."""
    data = loaded()
    chosen = softmax(data["x"] @ arrays.to_numpy_ndarrays()[0])[
        np.arange(len(data["y"])), data["y"]
    ]
    return MetricRecord({"loss": float(-np.log(np.maximum(chosen, 1e-300)).mean())})


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    strategy = FedAvg(
        fraction_train=DRAWN / CLIENTS,
        min_available_nodes=CLIENTS,
        min_train_nodes=DRAWN,
        fraction_evaluate=0.0,
    )
    start = ArrayRecord([np.zeros((loaded()["x"].shape[1], 10))])
    began = time.perf_counter()
    strategy.start(
        grid=grid,
        initial_arrays=start,
        num_rounds=ROUNDS,
        train_config=ConfigRecord({"lr": 0.01}),
        evaluate_fn=evaluated if EVALUATE else None,
    )
    seconds = time.perf_counter() - began
    print(json.dumps({"rounds": ROUNDS, "seconds": seconds}), flush=True)


if __name__ == "__main__":
    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server_app, client_app, num_supernodes=CLIENTS, backend_config=resources)
