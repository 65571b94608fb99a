"""Where could `pace` do harm? It against weighted sampling and optimal-mean, over many cases.

K, learning rates, times that are hidden, noisy, drifting or all equal, and other draws of the
data. A case is fine if every run of pace arrives where weighted sampling does, and its mean time
is at most 1.1 times the better of the two.

    python benchmarks/no_harm.py --seeds 5 --out no-harm.csv

With `--mode asynchronous` it is compared with weighted shares and with FedBuff, both with steps of
two updates.

Ctrl-C keeps what was done; the same command goes on from there.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from trials import Trial, mean, parsed_options, run_all

# In each mode, pace last; and what is changed for the others.
SCHEMES = {
    "synchronous": ("weighted", "optimal-mean", "pace"),
    "asynchronous": ("weighted", "fedbuff", "pace"),
}
CHANGES: dict[str, tuple[str, ...]] = {
    "synchronous": (),
    "asynchronous": ("training.mode=asynchronous", "training.buffer=2"),
}
SLOW = "stop.seconds=3000"
CASES: dict[str, dict[str, tuple[str, ...]]] = {
    "simulation-1": {
        "K = 2": ("training.k=2", SLOW),
        "K = 4": ("training.k=4", SLOW),
        "K = 10": (),
        "K = 20": ("training.k=20", SLOW),
        "rate 0.01": ("training.schedule=constant:0.01", SLOW),
        "rate 0.05": ("training.schedule=constant:0.05", SLOW),
        "hidden times": ("devices.known=false",),
        "noisy times": ("devices.noise=0.5",),
        "hidden and noisy": ("devices.known=false", "devices.noise=0.5"),
        "drifting times": ("devices.drift=1",),
        "hidden and drifting": ("devices.known=false", "devices.drift=1"),
        "data draw 7": ("data.seed=7",),
        "data draw 8": ("data.seed=8",),
        "a data draw per seed": ("data.seed=none", "stop.loss=1.0"),
        "equal times": ("devices.times=constant:1",),
    },
    "prototype-simulated": {
        "K = 2": ("training.k=2", SLOW),
        "K = 10": ("training.k=10", SLOW),
        "rate 0.05": ("training.schedule=constant:0.05", SLOW),
        "hidden times": ("devices.known=false", SLOW),
        "equal times": ("devices.times=constant:1", SLOW),
    },
}


def main() -> None:
    options = parsed_options(__doc__, setups=CASES, seeds=5, out="no-harm.csv", modes=SCHEMES)
    schemes, more = SCHEMES[options.mode], CHANGES[options.mode]
    trials = [
        Trial(setup, changes + (more[:1] if scheme == "pace" else more), case, scheme, seed)
        for setup in options.setups.split(",")
        for case, changes in CASES[setup].items()
        for scheme in schemes
        for seed in range(options.seeds)
    ]
    limits: dict[str, Any] = {"processes": options.processes, "minutes": options.minutes}
    found = run_all(trials, {}, options.out, **limits)
    print(f"| setup | case | {', s | '.join(schemes)}, s | pace / better |")
    print("|---|---|---:|---:|---:|---:|")
    for setup, case in dict.fromkeys((trial.setup, trial.case) for trial, _ in found):
        times = [
            [r.first for t, r in found if (t.setup, t.case, t.scheme) == (setup, case, scheme)]
            for scheme in schemes
        ]
        better = min((np.mean(each) for each in times[:2] if each), default=math.nan)
        ratio = np.mean(times[2]) / better if times[2] and math.isfinite(better) else math.nan
        print(f"| {setup} | {case} | {' | '.join(map(mean, times))} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
