"""The simulator with many clients on real devices' times: start-up, a round, and memory.

    OPENBLAS_NUM_THREADS=1 FEDPACE_DATA=DIR python benchmarks/trace_clients.py [--clients 500 50000]

K = 100, logistic regression on Synthetic(1, 1) with 20 samples a client on average, times from the
whole trace of FedScale. Rounds are not evaluated: that is O(samples) by nature. Every line is a
process of its own, so that memory is its own too. CPU time, as the machine may be shared.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from statistics import median
from typing import Any

import numpy as np
from tables import print_table, seconds

from fedpace import Seeds, Stop, constant, sampler_for
from fedpace.studies.build import simulator
from fedpace.studies.study import load_study
from fedpace.training.synchronous import SynchronousTraining

ROUNDS = 25
SCHEMES = ("uniform", "pace", "oort", "optimal-mean-no-pilots")
AVAILABILITY = ("always", "daily:0.5:288", "markov:60:30")


def measured(clients: int, scheme: str, availability: str) -> dict[str, float]:
    """Return start-up, the median round after the first five, and the peak of memory."""
    study = load_study(
        "simulation-1",
        [
            "data.sizes=power-law", f"data.clients={clients}", f"data.samples={20 * clients}",
            "data.smallest=10", "devices.times=trace:fedscale:all", "devices.samples=4",
            "devices.megabits=0.2133", f"devices.availability={availability}", "training.k=100",
        ],
    )  # fmt: skip
    began = time.process_time()
    backend = simulator(study, 0)
    how: dict[str, Any] = {"schedule": constant(0.05), "stop": Stop(blind=True), "seeds": Seeds(0)}
    run = SynchronousTraining(backend, sampler_for(scheme, 100), evaluate_every=0, **how)
    started = time.process_time() - began
    spent = []
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(ROUNDS):
            began = time.process_time()
            run.advance()
            spent.append(time.process_time() - began)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {"start": started, "round": median(spent[5:]), "slowest": max(spent), "memory": memory}


def in_a_process(*arguments: object) -> dict[str, float]:
    command = [sys.executable, __file__, "--one", *map(str, arguments)]
    found: dict[str, float] = json.loads(subprocess.check_output(command, text=True))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, nargs="*", default=[500, 50_000])
    parser.add_argument("--one", nargs=3)
    options = parser.parse_args()
    if options.one:
        clients, scheme, availability = options.one
        print(json.dumps(measured(int(clients), scheme, availability)))
        return
    rows = []
    for availability in AVAILABILITY:
        for scheme in SCHEMES if availability == "always" else SCHEMES[:1]:
            base = None
            for clients in options.clients:
                found = in_a_process(clients, scheme, availability)
                base = base or found["round"]
                rows.append(
                    [
                        scheme, availability, f"{clients:,}", seconds(found["start"]),
                        seconds(found["round"]), f"{found['round'] / base:.2f}",
                        seconds(found["slowest"]), f"{found['memory']:.2f} GB",
                    ]
                )  # fmt: skip
    titles = ["scheme", "availability", "clients", "start-up", "round", "times the first"]
    print_table([*titles, "slowest round", "memory"], rows)


if __name__ == "__main__":
    main()
