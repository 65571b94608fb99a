"""How well the simulated clock predicts the measured one.

    python benchmarks/measured_clock.py MEASURED PREDICTED

MEASURED holds runs of `fedpace lab run`, PREDICTED those of `fedpace run` of the same setup with
`devices.times="file:MEASURED/times.txt"`, in seconds as measured. Two comparisons, per scheme and
seed: the time to the target, which the luck of pilots and draws is part of; and the clock alone:
the seconds that the measured run's own draws would have taken if every client always took its
usual time.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np

from fedpace.checks import FloatArray
from fedpace.studies.store import Store, StoredRun


def runs_of(folder: Path, *, measured: bool) -> dict[tuple[str, int], StoredRun]:
    runs = Store(folder).runs()
    return {(r.scheme, r.seed): r for r in runs if (r.study.network is not None) == measured}


def replayed(run: StoredRun, times: FloatArray) -> float:
    """Return the seconds of the run's draws with the usual times of who was drawn."""
    total = 0.0
    for row in run.history.rows[1:]:
        drawn = np.concatenate([row.clients, row.missing])
        total += float(times[drawn].max(initial=0.0))
    return total


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("measured", type=Path)
    parser.add_argument("predicted", type=Path)
    given = parser.parse_args()
    times = np.loadtxt(given.measured / "times.txt")
    measured = runs_of(given.measured, measured=True)
    predicted = runs_of(given.predicted, measured=False)
    print("| scheme | seed | measured, s | predicted, s | error | rounds | same draws, s | error |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    errors, clocks = [], []
    for (scheme, seed), run in sorted(measured.items()):
        target = run.study.stop.loss
        seconds = run.history.time_to(loss=target)
        whole = run.history.rows[-1].seconds
        clock = replayed(run, times) / whole - 1
        twin = predicted.get((scheme, seed))
        ahead = math.nan if twin is None else twin.history.time_to(loss=target)
        errors.append(ahead / seconds - 1)
        clocks.append(clock)
        print(
            f"| {scheme} | {seed} | {seconds:.1f} | {ahead:.1f} | {errors[-1]:+.1%} | "
            f"{len(run.history.rows) - 1} | {(1 + clock) * whole:.1f} | {clock:+.1%} |"
        )
    print(f"\nmedian |error| of the time to target: {np.nanmedian(np.abs(errors)):.1%}")
    print(f"median |error| of the clock alone: {np.nanmedian(np.abs(clocks)):.1%}")


if __name__ == "__main__":
    main()
