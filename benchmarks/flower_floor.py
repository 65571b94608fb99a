"""What Flower's floor per round leaves of the gain, for many orders of who is slow.

    python benchmarks/flower_floor.py
    python benchmarks/flower_floor.py --app quickstart --spreads 1 1.1 2 35 --schemes "pace, auto"

An app of examples/flower in one process, with real ClientApps and Flower's own FedAvg, on a clock
that jumps: a reply takes the client's delay plus the floor. `--spreads` are the longest delays over
the shortest; the baseline has exponential ones, and each order has data of its own. Prints the time
of FedAvg over that of each scheme and mode, its mean over all orders and its range; none is left
out. FedAvg loses some 1.5 s a round more by looking for replies only every three seconds; that is
not counted here.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import random
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp.strategy import FedAvg, Strategy

from fedpace import inverse
from fedpace.flower import AdaptiveSampling, WarmUp

ROOT = Path(__file__).parents[1]
EXAMPLES, APPS = ROOT / "examples" / "flower", ("logistic", "quickstart", "baseline")
sys.path[:0] = [str(ROOT), *(str(EXAMPLES / app) for app in APPS)]
from flower_federation import FASTEST, RATE, SLOWEST, STEPS, delays  # noqa: E402
from tests.flower.memory_grid import MemoryGrid  # noqa: E402

NODES, MOST_ROUNDS = 8, 1000
FLOORS = (0.0, 2.0, 5.0, 8.0, 20.0)
MODES: dict[str, Any] = {"pace, asynchronous": "asynchronous", "pace, auto": "auto"}
SCHEMES = ("fedavg", "uniform", "optimal-mean", "optimal-max", "pace", *MODES)
ORDERS = 10


class App(NamedTuple):
    """An app of examples/flower: its loss on all data, the loss to reach, and its settings."""

    client: Any
    initial: Callable[[], list[Any]]
    loss: Callable[[list[Any]], float]
    target: float
    settings: dict[str, Any]
    waits: list[float]
    config: dict[str, float]
    ours: dict[str, Any]
    k: int = 3

    @classmethod
    def named(cls, name: str, order: int, spread: float) -> App:
        """Return an app with the delays of an order: drawn as the paper does for the baseline."""
        package = "adaptive_sampling" if name == "baseline" else f"{name}_app"
        parts = ("client_app", "model" if name == "baseline" else "task")
        client, task = (importlib.import_module(f"{package}.{part}") for part in parts)
        if name == "baseline":
            dataset = importlib.import_module(f"{package}.dataset")
            settings = tomllib.loads((EXAMPLES / name / "pyproject.toml").read_text())
            settings = settings["tool"]["flwr"]["app"]["config"] | {
                "seed": order,
                "time-scale": 0.0,
            }
            held = dataset.split(settings["nodes"], order).train
            waits, target = dataset.seconds(settings["nodes"], order, 1.0), settings["target-loss"]
            rest: Any = waits, {}, {"schedule": inverse(settings["learning-rate"])}, settings["k"]
            x, y, score = held.x, held.y, task.loss_and_accuracy
        else:
            logistic = name == "logistic"
            part, score = (
                (task.samples, task.loss_and_accuracy) if logistic else (task.load_data, task.test)
            )
            x, y = (np.concatenate(each) for each in zip(*map(part, range(NODES)), strict=True))
            target, rate, steps = (0.45, RATE, STEPS) if logistic else (0.35, 0.02, 10)
            waits = delays(NODES, order, SLOWEST / spread)
            settings = {"local-steps": steps}
            rest = waits, {"lr": rate}, {"query": logistic}, 3
        return cls(client.app, task.initial, lambda w: score(w, x, y)[0], target, settings, *rest)


class EnoughError(Exception):
    """The target is reached."""


def strategy_of(app: App, scheme: str, grid: MemoryGrid, seed: int) -> Strategy:
    nodes = len(app.waits)
    if scheme == "fedavg":
        random.seed(seed)  # Flower draws by it
        return FedAvg(
            fraction_train=app.k / nodes,
            fraction_evaluate=0.0,
            min_train_nodes=app.k,
            min_available_nodes=nodes,
        )
    mode, scheme = MODES.get(scheme, "synchronous"), scheme.partition(",")[0]
    usual = scheme == "pace"
    return AdaptiveSampling(
        k=app.k,
        scheme=scheme,
        mode=mode,
        count_start=True,
        pilots=None if usual else WarmUp(5),
        refresh=10 if usual else 5,
        expected_nodes=nodes,
        fraction_evaluate=0.0,
        seed=seed,
        clock=grid.clock,
        **app.ours,
    )


def seconds_to_target(app: App, scheme: str, floor: float, seed: int) -> float:
    nodes = range(len(app.waits))
    grid = MemoryGrid(app.client, lambda i, _: app.waits[i] + floor, partitions=nodes)
    for context in grid._contexts.values():
        context.run_config.update(app.settings)

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        del server_round
        loss = app.loss(arrays.to_numpy_ndarrays())
        if loss <= app.target:
            raise EnoughError
        return MetricRecord({"loss": loss})

    try:
        strategy_of(app, scheme, grid, seed).start(
            grid=grid,
            initial_arrays=ArrayRecord(app.initial()),
            num_rounds=MOST_ROUNDS,
            train_config=ConfigRecord(dict(app.config)),
            evaluate_fn=evaluate,
        )
    except EnoughError:
        return grid.time
    raise RuntimeError(f"{scheme} does not reach a loss of {app.target}")


def main() -> None:
    logging.disable(logging.CRITICAL)
    parser = argparse.ArgumentParser(description="Time of FedAvg over that of each scheme.")
    parser.add_argument("--app", default="logistic", choices=APPS)
    parser.add_argument("--orders", type=int, default=ORDERS)
    parser.add_argument("--floors", type=float, nargs="+", default=FLOORS)
    parser.add_argument("--spreads", type=float, nargs="+", default=[SLOWEST / FASTEST])
    parser.add_argument("--schemes", nargs="+", default=SCHEMES[1:], choices=SCHEMES[1:])
    asked = parser.parse_args()
    app = App.named(asked.app, 0, 1.0)
    print(
        f"{asked.app}, {len(app.waits)} nodes, K = {app.k}, loss {app.target}, "
        f"{asked.orders} orders\n"
    )
    print("| longest over shortest delay | seconds of floor |", " | ".join(asked.schemes), "|")
    print("|---:|---:|" + "---:|" * len(asked.schemes))
    for spread, floor in ((spread, floor) for spread in asked.spreads for floor in asked.floors):
        ratios: dict[str, list[float]] = {scheme: [] for scheme in asked.schemes}
        for order in range(asked.orders):
            app = App.named(asked.app, order, spread)
            times = {
                scheme: seconds_to_target(app, scheme, floor, order)
                for scheme in ("fedavg", *asked.schemes)
            }
            for scheme, found in ratios.items():
                found.append(times["fedavg"] / times[scheme])
        cells = [f"{np.mean(x):.2f}× ({min(x):.2f} to {max(x):.2f})" for x in ratios.values()]
        print(f"| {spread:g} | {floor:g} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
