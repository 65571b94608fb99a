"""Compare fedpace with general ways to the same optimum, on the same fleets, in one run.

    python benchmarks/solvers.py [--small 100] [--large 1000] [--seeds 5] [--large-seeds 2]

P3, the mean time: the paper's line search with CVXPY and Clarabel, and SciPy. P2, the exact
maximum of K draws: SciPy. Each way is timed right after fedpace on the same instance, and
all objectives are computed from q by the same function. Linear algebra runs on one thread:
on a busy machine threads that wait for each other would distort the ratios.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from descent import Found, Problem, slsqp, softmax_descent
from fleets import TIMES, Fleet, make_fleet
from line_search import Choice, Form, GridPoint, choose, search
from tables import median_time, print_table, seconds, span

from fedpace import Solution, solve_max_time, solve_mean_time

RATIOS = (0.1, 1.0, 10.0)  # c in units of S_0
FORMS: tuple[Form, ...] = ("as written", "rescaled")
CALLS = 15  # of fedpace, for the median


class Sizes(NamedTuple):
    """One block of instances: every kind of times, seeds 0 to `seeds` − 1, every c."""

    n: int
    seeds: int

    def fleets(self) -> list[Fleet]:
        """Return the fleets, with clients in ascending order of time."""
        made = [make_fleet(self.n, kind, seed) for seed in range(self.seeds) for kind in TIMES]
        return [Fleet(*(column[np.argsort(each.times)] for column in each)) for each in made]


class Trial(NamedTuple):
    """One instance: seconds, and by how much the other objective exceeds ours, relatively."""

    ours: float
    theirs: float
    excess: float
    success: bool


class Search(NamedTuple):
    """The line search on one fleet: seconds, the grid, and for each c ours and the choice."""

    ours: float
    theirs: float
    grid: list[GridPoint]
    choices: list[tuple[float, Choice]]

    def excesses(self, *, repaired: bool) -> list[float]:
        """Return by how much the chosen objectives exceed ours, as returned or repaired."""
        return [
            (choice.repaired if repaired else choice.objective) / ours - 1
            for ours, choice in self.choices
        ]


def solve(problem: Problem, fleet: Fleet) -> Solution:
    """Solve P3 for K = 1 and P2 otherwise with fedpace."""
    if problem.k == 1:
        return solve_mean_time(*fleet, beta_over_alpha=problem.c)
    return solve_max_time(*fleet, beta_over_alpha=problem.c, k=problem.k)


def ours(fleet: Fleet, c: float, k: int) -> tuple[float, float]:
    """Return the median seconds of fedpace, and the objective at its q."""
    problem = Problem(fleet.importance, fleet.times, c, k)
    taken = median_time(lambda: solve(problem, fleet), CALLS)
    return taken, problem.objective(solve(problem, fleet).q)


def run_search(fleet: Fleet, points: int, form: Form) -> Search:
    """Run the line search once, and choose from its grid for every c."""
    solved = [ours(fleet, c, k=1) for c in RATIOS]
    start = time.perf_counter()
    grid = search(fleet.importance, fleet.times, points, form)
    theirs = time.perf_counter() - start
    choices = [
        (objective, choose(grid, fleet.importance, fleet.times, c))
        for c, (_, objective) in zip(RATIOS, solved, strict=True)
    ]
    return Search(statistics.median(taken for taken, _ in solved), theirs, grid, choices)


def run_descent(
    fleets: Sequence[Fleet], k: int, way: Callable[[Problem], Found]
) -> Iterator[Trial]:
    """Yield a trial of one general way for every fleet and every c."""
    for fleet in fleets:
        for c in RATIOS:
            problem = Problem(fleet.importance, fleet.times, c, k)
            taken, objective = ours(fleet, c, k)
            start = time.perf_counter()
            found = way(problem)
            theirs = time.perf_counter() - start
            yield Trial(taken, theirs, problem.objective(found.q) / objective - 1, found.success)


def search_row(sizes: Sizes, points: int, form: Form) -> list[str]:
    """Return a line of the table of line searches."""
    runs = [run_search(fleet, points, form) for fleet in sizes.fleets()]
    grid = [point for run in runs for point in run.grid]
    choices = [choice for run in runs for _, choice in run.choices]
    return [
        f"{form}, N = {sizes.n}",
        str(len(choices)),
        *_times([(run.ours, run.theirs) for run in runs]),
        span(excess for run in runs for excess in run.excesses(repaired=False)),
        span(excess for run in runs for excess in run.excesses(repaired=True)),
        f"{sum(not choice.feasible for choice in choices)} of {len(choices)}",
        f"{sum(point.infeasible_optimal for point in grid)} of {len(grid)}",
        f"{sum(point.status != 'optimal' for point in grid)} of {len(grid)}",
    ]


def descent_row(name: str, trials: list[Trial]) -> list[str]:
    """Return a line of the table of descents."""
    return [
        name,
        str(len(trials)),
        *_times([(trial.ours, trial.theirs) for trial in trials]),
        span(trial.excess for trial in trials),
        f"{sum(trial.excess > 1e-6 for trial in trials)} of {len(trials)}",
        f"{sum(not trial.success for trial in trials)} of {len(trials)}",
    ]


def _times(pairs: list[tuple[float, float]]) -> list[str]:
    ratios = [theirs / mine for mine, theirs in pairs]
    return [
        seconds(statistics.median(mine for mine, _ in pairs)),
        seconds(statistics.median(theirs for _, theirs in pairs)),
        f"{statistics.median(ratios):.0f}×",
        f"{min(ratios):.0f}×",
    ]


TIMING = ["ours", "theirs", "ratio", "least ratio"]


def print_searches(blocks: Sequence[Sizes], points: int) -> None:
    """Print the comparison with the paper's way to P3."""
    print(f"\nP3, line search with {points} points, CVXPY and Clarabel: objective over ours − 1")
    header = ["way", "instances", *TIMING, "as returned", "repaired"]
    header += ["infeasible choices", "infeasible “optimal” points", "points not “optimal”"]
    print_table(header, (search_row(sizes, points, form) for sizes in blocks for form in FORMS))


