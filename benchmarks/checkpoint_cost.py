"""What a checkpoint after every step costs where there is no barrier.

    OPENBLAS_NUM_THREADS=1 .venv/bin/python benchmarks/checkpoint_cost.py [--steps 40]

Clients of this benchmark answer at once, so that a step is nothing but the engine's own work:
whose turn it is, weights, the server's step, the sampler's learning. Times per step, of the steps
after the first 100 and 1,000 (rows of the first steps, repeated): without a checkpoint; with one
that is written behind, as runs do it; and if every step waited for the disk. The three take turns,
and medians over the turns are shown.
"""

from __future__ import annotations

import argparse
import heapq
import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from tables import print_table, seconds

from fedpace.checks import FloatArray
from fedpace.samplers.build import sampler_for
from fedpace.seeds import Seeds
from fedpace.servers.average import Average
from fedpace.servers.memory import Memory
from fedpace.training.asynchronous import AsynchronousTraining
from fedpace.training.backend import BaseBackend, Evaluation, Reply, Task
from fedpace.training.callbacks import Callback, RunInfo
from fedpace.training.checkpoint import Checkpoint, Found
from fedpace.training.history import Row
from fedpace.training.stopping import Stop, constant


class Case(NamedTuple):
    """A study's size: clients, those at work, parameters of the model, and the server."""

    name: str
    clients: int
    at_once: int
    size: int
    server: Any


CASES = (
    Case("logistic regression, prototype", 40, 4, 785 * 26, Average()),
    Case("LeNet-5 with memory, Setup 2", 100, 10, 61_706, Memory()),
)


# Steps after which a server with memory has heard of nearly all clients.
BEGIN = 60


class Instant(BaseBackend):
    """Clients that answer at once, in the order of their times."""

    def __init__(self, case: Case) -> None:
        rng = np.random.default_rng(0)
        self._clients = case.clients
        self._times: FloatArray = rng.exponential(size=case.clients) + 0.1
        self._updates = rng.normal(size=(8, case.size)) * 1e-3
        self._under_way: list[tuple[float, int]] = []
        self._now = 0.0

    @property
    def weights(self) -> FloatArray:
        return np.full(self._clients, 1 / self._clients)

    @property
    def usual_times(self) -> FloatArray:
        return self._times

    def initial(self) -> FloatArray:
        return np.zeros(self._updates.shape[1])

    def submit(self, task: Task) -> None:
        client = int(task.clients[0])
        heapq.heappush(self._under_way, (self._now + self._times[client], client))

    def collect(self, count: int | None = None) -> Reply:  # noqa: ARG002 - one at a time
        before = self._now
        self._now, client = heapq.heappop(self._under_way)
        return Reply(
            np.array([client]),
            self._updates[client % 8][None],
            self._times[[client]],
            np.ones(1),
            losses=np.ones(1),
            waited=self._now - before,
        )

    def evaluate(self, parameters: FloatArray, *, due: bool = True) -> Evaluation | None:  # noqa: ARG002
        return Evaluation(1.0, 0.5) if due else None


class Waiting(Checkpoint):
    """A checkpoint that returns when the disk has the step."""

    def on_row(self, run: RunInfo, row: Row) -> None:
        super().on_row(run, row)
        self.flush()


class Begun(Callback):
    """A checkpoint of a run that was ended, and is not written any more."""

    def __init__(self, found: Found) -> None:
        self._found = found

    def resume(self) -> Found:
        return self._found


def stream(case: Case, journal: Any) -> AsynchronousTraining:
    return AsynchronousTraining(
        Instant(case),
        sampler_for("weighted", case.at_once, mode="asynchronous"),
        at_once=case.at_once,
        server=case.server,
        schedule=constant(0.1),
        stop=Stop(rounds=10**9),
        seeds=Seeds(0),
        callbacks=[] if journal is None else [journal],
    )


def stepped(run: AsynchronousTraining, steps: int) -> float:
    """Return the seconds per step."""
    last, begin = run.state.round + steps, time.perf_counter()
    while run.state.round < last:
        run.advance()
    return (time.perf_counter() - begin) / steps


def measured(case: Case, after: int, *, steps: int, turns: int) -> list[str]:
    """Return a row of the table."""
    run = stream(case, None)
    stepped(run, BEGIN)
    rng = Seeds(0).stream("train")
    rows = [run.rows[i % BEGIN]._replace(round=i) for i in range(after + 1)]
    state = run.state._replace(round=after)
    found = Found(state, rows, dict(rng.bit_generator.state))
    times: list[list[float]] = [[], [], []]
    with TemporaryDirectory(dir=".") as folder:
        path = Path(folder) / "run.npz"
        written = Checkpoint(path, {})
        for row in rows:
            written.on_row(RunInfo("", 0, state, rng), row)
        written.flush()
        whole = path.read_bytes()
        for _ in range(turns):
            for found_times, journal in zip(
                times,
                (Begun(found), Checkpoint(path, {}), Waiting(path, {})),
                strict=True,
            ):
                going = stream(case, journal)
                stepped(going, 3)
                found_times.append(stepped(going, steps))
                going.flush()
                path.write_bytes(whole)
    alone, behind, waiting = (statistics.median(each) for each in times)
    return [
        case.name,
        f"{after:,}",
        f"{len(whole) / 1e6:.2f} MB",
        seconds(alone),
        f"{seconds(behind)} ({behind / alone:.2f}×)",
        f"{seconds(waiting)} ({waiting / alone:.2f}×)",
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--after", default="100,1000", help="steps that lie behind")
    parser.add_argument("--model", default="", help="part of a name; by default all")
    options = parser.parse_args()
    rows = (
        measured(case, int(after), steps=options.steps, turns=options.turns)
        for case in CASES
        if options.model in case.name
        for after in options.after.split(",")
    )
    header = ["model", "after steps", "file", "a step", "written behind", "waiting for the disk"]
    print_table(header, rows)


if __name__ == "__main__":
    main()
