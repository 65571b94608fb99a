"""What the server's own work costs with a million clients, in both modes: CPU time, no training.

    OPENBLAS_NUM_THREADS=1 python benchmarks/million_clients.py [--clients 1000000]

C = K = 100; t ~ Exp(1), p from a power law with exponent 2.5. Clients answer in simulated time with
updates of ten numbers. A completion is everything between two replies: turns, plans, statistics,
the step and its row; re-planning is in the mean and the slowest.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from fleets import Fleet, make_fleet
from tables import print_table, seconds

from fedpace import Seeds, Steady, Stop, SynchronousTraining, constant, sampler_for
from fedpace.backends.local import LocalUpdates
from fedpace.backends.simulator import SimulatedClock
from fedpace.checks import FloatArray
from fedpace.training.asynchronous import AsynchronousTraining
from fedpace.training.backend import Evaluation, Task

PARAMETERS, AT_WORK = 10, 100


class Answering(SimulatedClock):
    """Clients that answer at once with random updates, by a simulated clock."""

    def __init__(self, fleet: Fleet, *, known: bool) -> None:
        super().__init__()
        self.times, self.times_known = Steady(fleet.times), known
        self._weights, self._lengths = fleet.weights, fleet.grad_norms / fleet.grad_norms.mean()
        self._rng = np.random.default_rng(0)

    @property
    def weights(self) -> FloatArray:
        return self._weights

    def initial(self) -> FloatArray:
        return np.ones(PARAMETERS)

    def evaluate(self, parameters: FloatArray, *, due: bool = True) -> Evaluation | None:  # noqa: ARG002
        return None

    def train_tasks(self, tasks: Sequence[Task]) -> list[LocalUpdates]:
        return [self._updates(task) for task in tasks]

    def _updates(self, task: Task) -> LocalUpdates:
        lengths = self._lengths[task.clients]
        moves = -0.01 * task.parameters + 0.001 * self._rng.normal(size=(lengths.size, PARAMETERS))
        return LocalUpdates(lengths[:, None] * moves, lengths)


def measured(scheme: str, mode: str, fleet: Fleet, count: int, *, known: bool) -> list[float]:
    """Return the seconds of the first dispatch, or round, and of each of `count` after it."""
    backend = Answering(fleet, known=known)
    how: dict[str, Any] = {"schedule": constant(0.05), "stop": Stop(blind=True), "seeds": Seeds(0)}
    sampler: Any = sampler_for(scheme, AT_WORK, mode=mode)
    run: Any
    spent = []
    if mode == "asynchronous":
        run = AsynchronousTraining(backend, sampler, at_once=AT_WORK, evaluate_every=0, **how)
        began = time.process_time()
        for task in run.tasks():
            backend.submit(task)
        spent.append(time.process_time() - began)
    else:
        run = SynchronousTraining(backend, sampler, evaluate_every=0, **how)
    for _ in range(count):
        began = time.process_time()
        run.advance()
        spent.append(time.process_time() - began)
    return spent


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=1_000_000)
    parser.add_argument("--completions", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    fleet = make_fleet(options.clients, "exponential", seed=0)
    for mode, count, schemes in (
        ("asynchronous", options.completions, ("uniform", "weighted", "pace")),
        ("synchronous", options.rounds, ("uniform", "weighted", "pace")),
    ):
        rows = []
        for scheme in schemes:
            for known in (False, True):
                first, *rest = measured(scheme, mode, fleet, count, known=known)
                rows.append(
                    [
                        f"`{scheme}`, {mode}", "known" if known else "learned", seconds(first),
                        *(seconds(float(each)) for each in (np.median(rest), np.mean(rest))),
                        seconds(max(rest)),
                    ]
                )  # fmt: skip
        print_table(["scheme", "times", "first", "median", "mean", "slowest"], rows)


if __name__ == "__main__":
    main()
