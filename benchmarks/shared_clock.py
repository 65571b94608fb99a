"""How well the simulated clock predicts a lab whose devices share the server's link.

    python benchmarks/shared_clock.py MEASURED --name LAB

MEASURED holds runs of `fedpace lab run` on a lab that is up with `devices.link`. Rounds of a run
are simulated with the clients that were drawn: each moves its model down and up at the speed of its
own link, as the lab measured it alone, and of its share of the server's link.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from fedpace.checks import FloatArray
from fedpace.devices.lab.register import Lab, read_lab
from fedpace.studies.store import Store, StoredRun
from fedpace.times.links import SharedLink


def simulated(run: StoredRun, lab: Lab) -> FloatArray:
    """Return the seconds of each round with the draws of the run."""
    devices, alone = run.study.devices, np.array(lab.measured)
    assert devices.link is not None
    link = SharedLink(SharedLink.parse(devices.link).capacity / lab.time_scale)
    seconds = []
    for row in run.history.rows[1:]:
        drawn = np.unique(np.concatenate([row.clients, row.missing]))
        megabits, ready = np.full(drawn.size, devices.megabits), np.zeros(drawn.size)
        seconds.append(link.ends(ready, megabits, megabits / alone[drawn]).max(initial=0.0))
    return np.array(seconds)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("measured", type=Path)
    parser.add_argument("--name", default="proto", help="of the lab")
    parser.add_argument("--state", type=Path)
    given = parser.parse_args()
    lab = read_lab(given.name, given.state)
    print(
        "| scheme | seed | rounds | measured, s | simulated, s | error | a round: median | 90 % |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for run in sorted(Store(given.measured).runs(), key=lambda each: (each.scheme, each.seed)):
        if run.study.network is None or run.study.devices.link != lab.link:
            continue
        measured = np.diff([row.seconds for row in run.history.rows])
        expected = simulated(run, lab)
        off = np.abs(expected / measured - 1)
        print(
            f"| {run.scheme} | {run.seed} | {measured.size} | {measured.sum():.1f} | "
            f"{expected.sum():.1f} | {expected.sum() / measured.sum() - 1:+.1%} | "
            f"{np.median(off):.1%} | {np.quantile(off, 0.9):.1%} |"
        )


if __name__ == "__main__":
    main()
