"""The ServerApp of flower_federation.py: Flower's FedAvg or ours, timed by one clock."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Strategy
from logistic_app.task import initial, loss_and_accuracy, samples

from fedpace.flower import AdaptiveSampling, WarmUp

app = ServerApp()


class EnoughError(Exception):
    """The target is reached, or the time is over."""


@app.main()
def main(grid: Grid, context: Context) -> None:
    settings = context.run_config
    nodes, target, limit = (
        int(settings["nodes"]),
        float(settings["target"]),
        float(settings["limit"]),
    )
    held = [samples(i) for i in range(nodes)]
    x, y = (np.concatenate(each) for each in zip(*held, strict=True))
    while len(list(grid.get_node_ids())) < nodes:
        time.sleep(0.5)
    began = time.monotonic()

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        seconds = time.monotonic() - began
        loss, accuracy = loss_and_accuracy(arrays.to_numpy_ndarrays(), x, y)
        line = {
            "scheme": settings["scheme"],
            "round": server_round,
            "seconds": seconds,
            "loss": loss,
        }
        with Path(str(settings["out"])).open("a") as file:
            file.write(json.dumps(line) + "\n")
        if loss <= target or seconds > limit:
            raise EnoughError
        return MetricRecord({"loss": loss, "accuracy": accuracy})

    strategy = chosen(
        str(settings["scheme"]), int(settings["k"]), nodes, query=bool(settings["query"])
    )
    with contextlib.suppress(EnoughError):
        strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(initial()),
            num_rounds=int(settings["rounds"]),
            train_config=ConfigRecord({"lr": float(settings["learning-rate"])}),
            evaluate_fn=evaluate,
        )
    if isinstance(strategy, AdaptiveSampling):
        strategy.history.write_csv(Path(f"{settings['out']}.{settings['scheme']}.csv"))
    print("benchmark: over")


def chosen(scheme: str, k: int, nodes: int, *, query: bool) -> Strategy:
    if scheme == "fedavg":
        return FedAvg(
            fraction_train=k / nodes,
            fraction_evaluate=0.0,
            min_train_nodes=k,
            min_available_nodes=nodes,
        )
    if scheme.startswith("pace"):
        mode = "synchronous" if scheme == "pace" else "asynchronous"
        return AdaptiveSampling(
            k=k, mode=mode, query=query, expected_nodes=nodes, fraction_evaluate=0.0
        )
    return AdaptiveSampling(
        query=query,
        k=k,
        scheme=scheme,
        pilots=WarmUp(5),
        refresh=5,
        expected_nodes=nodes,
        fraction_evaluate=0.0,
    )
