"""Measure how time and memory grow with the number of clients.

    python benchmarks/scaling.py [--smallest 100] [--largest 1000000] [--ratio 1] [--heavy]

With --heavy the weights have a heavy tail: see `fleets.heavy_fleet`.

Every line is a fresh interpreter, with linear algebra on one thread. Time is the median of
some calls, wall clock and CPU; CPU is also given over that of sorting the times. Growth is the
ratio of CPU times over a tenfold N, divided by that of N log N, so 1 is N log N and less is
better. Memory is the peak that tracemalloc sees during one more call (NumPy reports its arrays
to it), beyond what was allocated before, in vectors of N float64. A solver that is expected to
need more than `--most-seconds` for a call is left out from there on.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np
from fleets import Fleet, heavy_fleet, make_fleet
from tables import print_table, seconds

from fedpace import Solution, solve_max_time, solve_mean_time, solve_tiers
from fedpace.sampling.solvers.independent import solve_independent
from fedpace.sampling.solvers.shares import solve_shares

# A fleet this small is solved often enough for a median; a large one once.
CLIENTS_PER_MEDIAN = 3_000_000
MOST_CALLS = 21


class Solver(NamedTuple):
    """P3, P2, tiers, shares (`draws` at once) or independent draws, perhaps with a cap."""

    name: str
    problem: Literal["P3", "P2", "tiers", "shares", "independent", "independent mean"]
    draws: int
    max_weight: float | None

    def __call__(self, fleet: Fleet, ratio: float) -> Solution:
        """Solve with c = `ratio` S_0; fleets come with S_0 = 1."""
        if self.problem == "P3":
            return solve_mean_time(*fleet, ratio, self.max_weight, self.draws)
        if self.problem == "shares":
            return solve_shares(*fleet, ratio, self.draws, self.max_weight)
        if self.problem.startswith("independent"):
            time: Literal["max", "mean"] = "mean" if self.problem.endswith("mean") else "max"
            return solve_independent(*fleet, ratio, self.draws, self.max_weight, time=time)
        solve = solve_max_time if self.problem == "P2" else solve_tiers
        return solve(*fleet, ratio, self.draws, self.max_weight)


SOLVERS = (
    Solver("P3", "P3", 10, None),
    Solver("P3, K = 10, capped", "P3", 10, 1.0),
    Solver("P2, K = 10", "P2", 10, None),
    Solver("P2, K = 10, capped", "P2", 10, 1.0),
    Solver("P2, K = 100", "P2", 100, None),
    Solver("P2, K = 100, capped", "P2", 100, 1.0),
    Solver("tiers, K = 10", "tiers", 10, None),
    Solver("tiers, K = 10, capped", "tiers", 10, 1.0),
    Solver("tiers, K = 100", "tiers", 100, None),
    Solver("tiers, K = 100, capped", "tiers", 100, 1.0),
    Solver("shares, C = 100", "shares", 100, None),
    Solver("shares, C = 100, capped", "shares", 100, 4.0),
    Solver("shares, C = 10,000", "shares", 10_000, None),
    Solver("shares, C = 10,000, capped", "shares", 10_000, 4.0),
    Solver("independent, mean time, K = 10", "independent mean", 10, None),
    Solver("independent, K = 10", "independent", 10, None),
    Solver("independent, K = 100", "independent", 100, None),
    Solver("independent, K = 100, capped", "independent", 100, 1.0),
)


class Measurement(NamedTuple):
    """Wall-clock and CPU seconds, peak memory in vectors of length N, and the steps taken."""

    wall: float
    cpu: float
    vectors: float
    steps: int
    sorts: float


def measure(solver: Solver, n: int, ratio: float, *, heavy: bool) -> Measurement:
    """Time the calls, then trace one more; the first small one only imports what is needed."""
    solver(make_fleet(max(10, solver.draws), "exponential", seed=0), ratio)
    fleet = heavy_fleet(n, 0) if heavy else make_fleet(n, "exponential", seed=0)
    calls = min(max(CLIENTS_PER_MEDIAN // n, 1), MOST_CALLS)
    times = [_times(solver, fleet, ratio) for _ in range(calls)]
    wall, cpu = (statistics.median(column) for column in zip(*times, strict=True))
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    solution = solver(fleet, ratio)
    _, peak = tracemalloc.get_traced_memory()
    vectors = (peak - before) / (8 * n)
    tracemalloc.stop()
    return Measurement(wall, cpu, vectors, solution.iterations, cpu / _sorting(fleet))


def _sorting(fleet: Fleet) -> float:
    """Return the CPU seconds that sorting the times takes, the least of five."""

    def once() -> float:
        begin = time.process_time()
        np.sort(fleet.times)
        return time.process_time() - begin

    return max(min(once() for _ in range(5)), 1e-9)


def _times(solver: Solver, fleet: Fleet, ratio: float) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    solver(fleet, ratio)
    return time.perf_counter() - wall, time.process_time() - cpu


def measure_apart(index: int, n: int, ratio: float, *, heavy: bool) -> Measurement:
    """Measure in a fresh interpreter."""
    result = subprocess.run(
        [sys.executable, __file__, "--one", str(index), str(n), "--ratio", str(ratio)]
        + ["--heavy"] * heavy,
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )
    return Measurement(*json.loads(result.stdout))


class Limits(NamedTuple):
    """Which N, and the longest a call may be expected to take."""

    smallest: int
    largest: int
    most_seconds: float


def rows(index: int, limits: Limits, ratio: float, *, heavy: bool) -> Iterator[list[str]]:
    """Yield a line for every tenfold N."""
    n, before = limits.smallest, None
    while n <= limits.largest:
        if before and before.wall * linearithmic_growth(n) > limits.most_seconds:
            yield [SOLVERS[index].name, f"{n:.0e}", *["–"] * 6]
            return
        found = measure_apart(index, n, ratio, heavy=heavy)
        growth = f"{found.cpu / before.cpu / linearithmic_growth(n):.2f}" if before else "–"
        yield [
            SOLVERS[index].name,
            f"{n:.0e}",
            seconds(found.wall),
            seconds(found.cpu),
            f"{found.sorts:.0f}",
            growth,
            f"{found.vectors:.1f}",
            str(found.steps),
        ]
        n, before = 10 * n, found


def linearithmic_growth(n: int) -> float:
    """Return N log N over its value for a tenth of N."""
    return 10 * math.log(n) / math.log(n / 10)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Measure time and memory against N.")
    parser.add_argument("--smallest", type=int, default=100)
    parser.add_argument("--largest", type=int, default=1_000_000)
    parser.add_argument("--most-seconds", type=float, default=60, help="for one call")
    parser.add_argument("--ratio", type=float, default=1, help="c in units of S_0")
    parser.add_argument("--heavy", action="store_true", help="weights with a heavy tail")
    parser.add_argument("--solvers", type=int, nargs="+", default=range(len(SOLVERS)))
    parser.add_argument("--one", nargs=2, type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        index, n = options.one
        found = measure(SOLVERS[index], n, options.ratio, heavy=options.heavy)
        print(json.dumps(found))
        return
    columns = "solver|N|wall clock|CPU|CPU / sort|growth / N log N|vectors|steps"
    limits = Limits(options.smallest, options.largest, options.most_seconds)
    print_table(
        columns.split("|"),
        (
            row
            for index in options.solvers
            for row in rows(index, limits, options.ratio, heavy=options.heavy)
        ),
    )


if __name__ == "__main__":
    main()
