"""What a round costs the server with large models, beside Flower's FedAvg: CPU and memory.

    OPENBLAS_NUM_THREADS=1 python benchmarks/large_models.py [--megabytes 1 40 200] [--repeats 3]

A federation in this process: 20 nodes, K = 4, a model of four arrays in single precision. Nodes
answer with the model plus noise as bytes of their own, as from a network; what they spend is taken
off. CPU of the strategy is that of `start` per round, or per asynchronous update, after the first
rounds; memory is the peak above that before `start`, replies included. Every line is a process of
its own; strategies are run in turn, `--repeats` times, and the table has the medians.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np
from tables import print_table, seconds

NODES, DRAWN, ROUNDS, FIRST = 20, 4, 10, 5
STRATEGIES = ("FedAvg", "uniform", "weighted", "pace", "pace, asynchronous")


def measured(name: str, megabytes: int, rounds: int) -> dict[str, float]:
    """Return the CPU seconds of a round, or update, and the peak memory in MB."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
    from flwr.serverapp import Grid
    from flwr.serverapp.strategy import FedAvg

    from fedpace.flower import AdaptiveSampling

    logging.disable()
    size = megabytes * 250_000 // 4

    class Nodes(Grid):
        """Answer in simulated time; what nodes spend does not count."""

        def __init__(self) -> None:
            self.spent, self.sent, self.now = 0.0, 0, 0.0
            self.marks: list[tuple[float, int]] = []
            self.pending: dict[str, tuple[float, int, Message]] = {}
            self.noise = np.random.default_rng(0).normal(size=size).astype(np.float32)

        def get_node_ids(self) -> Iterable[int]:
            return range(NODES)

        def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
            self.marks.append((time.process_time() - self.spent, self.sent))
            names = []
            for message in messages:
                self.sent += 1
                name = str(self.sent)
                message.metadata.__dict__["_message_id"] = name
                node = message.metadata.dst_node_id
                self.pending[name] = (self.now + 1 + node / 10, node, message)
                names.append(name)
            return names

        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
            due = [name for name in message_ids if self.pending[name][0] <= self.now]
            return [self._reply(*self.pending.pop(name)[1:]) for name in sorted(due, key=int)]

        def send_and_receive(
            self,
            messages: Iterable[Message],
            *,
            timeout: float | None = None,  # noqa: ARG002
        ) -> Iterable[Message]:
            names = self.push_messages(messages)
            self.now += NODES
            return self.pull_messages(names)

        def sleep(self, _: float) -> None:
            self.now = min(due for due, *_ in self.pending.values())

        def _reply(self, node: int, message: Message) -> Message:
            began = time.process_time()
            (record,) = message.content.array_records.values()
            arrays = {
                name: Array(each.numpy() * np.float32(0.99) + np.float32(1e-3 * node) * self.noise)
                for name, each in record.items()
            }
            metrics = MetricRecord({"num-examples": 100 + node, "grad_norm": 1.0, "train_loss": 1})
            reply = Message(
                RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics}), reply_to=message
            )
            reply.metadata.__dict__["_src_node_id"] = node
            self.spent += time.process_time() - began
            return reply

        def set_run(self, run: Any) -> None:
            raise NotImplementedError

        @property
        def run(self) -> NoReturn:
            raise NotImplementedError

        def create_message(self, *args: object, **kwargs: object) -> NoReturn:
            raise NotImplementedError

    identity: Any = import_module("flwr.supercore.task_identity").TaskIdentity
    identity.task_id = identity.run_id = identity.node_id = 1  # only a task can make messages
    grid = Nodes()
    rng = np.random.default_rng(1)
    initial = ArrayRecord([rng.normal(size=size).astype(np.float32) for _ in range(4)])
    strategy: Any
    if name == "FedAvg":
        strategy = FedAvg(fraction_train=DRAWN / NODES, fraction_evaluate=0, min_train_nodes=DRAWN)
    else:
        scheme, _, mode = name.partition(", ")
        how: dict[str, Any] = {"fraction_evaluate": 0.0, "query": False, "wait": 1}
        how |= {"scheme": scheme, "mode": mode or "synchronous"}
        clock: Any = SimpleNamespace(now=lambda: grid.now, sleep=grid.sleep)
        strategy = AdaptiveSampling(k=DRAWN, clock=clock, **how)
    updates = rounds * (DRAWN if "asynchronous" in name else 1)
    before = _peak()
    strategy.start(grid, initial, num_rounds=updates, train_config=ConfigRecord({"lr": 0.1}))
    first = next(mark for mark in grid.marks if mark[1] >= FIRST * DRAWN)
    last = grid.marks[-1]
    per = (last[1] - first[1]) / (1 if "asynchronous" in name else DRAWN)
    return {"cpu": (last[0] - first[0]) / per, "memory": _peak() - before}


def _peak() -> float:
    """Return the peak memory of the process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def in_a_process(source: str | None, *arguments: object) -> dict[str, float]:
    command = [sys.executable, __file__, "--one", *map(str, arguments)]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    if source:
        environment["PYTHONPATH"] = source
    output = subprocess.check_output(command, text=True, env=environment)
    found: dict[str, float] = json.loads(output.splitlines()[-1])
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, nargs="*", default=[1, 40, 200])
    parser.add_argument("--strategies", nargs="*", default=STRATEGIES)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--source", help="the src folder of another version to measure")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        name, megabytes, rounds = options.one
        print(json.dumps(measured(name, int(megabytes), int(rounds))))
        return
    source = options.source and str(Path(options.source).resolve())
    rows = []
    for megabytes in options.megabytes:
        found: dict[str, list[dict[str, float]]] = {name: [] for name in options.strategies}
        for _ in range(options.repeats):
            for name, several in found.items():
                several.append(in_a_process(source, name, megabytes, options.rounds))
        base = median(each["cpu"] for each in found["FedAvg"])
        for name, several in found.items():
            cpu, memory = (median(each[x] for each in several) for x in ("cpu", "memory"))
            unit = base / DRAWN if "asynchronous" in name else base
            rows.append(
                [name, f"{megabytes} MB", seconds(cpu), f"{cpu / unit:.2f}", f"{memory:.0f} MB"]
            )
    titles = ["strategy", "model", "CPU of a round, or update", "times FedAvg", "peak memory"]
    print_table(titles, rows)
    print(f"\nLoad {os.getloadavg()[0]:.1f}, {options.repeats} repeats.")


if __name__ == "__main__":
    main()
