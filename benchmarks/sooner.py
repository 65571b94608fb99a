"""How many times sooner is a scheme in one folder of stored runs than schemes in others?

Seconds to the target, means with 95 % intervals; a ratio is that of the means over the seeds that
both have. First touch, and sustained: until the mean of the last ten losses is there.

    fedpace run simulation-1 --schemes uniform,optimal-mean --seeds 10 --out rounds
    fedpace run simulation-1 --schemes pace --seeds 10 --out none --set training.mode=asynchronous
    python benchmarks/sooner.py none:pace rounds:optimal-mean rounds:uniform
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from pathlib import Path

from tables import print_table

from fedpace.report.intervals import BySeed, Interval, mean_interval, ratio_interval
from fedpace.studies.store import Store


def times_to(name: str, loss: float | None) -> tuple[BySeed, BySeed]:
    """Return the seconds to the loss, or the study's target, by seed: first touch and sustained."""
    folder, _, scheme = name.rpartition(":")
    first: BySeed = {}
    sustained: BySeed = {}
    for run in Store(Path(folder)).runs():
        if run.scheme == scheme:
            target = run.study.stop.loss if loss is None else loss
            first[run.seed] = run.history.time_to(loss=target)
            sustained[run.seed] = run.history.time_to(loss=target, sustained=True)
    return first, sustained


def shown(interval: Interval, digits: str) -> str:
    """Return a value and its interval as text."""
    value, low, high, _, bound = interval
    return f"{bound}{value:{digits}} [{low:{digits}}, {high:{digits}}]"


def main() -> int:
    parser = ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="+", help="FOLDER:SCHEME, that which is sooner first")
    parser.add_argument("--loss", type=float, help="another target than the study's")
    options = parser.parse_args()
    found = [times_to(name, options.loss) for name in options.names]
    rows = []
    for place, name in enumerate(options.names):
        if not found[place][0]:
            print(f"{name} must name stored runs, got none; write FOLDER:SCHEME", file=sys.stderr)
            return 2
        row = [name, str(len(found[place][0]))]
        for times, ours in zip(found[place], found[0], strict=True):
            row.append(shown(mean_interval(times.values()), ".1f"))
            row.append(shown(ratio_interval(times, ours), ".2f") if place else "1")
        rows.append(row)
    print_table(["scheme", "seeds", "first touch, s", "ratio", "sustained, s", "ratio"], rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
