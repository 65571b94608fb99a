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
from tables import print_table

from fedpace.report.intervals import mean_interval
from fedpace.rounds.rows import SUSTAINED
from fedpace.studies.store import Store


def accuracies(folder: Path, scheme: str, seeds: int) -> dict[int, tuple[float, float]]:
    """Return the accuracy of all, and of the slowest fifth, of each seed."""
    found = {}
    for run in Store(folder).runs():
        if run.scheme == scheme and run.seed < seeds:
            rows = [row for row in run.history.rows if row.evaluated][-SUSTAINED:]
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
    rows = []
    for at, who in enumerate(("all", "slowest fifth")):
        before, after = pairs[:, 0, at], pairs[:, 1, at]
        gain = mean_interval(after - before)
        difference = f"{gain.value:+.1f} ± {gain.high - gain.value:.1f}"
        rows.append([who, f"{before.mean():.1f}", f"{after.mean():.1f}", difference])
    print_table([f"{len(seeds)} seeds", "before", "after", "difference"], rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
