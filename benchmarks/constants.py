"""What half and twice of each constant of asynchronous `pace` do to the time on the tuning tasks.

    python benchmarks/constants.py --seeds 2 --minutes 60 --out constants.jsonl

Runs every tuning task of `bench_tasks.py` with the task's own E and with "auto", as it is and with
one constant changed, and prints the geometric mean of the ratio of times. Results are kept; the
same command goes on from there.
"""

from __future__ import annotations

import math
import time
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from bench import Config, Store, code_tag, mean_of
from bench_tasks import TUNING

from fedpace.samplers import asynchronous_pace, step
from fedpace.training import running_mean

CONSTANTS: tuple[tuple[Any, str], ...] = (
    (step, "NOISE_COUNTED"),
    (step, "GROWTH_AT_ONCE"),
    (step, "FEW"),
    (step, "FIRST_GUESS"),
    (step, "GUESS_PAIRS"),
    (step, "PRIOR_UPDATES"),
    (step, "RISE"),
    (step, "RECOVERY"),
    (step, "HALVED"),
    (running_mean, "MEMORY"),
    (asynchronous_pace, "MAX_WEIGHT"),
)
# Too long for a table of so many runs.
LONG = ("sequences",)


def changed(value: float, factor: float) -> float:
    """Return the constant times the factor; of a growth, its logarithm."""
    grown = value**factor if value in (step.GROWTH_AT_ONCE, step.RECOVERY) else value * factor
    return max(round(grown), 1) if isinstance(value, int) else max(grown, 1e-3)


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--out", type=Path, default=Path("constants.jsonl"))
    options = parser.parse_args()
    deadline = time.monotonic() + 60 * options.minutes
    store, tasks = Store(options.out), [task for task in TUNING if task.name not in LONG]
    code = code_tag()

    def times(tag: str) -> list[float]:
        found = []
        for steps in (0, "auto"):
            for task in tasks:
                for seed in range(options.seeds):
                    if time.monotonic() < deadline:
                        run = store.get(task, Config("pace", steps=steps), seed, f"{code} {tag}")
                        found.append(min(run.seconds, task.seconds))
        return found

    before = times("as it is")
    print("| constant | value | half | twice |\n|---|---:|---:|---:|")
    for module, name in CONSTANTS:
        value, cells = getattr(module, name), []
        for factor in (0.5, 2.0):
            setattr(module, name, changed(value, factor))
            after = times(f"{name} ×{factor:g}")
            pairs = zip(before, after, strict=False)
            mean = mean_of(b / a for a, b in pairs if math.isfinite(a) and math.isfinite(b))
            cells.append(f"{mean:.2f}" + f" ({len(after)} runs)" * (len(after) < len(before)))
        setattr(module, name, value)
        print(f"| `{name}` | {value:g} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
