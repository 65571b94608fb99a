"""How many times sooner is a scheme in one folder of stored runs than schemes in others?

Seconds to the target, means with 95 % intervals; a ratio is that of the means over the seeds that
both have. First touch, and sustained: until the mean of the last ten losses is there. Steps, or
rounds, and updates are those to the first touch; updates of pilots count.

    fedpace run simulation-1 --schemes uniform,optimal-mean --seeds 10 --out rounds
    fedpace run simulation-1 --schemes pace --seeds 10 --out none --set training.mode=asynchronous
    python benchmarks/sooner.py none:pace rounds:optimal-mean rounds:uniform
"""

from __future__ import annotations

import math
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import NamedTuple

from tables import print_table

from fedpace.report.time_to_target import BySeed, Interval, mean_interval, ratio_interval
from fedpace.studies.store import Store


class Found(NamedTuple):
    """Seconds to the target by seed, first touch and sustained; steps and updates to the first."""

    first: BySeed
    sustained: BySeed
    steps: BySeed
    updates: BySeed


def found_in(name: str, loss: float | None) -> Found:
    """Return how long the runs of FOLDER:SCHEME took to the loss, or to the study's target."""
    folder, _, scheme = name.rpartition(":")
    found = Found({}, {}, {}, {})
    for run in Store(Path(folder)).runs():
        if run.scheme == scheme:
            target = run.study.stop.loss if loss is None else loss
            first = run.history.time_to(loss=target)
            came = [row.clients.size for row in run.history.rows if row.seconds <= first]
            found.first[run.seed] = first
            found.sustained[run.seed] = run.history.time_to(loss=target, sustained=True)
            found.steps[run.seed] = run.history.rounds_to(loss=target)
            found.updates[run.seed] = float(sum(came)) if math.isfinite(first) else math.inf
    return found


def shown(interval: Interval, digits: str) -> str:
    """Return a value and its interval as text."""
    value, low, high, _, bound = interval
    return f"{bound}{value:{digits}} [{low:{digits}}, {high:{digits}}]"


def main() -> int:
    parser = ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="+", help="FOLDER:SCHEME, that which is sooner first")
    parser.add_argument("--loss", type=float, help="another target than the study's")
    options = parser.parse_args()
    found = [found_in(name, options.loss) for name in options.names]
    ours, rows = found[0], []
    for name, theirs in zip(options.names, found, strict=True):
        if not theirs.first:
            print(f"{name} must name stored runs, got none; write FOLDER:SCHEME", file=sys.stderr)
            return 2
        row = [name, str(len(theirs.first))]
        for times, those in ((theirs.first, ours.first), (theirs.sustained, ours.sustained)):
            row.append(shown(mean_interval(times.values()), ".1f"))
            row.append("1" if theirs is ours else shown(ratio_interval(times, those), ".2f"))
        for counts in (theirs.steps, theirs.updates):
            row.append(shown(mean_interval(counts.values()), ".0f"))
        rows.append(row)
    titles = ["scheme", "seeds", "first touch, s", "ratio", "sustained, s", "ratio"]
    print_table([*titles, "steps", "updates"], rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
