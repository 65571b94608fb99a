"""Forty devices for five hundred rounds: does the server or a device grow? How long is a round?

    python benchmarks/lab_memory.py            # as root; without, devices pace themselves

EMNIST must be at hand: `fedpace data where`.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from fedpace.devices.backend import DeviceBackend
from fedpace.devices.lab.lab import CERTIFICATES, bring_up, take_down
from fedpace.devices.lab.launch import memory, running_devices
from fedpace.devices.lab.register import Lab, lab_folder
from fedpace.devices.server import DeviceServer
from fedpace.devices.shard import job_of
from fedpace.devices.wire import Certificates
from fedpace.seeds import Seeds
from fedpace.studies.build import model_of, run_with
from fedpace.studies.study import Study, load_study
from fedpace.training.checkpoint import Checkpoint
from fedpace.training.history import Row

NAME = "memory"
MB = 1e6


class Sizes:
    """Print the memory of server and devices, and the milliseconds per round, now and then."""

    def __init__(self, every: int) -> None:
        self.every = every
        self.begin = time.perf_counter()
        self.measured = 0.0
        print(
            "| round | server MB | devices MB, mean | devices MB, most | ms per round | slowest |"
        )
        print("|---|---|---|---|---|---|")

    def show(self, row: Row) -> None:
        self.measured += row.round_seconds
        if row.round % self.every:
            return
        devices = np.array([memory(pid) for pid in running_devices(NAME).values()]) / MB
        wall = (time.perf_counter() - self.begin) / self.every
        print(
            f"| {row.round} | {memory(os.getpid()) / MB:.1f} | {devices.mean():.1f} | "
            f"{devices.max():.1f} | {1000 * wall:.0f} | {1000 * self.measured / self.every:.0f} |",
            flush=True,
        )
        self.begin, self.measured = time.perf_counter(), 0.0


def measure(study: Study, lab: Lab, folder: Path, every: int) -> None:
    tls = Certificates.read(folder / CERTIFICATES)
    server = DeviceServer(lab.device_names, host=lab.host, port=lab.port, tls=tls)
    try:
        devices = DeviceBackend(server, model_of(study), Seeds(0), say=print)
        devices.prepare(job_of(study, 0, lab.device_names))
        with tempfile.TemporaryDirectory() as place:
            journal = Checkpoint(Path(place, "run.npz"), {})
            run_with(devices, study, "uniform", 0, callbacks=[journal, Sizes(every).show])
    finally:
        server.close(goodbye=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--time-scale", type=float, default=0.1)
    parser.add_argument("--every", type=int, default=50)
    given = parser.parse_args()
    network = ["network.how=namespaces", f"network.evaluate_every={given.every}"]
    study = load_study("prototype", ["stop.loss=none", f"stop.rounds={given.rounds}", *network])
    state = Path(tempfile.mkdtemp())
    try:
        lab, _ = bring_up(
            study,
            NAME,
            times=study.devices.times,
            time_scale=given.time_scale,
            state=state,
            say=lambda message: print(message, file=sys.stderr),
        )
        measure(study, lab, lab_folder(NAME, state), given.every)
    finally:
        take_down(NAME, state)


if __name__ == "__main__":
    main()
