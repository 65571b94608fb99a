"""What an asynchronous completion costs the simulator, against one in a round: CPU time.

Uniform sampling with the times of each study; evaluations are left out. Run with one thread:

    OPENBLAS_NUM_THREADS=1 python benchmarks/asynchronous.py
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

from fedpace.errors import InputError
from fedpace.samplers.build import sampler_for
from fedpace.samplers.solve import Solve
from fedpace.sampling.schemes import SCHEMES
from fedpace.seeds import Seeds
from fedpace.studies.build import simulator
from fedpace.studies.study import load_study
from fedpace.training.asynchronous import AsynchronousTraining
from fedpace.training.stopping import Stop, constant
from fedpace.training.synchronous import SynchronousTraining

STUDIES = ("simulation-1", "simulation-2")


def milliseconds(name: str, completions: int, **how: Any) -> float:
    """Return what one completion costs, the best of three."""
    return min(_seconds(name, completions, **how) for _ in range(3)) / completions * 1e3


def _seconds(name: str, completions: int, **how: Any) -> float:
    study = load_study(name)
    backend, k = simulator(study, 0), study.training.k
    common: dict[str, Any] = {"schedule": constant(0.01), "seeds": Seeds(0), "evaluate_every": 0}
    blind = Stop(rounds=10**9, blind=True)
    run: SynchronousTraining | AsynchronousTraining
    if "buffer" in how:
        sampler = sampler_for("uniform", k, mode="asynchronous", buffer=how["buffer"])
        run = AsynchronousTraining(backend, sampler, at_once=k, stop=blind, **how, **common)
    else:
        run = SynchronousTraining(
            backend, Solve(SCHEMES["uniform"], k), stop=blind, **how, **common
        )
    done, begin = 0, 0.0
    while done < completions + 2 * k:
        if not begin and done >= 2 * k:
            begin, done = time.process_time(), 2 * k
        done += sum(row.clients.size for row in run.advance())
    return time.process_time() - begin


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--completions", type=int, default=300)
    parser.add_argument("--studies", nargs="*", default=STUDIES)
    options = parser.parse_args()
    print("| study | round, ms per completion | asynchronous, B = K | B = 2 | B = 1 |")
    print("|---|---:|---:|---:|---:|")
    for name in options.studies:
        k = load_study(name).training.k
        try:
            simulator(load_study(name), 0)
        except InputError as error:  # its dataset is not on this machine
            print(f"| {name} | left out: {error} | | | |")
            continue
        count = options.completions if name == "simulation-1" else max(options.completions // 5, 20)
        rounds = milliseconds(name, count)
        others = [milliseconds(name, count, buffer=buffer) for buffer in (k, 2, 1)]
        cells = [f"{each:.2f} ({each / rounds:.2f}×)" for each in others]
        print(f"| {name} | {rounds:.2f} | {' | '.join(cells)} |")


if __name__ == "__main__":
    np.seterr(all="ignore")
    main()
