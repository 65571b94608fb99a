"""Compare the accuracy of all clients, and of the slowest fifth, in two folders of stored runs.

Means of the last ten evaluations, in per cent, and their differences, paired by seed, with 95 %
intervals.

    fedpace run simulation-1 --schemes pace --seeds 10 --out rounds
    fedpace run simulation-1 --schemes pace --seeds 10 --out none --set training.mode=asynchronous
    python benchmarks/who_gains.py rounds none
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from pathlib import Path

import numpy as np
from scipy.stats import t as student
from tables import print_table

from fedpace.studies.store import Store

LAST = 10


def accuracies(folder: Path, scheme: str, seeds: int) -> dict[int, tuple[float, float]]:
    """Return the accuracy of all, and of the slowest fifth, of each seed."""
    found = {}
    for run in Store(folder).runs():
        if run.scheme == scheme and run.seed < seeds:
            rows = [row for row in run.history.rows if row.evaluated][-LAST:]
            means = np.nanmean([(row.accuracy, row.slow_accuracy) for row in rows], axis=0)
            found[run.seed] = (100 * float(means[0]), 100 * float(means[1]))
    return found


def main() -> int:
    parser = ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("before", type=Path, help="a folder that `fedpace run` wrote")
    parser.add_argument("after", type=Path, help="another, with the same seeds")
    parser.add_argument("--scheme", default="pace")
    parser.add_argument("--seeds", type=int, default=10)
    options = parser.parse_args()
    folders = (options.before, options.after)
    one, other = (accuracies(each, options.scheme, options.seeds) for each in folders)
    seeds = sorted(one.keys() & other.keys())
    if len(seeds) < 2:
        print(
            f"{options.before} and {options.after} must hold two runs of {options.scheme} with the "
            f"same seeds, got {len(seeds)}; run both with the same --seeds",
            file=sys.stderr,
        )
        return 2
    pairs = np.array([[one[seed], other[seed]] for seed in seeds])
    differences = pairs[:, 1] - pairs[:, 0]
    error = differences.std(axis=0, ddof=1) / len(seeds) ** 0.5
    half = student.ppf(0.975, len(seeds) - 1) * error
    rows = [
        [
            who,
            *(f"{mean:.1f}" for mean in pairs[:, :, at].mean(axis=0)),
            f"{differences[:, at].mean():+.1f} ± {half[at]:.1f}",
        ]
        for at, who in enumerate(("all", "slowest fifth"))
    ]
    print_table([f"{len(seeds)} seeds", "before", "after", "difference"], rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
