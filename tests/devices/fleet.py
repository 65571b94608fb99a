"""A small fleet: the data of four clients, and processes that each hold one client's."""

import importlib
import multiprocessing
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fedpace.backends.local import LocalTrainer
from fedpace.backends.simulator import Simulator
from fedpace.checks import FloatArray
from fedpace.data.partition import synthetic
from fedpace.data.shards import Split
from fedpace.devices.backend import DeviceBackend
from fedpace.devices.device import Prepare, RateLimit, serve
from fedpace.devices.server import DeviceServer
from fedpace.models.networks import Logistic
from fedpace.seeds import Seeds
from fedpace.times.round_times import Steady
from fedpace.training.backend import BaseBackend, Evaluation, Reply, Task

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
        self, parameters: FloatArray, *, local_steps: int | None = None, **task: Any
    ) -> tuple[FloatArray, float]:
        time.sleep(self.seconds)
        return super().train(parameters, local_steps=local_steps, **task)


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
    rate_limit: RateLimit | None = None,
) -> threading.Thread:
    """Be a device in a thread of this process, until a server says goodbye."""
    made = prepare or (lambda job: trainer(client, job["seed"], seconds))
    arguments = ("127.0.0.1", port, NAMES[client], made)
    options = {"rate_limit": rate_limit}
    thread = threading.Thread(target=serve, args=arguments, kwargs=options, daemon=True)
    thread.start()
    return thread


class Running(Protocol):
    """A process, as `subprocess` has it."""

    def kill(self) -> None: ...

    def send_signal(self, sig: int) -> None: ...

    def wait(self, timeout: float | None = None) -> int | None: ...


class Warm:
    """A process that is forked from a server which has imported everything: it starts at once."""

    def __init__(self, module: str, arguments: list[str]) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tests.devices.join", "tests.devices.lead"])
        self._process = context.Process(target=call_main, args=(module, arguments), daemon=True)
        self._process.start()

    def kill(self) -> None:
        self._process.kill()

    def send_signal(self, sig: int) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, sig)

    def wait(self, timeout: float | None = None) -> int | None:
        self._process.join(timeout)
        return self._process.exitcode


def call_main(module: str, arguments: list[str]) -> None:
    """Run a module beside this one as if it were called with these arguments."""
    sys.argv[1:] = arguments
    importlib.import_module(f"tests.devices.{module}").main()


def started(module: str, *arguments: object) -> Running:
    """Start one of the modules beside this one as a process."""
    return Warm(module, [*map(str, arguments)])


def joined(port: int, client: int, *arguments: object) -> Running:
    """Start a device as a process of its own."""
    return started("join", port, client, *arguments)


def prepared(server: DeviceServer, **options: Any) -> DeviceBackend:
    """Return devices that are ready to train."""
    memory = options.pop("memory", None)
    settings = {"deadline": 300.0, "grace": 300.0, "patience": 300.0, "least": N} | options
    devices = DeviceBackend(server, MODEL, Seeds(SEED), **settings)
    devices.prepare({"seed": SEED}, memory=memory)
    return devices


# A memory of every client's updates: none of the first is held.
KNOWN = {"lengths": {str(client): 1.0 for client in range(N)}}


def task(parameters: FloatArray, clients: Sequence[int], round_index: int = 0) -> Task:
    """Return what clients are to do in a round."""
    return Task(np.array(clients), parameters, round_index, learning_rate=0.1, seconds=0.0)


def run(backend: BaseBackend, index: int, clients: Sequence[int] | None = None) -> Reply:
    """Do a round with the initial model, of all clients if none are given."""
    drawn = range(backend.weights.size) if clients is None else clients
    backend.submit(task(backend.initial(), drawn, index))
    return backend.collect()


def present(devices: DeviceBackend) -> list[bool]:
    """Return who can be drawn."""
    clients = devices.present(0, 0.0).clients
    assert clients is not None
    return list(map(bool, clients))


def evaluated(devices: DeviceBackend, parameters: FloatArray | None = None) -> Evaluation:
    """Evaluate a model, the initial one if none is given."""
    evaluation = devices.evaluate(devices.initial() if parameters is None else parameters)
    assert evaluation is not None
    return evaluation


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def until(condition: Callable[[], Any], seconds: float = 300.0) -> None:
    """Wait until something is so."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def ended(processes: Sequence[Running]) -> None:
    """Leave no process behind."""
    for process in processes:
        process.kill()
        process.wait()
