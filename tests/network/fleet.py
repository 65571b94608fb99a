"""A small fleet: the data of four clients, and processes that each hold one client's."""

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedpace.checks import FloatArray
from fedpace.data.shards import Split
from fedpace.data.synthetic import synthetic
from fedpace.models.logistic import Logistic
from fedpace.network.device import Pace, Prepare, serve
from fedpace.network.device_server import DeviceServer
from fedpace.network.devices import Devices
from fedpace.rounds.backend import Backend, Evaluation, Reply, Task
from fedpace.rounds.local import LocalTrainer
from fedpace.rounds.simulator import Simulator
from fedpace.seeds import Seeds
from fedpace.times.round_times import Steady

N = 4
SEED = 3
NAMES = [f"device-{i}" for i in range(N)]
MODEL = Logistic(features=12, classes=3, dtype=np.float32)
ROOT = Path(__file__).parents[2]


def split(seed: int = SEED) -> Split:
    sizes = np.array([20, 35, 50, 95])
    rng = Seeds(seed).stream("data")
    return synthetic(sizes, rng, alpha=1.0, beta=1.0, features=12, classes=3, test_share=0.2)


def simulator(seed: int = SEED) -> Simulator:
    times = Steady(np.array([1.0, 2.0, 3.0, 4.0]))
    return Simulator(split(seed), MODEL, times, Seeds(seed), local_steps=5, batch=8)


@dataclass(frozen=True, eq=False)
class Slow(LocalTrainer):
    """A client that takes longer over a round."""

    seconds: float

    def train(
        self, parameters: FloatArray, *, round_index: int, learning_rate: float
    ) -> tuple[FloatArray, float]:
        time.sleep(self.seconds)
        return super().train(parameters, round_index=round_index, learning_rate=learning_rate)


def trainer(client: int, seed: int = SEED, seconds: float = 0.0) -> LocalTrainer:
    data, steps = split(seed), simulator(seed).steps
    own = Split(data.train.client(client), data.test.client(client))
    return Slow(own, MODEL, Seeds(seed), client, steps, seconds)


def device(
    port: int,
    client: int,
    seconds: float = 0.0,
    *,
    prepare: Prepare | None = None,
    pace: Pace | None = None,
) -> threading.Thread:
    """Be a device in a thread of this process, until a server says goodbye."""
    made = prepare or (lambda job: trainer(client, job["seed"], seconds))
    arguments = ("127.0.0.1", port, NAMES[client], made)
    thread = threading.Thread(target=serve, args=arguments, kwargs={"pace": pace}, daemon=True)
    thread.start()
    return thread


def started(module: str, *arguments: object) -> subprocess.Popen[bytes]:
    """Start one of the modules beside this one as a process."""
    command = [sys.executable, "-m", f"tests.network.{module}", *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT)


def joined(port: int, client: int, *arguments: object) -> subprocess.Popen[bytes]:
    """Start a device as a process of its own."""
    return started("join", port, client, *arguments)


def prepared(server: DeviceServer, **options: Any) -> Devices:
    """Return devices that are ready to train."""
    settings = {"deadline": 20.0, "grace": 20.0, "patience": 20.0, "least": N} | options
    devices = Devices(server, MODEL, Seeds(SEED), **settings)
    devices.prepare({"seed": SEED})
    return devices


def task(parameters: FloatArray, clients: Sequence[int], round_index: int = 0) -> Task:
    """Return what clients are to do in a round."""
    return Task(np.array(clients), parameters, round_index, learning_rate=0.1, seconds=0.0)


def run(backend: Backend, index: int, clients: Sequence[int] | None = None) -> Reply:
    """Do a round with the initial model, of all clients if none are given."""
    drawn = range(backend.weights.size) if clients is None else clients
    backend.submit(task(backend.initial(), drawn, index))
    return backend.collect()


def present(devices: Devices) -> list[bool]:
    """Return who can be drawn."""
    clients = devices.present(0, 0.0).clients
    assert clients is not None
    return list(map(bool, clients))


def evaluated(devices: Devices, parameters: FloatArray | None = None) -> Evaluation:
    """Evaluate a model, the initial one if none is given."""
    evaluation = devices.evaluate(devices.initial() if parameters is None else parameters)
    assert evaluation is not None
    return evaluation


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def until(condition: Callable[[], Any], seconds: float = 30.0) -> None:
    """Wait until something is so."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def ended(processes: list[subprocess.Popen[bytes]]) -> None:
    """Leave no process behind."""
    for process in processes:
        process.kill()
        process.wait()
