"""What the server does: the strategy is fedpace's, everything else is Flower's."""

from __future__ import annotations

from pathlib import Path

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp

from fedpace.flower import AdaptiveSampling, WarmUp
from lenet_app.task import LeNet5

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, and write what happened."""
    settings = context.run_config
    torch.manual_seed(int(settings["seed"]))
    strategy = AdaptiveSampling(
        query=True,
        k=int(settings["k"]),
        scheme=str(settings["scheme"]),
        pilots=WarmUp(int(settings["warm-up"])),
        expected_nodes=int(settings["nodes"]),
        deadline=float(settings["deadline"]),
        seed=int(settings["seed"]),
        target_loss=float(settings["target-loss"]) or None,
        evaluate_every=int(settings["evaluate-every"]),
        checkpoint=str(settings["checkpoint"]) or None,
    )
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(LeNet5().state_dict()),
        num_rounds=int(settings["rounds"]),
        train_config=ConfigRecord({"lr": float(settings["learning-rate"])}),
    )
    if path := str(settings["history"]):
        strategy.history.write_csv(Path(path))
    last = max(result.evaluate_metrics_clientapp, default=0)
    print(f"round {last}: {dict(result.evaluate_metrics_clientapp.get(last, {}))}")
