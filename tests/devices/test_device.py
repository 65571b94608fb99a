"""A device on its own."""

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from fedpace.devices.device import Trainer, serve
from fedpace.devices.devices_pb2 import Asked
from fedpace.devices.server import DeviceServer
from fedpace.devices.wire import METHOD
from fedpace.errors import InputError
from tests.devices.fleet import NAMES, free_port, prepared, trainer


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
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(serve, "127.0.0.1", port, NAMES[0], prepare)
        for goodbye in (False, False, True):
            server = DeviceServer(NAMES, port=port)
            prepared(server, least=1, grace=0.0)
            server.close(goodbye=goodbye)
        done.result()
    assert len(jobs) == 1


@pytest.mark.parametrize(
    "says",
    [
        Asked(job={"json": "{}", "size": 2**40}),
        Asked(train={"numbers": b"1234"}),  # no numbers were announced
        Asked(part={"numbers": b"1"}),
        Asked(),
    ],
    ids=["endless_model", "no_job", "short_part", "nothing"],
)
def test_goes_on_when_a_server_says_what_no_server_of_ours_says(says: Asked) -> None:
    calls: list[object] = []

    def attend(said: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        calls.append(next(said))
        if len(calls) == 1:
            yield says.SerializeToString()
            for _ in said:  # until the device hangs up
                pass
        # The second time it ends well, which is a goodbye.

    server = grpc.server(ThreadPoolExecutor(2))
    _, service, method = METHOD.split("/")
    handlers = {method: grpc.stream_stream_rpc_method_handler(attend)}
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, handlers)])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        serve("127.0.0.1", port, NAMES[0], lambda _: trainer(0))
    finally:
        server.stop(None).wait()
    assert len(calls) == 2


def test_imports_neither_scipy_nor_dask() -> None:
    # A device is small: in forty processes each package counts forty times.
    code = "import sys, fedpace.devices.device, fedpace.backends.local, fedpace.models.networks; "
    code += "print([m for m in ('scipy', 'dask', 'pydantic', 'pandas') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
