"""The server's side of many devices: rounds per second and memory against N.

    OPENBLAS_NUM_THREADS=1 .venv/bin/python benchmarks/devices.py [--devices 100,1000]

Real connections over loopback, plain and by TLS, to devices that train nothing and answer at once,
many to a process, so that what is measured is the server: sending the model to K devices, receiving
and screening their updates, adding up. The model is that of the prototype, 784 × 26 + 26 numbers of
float32. Memory is what the server's process gained at each step, and all that it holds at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import grpc
import numpy as np
from tables import print_table, seconds

from fedpace.backends.local import LocalEvaluation
from fedpace.checks import FloatArray
from fedpace.devices.backend import DeviceBackend
from fedpace.devices.certificates import make_certificates
from fedpace.devices.device import OPTIONS, Device
from fedpace.devices.devices_pb2 import Asked
from fedpace.devices.server import DeviceServer
from fedpace.devices.wire import METHOD, Certificates, MessageReader
from fedpace.models.networks import Logistic
from fedpace.sampling.design import WithReplacement
from fedpace.seeds import Seeds
from fedpace.training.backend import Task

MODEL = Logistic(features=784, classes=26, dtype=np.float32)
K = 10
PROCESSES = 2  # that the devices share
AT_ONCE = 50  # devices of each that join at the same moment; all are connected in the end
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

    def evaluate(self, parameters: FloatArray) -> LocalEvaluation:  # noqa: ARG002
        return LocalEvaluation(1.0, 1, 2)


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


def attend(port: int, first: int, end: int, folder: Path | None) -> None:
    """Be the devices from `first` to `end`."""
    trainer = Idle()

    async def attend_one(client: int, joining: asyncio.Semaphore) -> None:
        device = Device(name(client), lambda _: trainer)
        credentials = Certificates.read(folder, name(client)).for_device if folder else None
        while not await attended(device, f"127.0.0.1:{port}", credentials, joining):
            await asyncio.sleep(1)

    async def all_of_them() -> None:
        joining = asyncio.Semaphore(AT_ONCE)
        await asyncio.gather(*(attend_one(client, joining) for client in range(first, end)))

    asyncio.run(all_of_them())


async def attended(
    device: Device,
    address: str,
    credentials: grpc.ChannelCredentials | None,
    joining: asyncio.Semaphore,
) -> bool:
    """Serve over one connection, as `Device.attend` does, but many in one thread."""
    reader = MessageReader(Asked)
    if credentials is None:
        channel = grpc.aio.insecure_channel(address, options=OPTIONS)
    else:
        channel = grpc.aio.secure_channel(address, credentials, options=OPTIONS)
    async with channel:
        try:
            async with joining:
                call = channel.stream_stream(METHOD)()
                await call.write(device.hello)
                data = await call.read()
            while data is not grpc.aio.EOF:
                for message in device.answer(reader, data):
                    await call.write(message)
                data = await call.read()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return False  # joining may take longer than a server waits for a hello
        return True


def megabytes() -> float:
    """Return what this process holds in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def measured(n: int, rounds: int, folder: Path | None) -> Measured:
    before = megabytes()
    tls = Certificates.read(folder) if folder else None
    with DeviceServer([name(i) for i in range(n)], tls=tls) as server:
        certificates = ["--certs", str(folder)] if folder else []
        bounds = map(str, np.linspace(0, n, PROCESSES + 1).astype(int).tolist())
        started = [
            subprocess.Popen(
                [sys.executable, __file__, "--be", str(server.address[1]), *ends, *certificates]
            )
            for ends in pairwise(bounds)
        ]
        devices = DeviceBackend(server, MODEL, Seeds(0), least=n)
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


def run_rounds(devices: DeviceBackend, n: int, rounds: int) -> list[float]:
    """Draw, run and add up; return the seconds of each round after some to warm up."""
    design = WithReplacement(np.full(n, 1 / n), K, devices.weights)
    rng = np.random.default_rng(0)
    parameters = devices.initial()
    times = []
    for index in range(WARM_UP + rounds):
        began = time.perf_counter()
        devices.present(index, 0.0)
        draw = design.draw(rng)
        devices.submit(Task(draw.clients, parameters, index, learning_rate=0.1, seconds=0.0))
        reply = devices.collect()
        assert reply.clients.size == draw.clients.size
        parameters = parameters + draw.weights @ reply.updates
        times.append(time.perf_counter() - began)
    return times[WARM_UP:]


def row(n: int, rounds: int, folder: Path | None) -> list[str]:
    result = measured(n, rounds, folder)
    return [
        f"{n:,}, {'TLS' if folder else 'plain'}",
        seconds(result.joining),
        seconds(result.round),
        f"{1 / result.round:.0f}",
        seconds(result.evaluation),
        f"{result.joined - result.before:.0f} MB",
        f"{result.ran - result.joined:.0f} MB",
        f"{result.after - result.ran:.0f} MB",
        f"{result.after:.0f} MB",
    ]


def row_apart(n: int, rounds: int, folder: Path | None) -> list[str]:
    """Measure in a process of its own, whose memory nothing else has grown."""
    certificates = ["--certs", str(folder)] if folder else []
    command = [sys.executable, __file__, "--case", str(n), "--rounds", str(rounds), *certificates]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    cells: list[str] = json.loads(done.stdout)
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", default="100,1000")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--case", type=int, help="measure this number of devices only")
    parser.add_argument("--be", type=int, nargs=3, metavar=("PORT", "FIRST", "END"))
    parser.add_argument("--certs", type=Path)
    options = parser.parse_args()
    if options.be:
        port, first, end = options.be
        attend(port, first, end, options.certs)
    elif options.case:
        print(json.dumps(row(options.case, options.rounds, options.certs)))
    else:
        compare([int(n) for n in options.devices.split(",")], options.rounds)


def compare(counts: list[int], rounds: int) -> None:
    header = ["devices, N", "all joined after", "round, K = 10", "rounds per second"]
    header += ["evaluation by all", "gained by joining", "by rounds", "by the evaluation", "in all"]
    rows = []
    for n in counts:
        rows.append(row_apart(n, rounds, None))
        with TemporaryDirectory() as folder:
            make_certificates(Path(folder), [name(i) for i in range(n)], ["127.0.0.1"])
            rows.append(row_apart(n, rounds, Path(folder)))
    print_table(header, rows)


if __name__ == "__main__":
    main()
