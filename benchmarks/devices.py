"""The server's side of many devices: rounds per second and memory against N.

    .venv/bin/python benchmarks/devices.py [--devices 100,1000] [--rounds 300] [--processes 2]

Real connections over loopback to devices that train nothing and answer at once, many to a process,
so that what is measured is the server: sending the model to K devices, receiving and screening
their updates, adding up. The model is that of the prototype, 784 × 26 + 26 numbers of float32.
Memory is what the server's process gained at each step, and all that it holds at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from tables import print_table, seconds

from fedpace.models.logistic import Logistic
from fedpace.network.device import Device
from fedpace.network.devices import Devices
from fedpace.network.server import DeviceServer
from fedpace.profile import FloatArray
from fedpace.rounds.local import Counted
from fedpace.sampling.design import WithReplacement
from fedpace.seeds import Seeds

MODEL = Logistic(features=784, classes=26, dtype=np.float32)
K = 10
WARM_UP = 20


class Idle:
    """A trainer that trains nothing."""

    samples = 100

    def __init__(self) -> None:
        self._update = np.full(MODEL.size, 1e-6)

    def train(
        self,
        parameters: FloatArray,  # noqa: ARG002
        *,
        round_index: int,  # noqa: ARG002
        learning_rate: float,  # noqa: ARG002
    ) -> tuple[FloatArray, float]:
        return self._update, 1.0

    def loss(self, parameters: FloatArray) -> float:  # noqa: ARG002
        return 1.0

    def evaluate(self, parameters: FloatArray) -> Counted:  # noqa: ARG002
        return Counted(1.0, 1, 2)


class Measured(NamedTuple):
    joining: float
    round: float
    evaluation: float
    before: float
    joined: float
    ran: float
    after: float


def name(client: int) -> str:
    return f"device-{client:04}"


def attend(port: int, first: int, end: int) -> None:
    """Be the devices from `first` to `end`."""
    trainer = Idle()

    async def all_of_them() -> None:
        with ThreadPoolExecutor(1) as executor:
            devices = [Device(name(i), lambda _: trainer, executor) for i in range(first, end)]
            await asyncio.gather(*(each.attend("127.0.0.1", port) for each in devices))

    asyncio.run(all_of_them())


def megabytes() -> float:
    """Return what this process holds in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def measured(n: int, rounds: int, processes: int) -> Measured:
    before = megabytes()
    with DeviceServer([name(i) for i in range(n)]) as server:
        bounds = np.linspace(0, n, processes + 1).astype(int).tolist()
        started = [
            subprocess.Popen([sys.executable, __file__, "--be", str(server.address[1]), *span])
            for span in zip(map(str, bounds[:-1]), map(str, bounds[1:]), strict=True)
        ]
        devices = Devices(server, MODEL, Seeds(0), least=n)
        began = time.perf_counter()
        devices.prepare({})
        joining = time.perf_counter() - began
        joined = megabytes()
        times = run_rounds(devices, n, rounds)
        ran = megabytes()
        began = time.perf_counter()
        devices.evaluate(devices.initial())
        evaluation = time.perf_counter() - began
        after = megabytes()
    for process in started:
        process.wait()
    return Measured(joining, float(np.median(times)), evaluation, before, joined, ran, after)


def run_rounds(devices: Devices, n: int, rounds: int) -> list[float]:
    """Draw, run and add up; return the seconds of each round after some to warm up."""
    design = WithReplacement(np.full(n, 1 / n), K, devices.weights)
    rng = np.random.default_rng(0)
    parameters = devices.initial()
    times = []
    for index in range(WARM_UP + rounds):
        began = time.perf_counter()
        devices.present()
        draw = design.draw(rng)
        reply = devices.run(parameters, draw, round_index=index, learning_rate=0.1)
        assert reply.clients.size == draw.clients.size
        parameters = parameters + draw.weights @ reply.updates
        times.append(time.perf_counter() - began)
    return times[WARM_UP:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", default="100,1000")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--be", type=int, nargs=3, metavar=("PORT", "FIRST", "END"))
    options: Any = parser.parse_args()
    if options.be:
        attend(*options.be)
        return
    rows = []
    for n in map(int, options.devices.split(",")):
        result = measured(n, options.rounds, options.processes)
        rows.append(
            [
                f"{n:,}",
                seconds(result.joining),
                seconds(result.round),
                f"{1 / result.round:.0f}",
                seconds(result.evaluation),
                f"{result.joined - result.before:.0f} MB",
                f"{result.ran - result.joined:.0f} MB",
                f"{result.after - result.ran:.0f} MB",
                f"{result.after:.0f} MB",
            ]
        )
    print_table(
        [
            "devices, N",
            "all joined after",
            "round, K = 10",
            "rounds per second",
            "evaluation by all",
            "gained by joining",
            "by rounds",
            "by the evaluation",
            "in all",
        ],
        rows,
    )


if __name__ == "__main__":
    main()
