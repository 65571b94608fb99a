"""What re-planning gains when the fleet changes in the middle of training.

A third of the clients leaves in the middle of a run. Compared are a fixed
plan, one solved again after ten rounds or after each, with times learned from the replies, and an
oracle: solved again after each round, with the times of the moment known.

    python benchmarks/replanning.py --seeds 3 --out replanning.csv

Ctrl-C keeps what was done; the same command goes on from there.
"""

from __future__ import annotations

import csv
import math
import tempfile
from pathlib import Path

import numpy as np
from trials import Trial, mean, parsed_options, run_all

SCHEMES = ("optimal-mean", "pace")
CLIENTS, LEAVING, FOREVER = 100, 3, 1e9
# In the middle of a run in which no client leaves; the target is an earlier one where some do.
MIDDLE = {"optimal-mean": 100.0, "pace": 25.0}
COMMON = ("sampling.warm_up=10", "stop.seconds=3000")
PLANS: dict[str, tuple[str, ...]] = {
    "fixed": ("devices.known=false", "sampling.refresh=100000"),
    "refresh 10": ("devices.known=false", "sampling.refresh=10"),
    "refresh 1": ("devices.known=false", "sampling.refresh=1"),
    "oracle": ("devices.known=true", "sampling.refresh=1"),
}


def leaving(folder: Path, seconds: float) -> str:
    """Write who is there when: every third client only until then; return the setting."""
    path = folder / f"leaving-{seconds:g}.csv"
    with path.open("w", encoding="utf-8", newline="") as lines:
        writer = csv.writer(lines)
        writer.writerow(["client", "start", "end"])
        for client in range(CLIENTS):
            writer.writerow([client, 0, FOREVER if client % LEAVING else seconds])
    return f"devices.availability=file:{path}"


def main() -> None:
    options = parsed_options(__doc__, setups=["simulation-1"], seeds=3, out="replanning.csv")
    with tempfile.TemporaryDirectory() as folder:
        changes = {
            scheme: {
                "nothing": (),
                "a third leaves": (leaving(Path(folder), left), "stop.loss=0.9"),
            }
            for scheme, left in MIDDLE.items()
        }
        trials = [
            Trial("simulation-1", COMMON + change + plan, f"{what}, {how}", scheme, seed)
            for scheme, cases in changes.items()
            for what, change in cases.items()
            for how, plan in PLANS.items()
            for seed in range(options.seeds)
        ]
        found = run_all(
            trials, {}, options.out, processes=options.processes, minutes=options.minutes
        )
    print(f"| scheme | what happens | {', s | '.join(PLANS)}, s | fixed / refresh 10 |")
    print("|---|---|" + "---:|" * (len(PLANS) + 1))
    for scheme, cases in changes.items():
        for what in cases:
            times = {
                how: [r.first for t, r in found if (t.scheme, t.case) == (scheme, f"{what}, {how}")]
                for how in PLANS
            }
            fixed, often = (np.mean(times[how] or [math.nan]) for how in ("fixed", "refresh 10"))
            ratio = f"{fixed / often:.2f}" if math.isfinite(fixed) and often > 0 else "–"
            print(f"| {scheme} | {what} | {' | '.join(map(mean, times.values()))} | {ratio} |")


if __name__ == "__main__":
    main()
