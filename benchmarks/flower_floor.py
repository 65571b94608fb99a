"""What Flower's floor per round leaves of the gain, for many orders of who is slow.

    python benchmarks/flower_floor.py
    python benchmarks/flower_floor.py --app quickstart --spreads 1 1.1 2 35 --schemes "pace, auto"

An app of examples/flower in one process, with real ClientApps and Flower's own FedAvg, on a clock
that jumps: a reply takes the client's delay plus the floor. `--spreads` are the longest delays over
the shortest. Prints the time of FedAvg over that of each scheme and mode, its mean over all orders
and its range; none is left out. FedAvg
loses some 1.5 s a round more by looking for replies only every three seconds; that is not counted
here.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp.strategy import FedAvg, Strategy

from fedpace.flower import AdaptiveSampling, WarmUp

ROOT = Path(__file__).parents[1]
sys.path[:0] = [
    str(ROOT),
    *(str(ROOT / "examples/flower" / app) for app in ("logistic", "quickstart")),
]
from flower_federation import FASTEST, RATE, SLOWEST, STEPS, delays  # noqa: E402
from tests.flower.memory_grid import MemoryGrid  # noqa: E402

NODES, K, MOST_ROUNDS = 8, 3, 400
FLOORS = (0.0, 2.0, 5.0, 8.0, 20.0)
MODES: dict[str, Any] = {"pace, asynchronous": "asynchronous", "pace, auto": "auto"}
SCHEMES = ("fedavg", "uniform", "optimal-mean", "optimal-max", "pace", *MODES)
ORDERS = 10


class App(NamedTuple):
    """An app of examples/flower, its loss on all data, and the loss to reach."""

    client: Any
    initial: Callable[[], list[Any]]
    loss: Callable[[list[Any]], float]
    target: float
    rate: float
    steps: int
    query: bool

    @classmethod
    def named(cls, name: str) -> App:
        """Return the logistic example, or the quickstart as it is."""
        task = importlib.import_module(f"{name}_app.task")
        client = importlib.import_module(f"{name}_app.client_app").app
        logistic = name == "logistic"
        part, score = (
            (task.samples, task.loss_and_accuracy) if logistic else (task.load_data, task.test)
        )
        x, y = (np.concatenate(each) for each in zip(*map(part, range(NODES)), strict=True))
        rest = (0.45, RATE, STEPS, True) if logistic else (0.35, 0.02, 10, False)
        return cls(client, task.initial, lambda arrays: score(arrays, x, y)[0], *rest)


class EnoughError(Exception):
    """The target is reached."""


def strategy_of(scheme: str, grid: MemoryGrid, seed: int, *, query: bool) -> Strategy:
    if scheme == "fedavg":
        random.seed(seed)  # Flower draws by it
        return FedAvg(
            fraction_train=K / NODES,
            fraction_evaluate=0.0,
            min_train_nodes=K,
            min_available_nodes=NODES,
        )
    mode, scheme = MODES.get(scheme, "synchronous"), scheme.partition(",")[0]
    usual = scheme == "pace"
    return AdaptiveSampling(
        k=K,
        scheme=scheme,
        mode=mode,
        query=query,
        count_start=True,
        pilots=None if usual else WarmUp(5),
        refresh=10 if usual else 5,
        expected_nodes=NODES,
        fraction_evaluate=0.0,
        seed=seed,
        clock=grid.clock,
    )


def seconds_to_target(
    app: App, scheme: str, seconds: Callable[[int, int], float], seed: int
) -> float:
    grid = MemoryGrid(app.client, seconds, partitions=range(NODES))
    for context in grid._contexts.values():
        context.run_config["local-steps"] = app.steps

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        del server_round
        loss = app.loss(arrays.to_numpy_ndarrays())
        if loss <= app.target:
            raise EnoughError
        return MetricRecord({"loss": loss})

    try:
        strategy_of(scheme, grid, seed, query=app.query).start(
            grid=grid,
            initial_arrays=ArrayRecord(app.initial()),
            num_rounds=MOST_ROUNDS,
            train_config=ConfigRecord({"lr": app.rate}),
            evaluate_fn=evaluate,
        )
    except EnoughError:
        return grid.time
    raise RuntimeError(f"{scheme} does not reach a loss of {app.target}")


def main() -> None:
    logging.disable(logging.CRITICAL)
    parser = argparse.ArgumentParser(description="Time of FedAvg over that of each scheme.")
    parser.add_argument("--app", default="logistic", choices=("logistic", "quickstart"))
    parser.add_argument("--orders", type=int, default=ORDERS)
    parser.add_argument("--floors", type=float, nargs="+", default=FLOORS)
    parser.add_argument("--spreads", type=float, nargs="+", default=[SLOWEST / FASTEST])
    parser.add_argument("--schemes", nargs="+", default=SCHEMES[1:], choices=SCHEMES[1:])
    asked = parser.parse_args()
    app = App.named(asked.app)
    print(f"{asked.app}, {NODES} nodes, K = {K}, loss {app.target}, {asked.orders} orders\n")
    print("| longest over shortest delay | seconds of floor |", " | ".join(asked.schemes), "|")
    print("|---:|---:|" + "---:|" * len(asked.schemes))
    for spread, floor in ((spread, floor) for spread in asked.spreads for floor in asked.floors):
        ratios: dict[str, list[float]] = {scheme: [] for scheme in asked.schemes}
        for order in range(asked.orders):
            waits = delays(NODES, order, SLOWEST / spread)
            times = {
                scheme: seconds_to_target(app, scheme, lambda i, _: waits[i] + floor, order)  # noqa: B023
                for scheme in ("fedavg", *asked.schemes)
            }
            for scheme, found in ratios.items():
                found.append(times["fedavg"] / times[scheme])
        cells = [f"{np.mean(x):.2f}× ({min(x):.2f} to {max(x):.2f})" for x in ratios.values()]
        print(f"| {spread:g} | {floor:g} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
