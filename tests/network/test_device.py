"""A device on its own."""

import asyncio
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from fedpace.errors import InputError
from fedpace.network.device import Device, serve
from fedpace.network.device_server import DeviceServer
from fedpace.network.trainer import Trainer
from fedpace.network.wire import encoded
from tests.network.fleet import NAMES, free_port, prepared, trainer


def test_gives_up_after_its_patience_when_no_server_comes() -> None:
    port = free_port()
    with pytest.raises(InputError, match=f"got 127.0.0.1:{port} without any for 0.3 s"):
        serve("127.0.0.1", port, NAMES[0], lambda _: trainer(0), patience=0.3)


def test_keeps_its_trainer_when_the_same_job_comes_again() -> None:
    jobs: list[dict[str, Any]] = []

    def prepare(job: dict[str, Any]) -> Trainer:
        jobs.append(job)
        return trainer(0)

    port = free_port()

    async def attend() -> None:
        with ThreadPoolExecutor(1) as executor:
            await Device(NAMES[0], prepare, executor).attend("127.0.0.1", port)

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(asyncio.run, attend())
        for goodbye in (False, False, True):
            server = DeviceServer(NAMES, port=port)
            prepared(server, least=1, grace=0.0)
            server.close(goodbye=goodbye)
        done.result()
    assert len(jobs) == 1


@pytest.mark.parametrize("size", ["many", None, 2**40, -1, 2.5, True, [1]], ids=str)
def test_goes_on_when_a_server_sends_a_size_that_is_none(size: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(serve, "127.0.0.1", port, NAMES[0], lambda _: trainer(0))
            line, _ = server.accept()
            with line:
                line.sendall(encoded("welcome") + encoded("job", task=-1, job={}, size=size))
                while line.recv(1000):  # until the device hangs up
                    pass
            again, _ = server.accept()  # and comes back, for a server that makes sense
            with again:
                again.sendall(encoded("goodbye"))
                done.result(timeout=30)


def test_imports_neither_scipy_nor_dask() -> None:
    # A device is small: in forty processes each package counts forty times.
    code = "import sys, fedpace.network.device, fedpace.rounds.local, fedpace.models.logistic; "
    code += "print([m for m in ('scipy', 'dask', 'pydantic', 'pandas') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
