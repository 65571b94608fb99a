"""Tune the knobs of every scheme of the field with the same small budget.

Each has three settings, its paper's values first. A task's cell is the one where clients are always
there and speed goes without the data, with another draw of the data and another seed than the
study's. The setting that is first to reach the target for good wins, as in the study; where none
does, the first stays.

    python benchmarks/field_knobs.py --out field-knobs.csv

Ctrl-C keeps what was done; the same command goes on from there. It prints what belongs into the
grid.
"""

from __future__ import annotations

import json
import math
from typing import Any

from trials import Trial, parsed_options, run_all

from fedpace.studies.runner import load_studies

# Another draw of the data: of Setup 1 one on which the target can be reached.
DATA = {"simulation-1": 7, "prototype-simulated": 5, "small-cnn": 1}
FIRST_SEED = 1000
ASYNCHRONOUS = ("fedbuff", "fedasync", "pisces", "weighted")


def settings(k: int) -> dict[str, list[dict[str, Any]]]:
    """Return three settings of each scheme; the first has its usual values."""
    half = max(k // 2, 1)
    buffers = [{"buffer": k}, {"buffer": half}, {"buffer": 2 if half != 2 else 1}]
    return {
        "oort": [
            {},
            {"percentile": 30.0, "clip": 0.9, "decay": 0.98, "least_exploration": 0.3},
            {"percentile": 80.0},
        ],
        "pow-d": [{}, {"d": 3 * k}, {"d": 5 * k}],
        "tifl": [{}, {"tiers": 3}, {"tiers": 10}],
        "fedau": [{}, {"longest": 10}, {"longest": 500}],
        "fedstale": [{}, {"beta": 1.0}, {"beta": 0.2}],
        "fedbuff": buffers,
        "fedasync": [{}, {"mixing": 0.3}, {"mixing": 0.9}],
        "pisces": [{}, {"bound": 2}, {"bound": 2 * k}],
        "weighted": buffers,
        "fedcs": [{}, {"candidates": 0.3}, {"candidates": 0.3, "deadline": 1.0}],
        "flanp": [{}, {"accuracy": 0.1}, {"accuracy": 0.5}],
    }


def main() -> None:
    options = parsed_options(__doc__, setups=DATA, seeds=1, out="field-knobs.csv")
    trials: list[Trial] = []
    tried: dict[tuple[str, str], list[tuple[dict[str, Any], str]]] = {}
    for task in options.setups.split(","):
        cell = ["devices.availability=always", "devices.correlation=0.0", f"data.seed={DATA[task]}"]
        study = next(each for each in load_studies("field", cell) if each.name == task)
        base = [
            f"devices.times={study.devices.times}",
            f"devices.samples={study.devices.samples}",
            f"devices.megabits={study.devices.megabits}",
            f"data.samples={study.data.samples}",  # type: ignore[union-attr]
            f"stop.loss={study.stop.loss}",
            f"stop.seconds={study.stop.seconds}",
            *cell,
        ]
        for scheme, choices in settings(study.training.k).items():
            mode = ["training.mode=asynchronous"] if scheme in ASYNCHRONOUS else []
            for knobs in choices:
                given = [f"sampling.knobs.{scheme}.{name}={x}" for name, x in knobs.items()]
                case = json.dumps(knobs, sort_keys=True)
                tried.setdefault((task, scheme), []).append((knobs, case))
                trials += [
                    Trial(task, tuple(base + mode + given), case, scheme, FIRST_SEED + seed)
                    for seed in range(options.seeds)
                ]
    trials.sort(key=lambda trial: trial.scheme in ("fedasync", "pisces"))  # those take longest
    found = run_all(trials, {}, options.out, processes=options.processes, minutes=options.minutes)
    print("| task | scheme | seconds with each setting | chosen |")
    print("|---|---|---|---|")
    for (task, scheme), those in tried.items():
        means = []
        for _, case in those:
            times = [
                r.sustained for t, r in found if (t.setup, t.scheme, t.case) == (task, scheme, case)
            ]
            means.append(sum(times) / len(times) if times else math.nan)
        best = min(range(len(means)), key=lambda at: (not means[at] < math.inf, means[at], at))
        best = best if means[best] < math.inf else 0
        shown = ", ".join(
            f"{case} {mean:.0f}" for (_, case), mean in zip(those, means, strict=True)
        )
        given = [f"sampling.knobs.{scheme}.{name}={x}" for name, x in those[best][0].items()]
        print(f"| {task} | {scheme} | {shown} | {' '.join(given) or 'as in its paper'} |")


if __name__ == "__main__":
    main()
