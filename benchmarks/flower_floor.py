"""What Flower's floor per round leaves of the gain, for many orders of who is slow.

    PYTHONPATH=.:examples/flower/logistic python benchmarks/flower_floor.py

The federation of flower_federation.py in one process, with real ClientApps and Flower's own FedAvg,
on a clock that jumps: a reply takes the client's delay plus the floor. Prints the time of FedAvg
over that of each scheme and mode, its mean over all orders and its range; none is left out. FedAvg
loses some 1.5 s a round more by looking for replies only every three seconds; that is not counted
here.
"""

from __future__ import annotations

import argparse
import logging
import random
from collections.abc import Callable
from typing import Any

import numpy as np
from flower_federation import RATE, STEPS, delays
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp.strategy import FedAvg, Strategy
from logistic_app import client_app  # type: ignore[import-not-found]
from logistic_app.task import (  # type: ignore[import-not-found]
    initial,
    loss_and_accuracy,
    samples,
)
from tests.flower.memory_grid import MemoryGrid

from fedpace.flower import AdaptiveSampling, WarmUp

NODES, K, TARGET, MOST_ROUNDS = 8, 3, 0.45, 300
FLOORS = (0.0, 2.0, 5.0, 8.0, 20.0)
MODES: dict[str, Any] = {"pace, asynchronous": "asynchronous", "pace, auto": "auto"}
SCHEMES = ("fedavg", "uniform", "optimal-mean", "optimal-max", "pace", *MODES)
ORDERS = 10
X, Y = (np.concatenate(each) for each in zip(*map(samples, range(NODES)), strict=True))


class EnoughError(Exception):
    """The target is reached."""


def strategy_of(scheme: str, grid: MemoryGrid, seed: int) -> Strategy:
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
        query=True,
        count_start=True,
        pilots=None if usual else WarmUp(5),
        refresh=10 if usual else 5,
        expected_nodes=NODES,
        fraction_evaluate=0.0,
        seed=seed,
        clock=grid.clock,
    )


def seconds_to_target(scheme: str, seconds: Callable[[int, int], float], seed: int) -> float:
    grid = MemoryGrid(client_app.app, seconds, partitions=range(NODES))
    for context in grid._contexts.values():
        context.run_config["local-steps"] = STEPS

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        del server_round
        loss, _ = loss_and_accuracy(arrays.to_numpy_ndarrays(), X, Y)
        if loss <= TARGET:
            raise EnoughError
        return MetricRecord({"loss": loss})

    try:
        strategy_of(scheme, grid, seed).start(
            grid=grid,
            initial_arrays=ArrayRecord(initial()),
            num_rounds=MOST_ROUNDS,
            train_config=ConfigRecord({"lr": RATE}),
            evaluate_fn=evaluate,
        )
    except EnoughError:
        return grid.time
    raise RuntimeError(f"{scheme} does not reach a loss of {TARGET}")


def main() -> None:
    logging.disable(logging.CRITICAL)
    parser = argparse.ArgumentParser(description="Time of FedAvg over that of each scheme.")
    parser.add_argument("--orders", type=int, default=ORDERS)
    parser.add_argument("--floors", type=float, nargs="+", default=FLOORS)
    parser.add_argument("--schemes", nargs="+", default=SCHEMES[1:], choices=SCHEMES[1:])
    asked = parser.parse_args()
    print(f"{NODES} nodes, K = {K}, loss {TARGET}, {asked.orders} orders\n")
    print("| seconds of floor |", " | ".join(asked.schemes), "|")
    print("|---:|" + "---:|" * len(asked.schemes))
    for floor in asked.floors:
        ratios: dict[str, list[float]] = {scheme: [] for scheme in asked.schemes}
        for order in range(asked.orders):
            waits = delays(NODES, order)
            times = {
                scheme: seconds_to_target(scheme, lambda i, _: waits[i] + floor, order)  # noqa: B023
                for scheme in ("fedavg", *asked.schemes)
            }
            for scheme, found in ratios.items():
                found.append(times["fedavg"] / times[scheme])
        cells = [f"{np.mean(x):.2f}× ({min(x):.2f} to {max(x):.2f})" for x in ratios.values()]
        print(f"| {floor:g} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
