"""Compare the accuracy of all clients, and of the slowest fifth, in two folders of stored runs.

Means of the last ten evaluations, in per cent, and their differences, paired by seed, with 95 %
intervals. Then how long the runs before took to their end, and those after until they were as good
("≥" where some never were): let them go on for as long (`--set stop.loss=0.01 --set
stop.seconds=…`). Runs with fewer than ten evaluations are left out.

    fedpace run simulation-1 --schemes pace --seeds 10 --out rounds
    fedpace run simulation-1 --schemes pace --seeds 10 --out none --set training.mode=asynchronous
    python benchmarks/who_gains.py rounds none
"""

from __future__ import annotations

import math
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from tables import print_table

from fedpace.checks import FloatArray
from fedpace.report.time_to_target import mean_interval
from fedpace.studies.store import Store
from fedpace.training.history import SUSTAINED


class Course(NamedTuple):
    """Seconds, and two accuracies in per cent: of all and of the slowest fifth, a row each.

    Each is the mean of ten evaluations, the latest last.
    """

    seconds: FloatArray
    accuracies: FloatArray

    def until(self, accuracy: float, who: int) -> float:
        """Return the seconds until this accuracy is reached; infinity for never."""
        reached = np.flatnonzero(self.accuracies[who] >= accuracy)
        return float(self.seconds[reached[0]]) if reached.size else math.inf


def courses(folder: Path, scheme: str, seeds: int) -> dict[int, Course]:
    """Return the course of each seed."""
    found = {}
    for run in Store(folder).runs():
        rows = [row for row in run.history.rows if row.evaluated]
        if run.scheme == scheme and run.seed < seeds and len(rows) >= SUSTAINED:
            seconds = np.array([row.seconds for row in rows[SUSTAINED - 1 :]])
            each = np.array([(row.accuracy, row.slow_accuracy) for row in rows])
            means = np.nanmean(sliding_window_view(each, SUSTAINED, axis=0), axis=-1)
            found[run.seed] = Course(seconds, 100 * means.T)
    return found


def main() -> int:
    parser = ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("before", type=Path, help="a folder that `fedpace run` wrote")
    parser.add_argument("after", type=Path, help="another, with the same seeds")
    parser.add_argument("--scheme", default="pace")
    parser.add_argument("--seeds", type=int, default=10)
    options = parser.parse_args()
    folders = (options.before, options.after)
    one, other = (courses(each, options.scheme, options.seeds) for each in folders)
    seeds = sorted(one.keys() & other.keys())
    if len(seeds) < 2:
        print(
            f"{options.before} and {options.after} must hold two runs of {options.scheme} with the "
            f"same seeds, got {len(seeds)}; run both with the same --seeds",
            file=sys.stderr,
        )
        return 2
    rows = []
    for who, name in enumerate(("all", "slowest fifth")):
        before, after = (
            np.array([course[seed].accuracies[who, -1] for seed in seeds])
            for course in (one, other)
        )
        gain = mean_interval(after - before)
        difference = f"{gain.value:+.1f} ± {gain.high - gain.value:.1f}"
        taken = np.mean([one[seed].seconds[-1] for seed in seeds])
        until = mean_interval(other[s].until(a, who) for s, a in zip(seeds, before, strict=True))
        cells = [f"{before.mean():.1f}", f"{after.mean():.1f}", difference]
        rows.append([name, *cells, f"{taken:.1f}", f"{until.bound}{until.value:.1f}"])
    columns = ["before", "after", "difference", "before, s", "after, until as good, s"]
    print_table([f"{len(seeds)} seeds", *columns], rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