def print_descents(blocks: Sequence[Sizes], k: int) -> None:
    """Print the comparison with SciPy; SLSQP on the first block only, it takes O(N³) a step."""
    print(f"\nSciPy, P3 and P2 with K = {k}: objective over ours − 1")
    header = ["way", "instances", *TIMING, "excess", "worse by 1e-6", "failures"]
    print_table(header, _descent_rows(blocks, k))


def _descent_rows(blocks: Sequence[Sizes], k: int) -> Iterator[list[str]]:
    rng = np.random.default_rng(0)
    for index, sizes in enumerate(blocks):
        for draws, label in ((1, "P3"), (k, "P2")):
            if index == 0:
                trials = list(run_descent(sizes.fleets(), draws, slsqp))
                yield descent_row(f"{label}, SLSQP, N = {sizes.n}", trials)
            trials = list(run_descent(sizes.fleets(), draws, lambda p: softmax_descent(p, rng)))
            yield descent_row(f"{label}, L-BFGS-B, N = {sizes.n}", trials)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description="Compare fedpace with general solvers.")
    parser.add_argument("--small", type=int, default=100, help="clients of the small fleets")
    parser.add_argument("--large", type=int, default=1000, help="clients of the large fleets")
    parser.add_argument("--seeds", type=int, default=5, help="seeds of the small fleets")
    parser.add_argument("--large-seeds", type=int, default=2, help="seeds of the large fleets")
    parser.add_argument("--points", type=int, default=100, help="grid points of the line search")
    parser.add_argument("-k", type=int, default=10, help="draws a round in P2")
    options = parser.parse_args()
    blocks = [Sizes(options.small, options.seeds), Sizes(options.large, options.large_seeds)]
    print_searches(blocks, options.points)
    print_descents(blocks, options.k)


if __name__ == "__main__":
    main()
