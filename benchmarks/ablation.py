"""What each part of `pace` gives: no pilots, systematic draws, tiers, turns, caps, measured c.

    python benchmarks/ablation.py --seeds 20 --out ablation.csv

Ctrl-C keeps what was done; the same command goes on from there.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
from trials import Makers, Trial, mean, parsed_options, run_all

from fedpace import SCHEMES, BaseSampler, Design, Profile, Solve, Systematic, WithReplacement
from fedpace.samplers.pace import Pace
from fedpace.sampling.tiers import inclusion_probabilities

CLIENTS = {"simulation-1": 100, "prototype-simulated": 40}
SLOW = "stop.seconds=3000"
NO_CAP = (math.inf, math.inf)


def systematic_mean(profile: Profile, k: int, *, max_weight: float | None = None) -> Design:
    """The probabilities of optimal-mean, drawn systematically: no client twice in a round."""
    design = SCHEMES["optimal-mean"](profile, k, max_weight=max_weight)
    assert isinstance(design, WithReplacement)
    one_tier = np.zeros(profile.n, dtype=np.int64)
    return Systematic(inclusion_probabilities(design.q, one_tier, k), profile.weights)


def solved(k: int, *, scheme: object) -> BaseSampler:
    return Solve(scheme, k, warm_up=3, refresh=10, max_weight=2.0)  # type: ignore[arg-type]


def paced(k: int, **settings: object) -> BaseSampler:
    return Pace(k, **settings)  # type: ignore[arg-type]


def makers(n: int) -> Makers:
    by_chance: dict[str, Any] = {"in_turn": False, "c_over_s0": 1.0}
    return {
        "no pilots": partial(solved, scheme=SCHEMES["optimal-mean"]),
        "no pilots, systematic": partial(solved, scheme=systematic_mean),
        "2 tiers": partial(paced, tiers=2, **by_chance),
        "4 tiers": partial(paced, tiers=4, **by_chance),
        "N/K tiers": partial(paced, **by_chance),
        "N/5 tiers": partial(paced, tiers=n // 5, **by_chance),
        "N/K tiers, no cap": partial(paced, round_weights=NO_CAP, **by_chance),
        "N/K tiers, measured c": partial(paced, in_turn=False),
        "N/K tiers in turn": partial(paced, c_over_s0=1.0),
        "N/K tiers in turn, c = 3": partial(paced, c_over_s0=3.0),
        "pace: in turn, measured c": paced,
        "pace, no cap": partial(paced, round_weights=NO_CAP),
    }


def main() -> None:
    options = parsed_options(__doc__, setups=CLIENTS, seeds=20, out="ablation.csv")
    for setup in options.setups.split(","):
        n = CLIENTS[setup]
        made = makers(n)
        trials = [
            Trial(setup, changes, case, scheme, seed)
            for seed in range(options.seeds)
            for case, changes, schemes in (
                ("average", ("training.server=average", SLOW), ["optimal-mean", *made]),
                ("memory", ("training.server=memory", SLOW), ["pace: in turn, measured c"]),
            )
            for scheme in schemes
        ]
        limits: dict[str, Any] = {"processes": options.processes, "minutes": options.minutes}
        found = run_all(trials, made, options.out, **limits)
        print(f"\n| {setup} | first touch, s | sustained, s | seeds |\n|---|---:|---:|---:|")
        for case, scheme in dict.fromkeys((t.case, t.scheme) for t, _ in found):
            mine = [r for t, r in found if (t.case, t.scheme) == (case, scheme)]
            label = scheme if case == "average" else f"{scheme}, {case}"
            figures = f"{mean([r.first for r in mine])} | {mean([r.sustained for r in mine])}"
            print(f"| {label} | {figures} | {len(mine)} |")


if __name__ == "__main__":
    main()
