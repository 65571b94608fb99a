"""What one device or one stranger does to the transport; the run goes on."""

import contextlib
import socket
import subprocess
import sys
from pathlib import Path
from queue import SimpleQueue

import grpc
import numpy as np
import pytest

from fedpace.devices import connections
from fedpace.devices import server as device_server
from fedpace.devices.connections import Response
from fedpace.devices.devices_pb2 import Said
from fedpace.devices.server import LEAST_MORE, OTHER_FILES, DeviceServer
from fedpace.devices.wire import METHOD, encode
from fedpace.errors import InputError
from tests.devices.fakes import Line, hello
from tests.devices.fleet import NAMES, ROOT, N, Running, device, free_port, until

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
PING = bytes([0, 0, 8, 6, 0, 0, 0, 0, 0]) + bytes(8)
OPEN_FILES = 100


def lasting(line: socket.socket) -> bytes:
    """Return all that comes until the server hangs up."""
    line.settimeout(30)
    got = b""
    with contextlib.suppress(ConnectionError):
        while piece := line.recv(1 << 16):
            got += piece
    return got


def test_idle_connections_leave_files_for_the_run(tmp_path: Path, processes: list[Running]) -> None:
    port, file, errors = free_port(), tmp_path / "run.npz", tmp_path / "errors.txt"
    command = ["bash", "-c", f'ulimit -n {OPEN_FILES} && exec "$@"', "bash", sys.executable]
    command += ["-m", "tests.devices.lead", str(port), str(file), "60"]
    with errors.open("wb") as log:
        processes.append(subprocess.Popen(command, cwd=ROOT, stderr=log))
    devices = [device(port, client, 0.02) for client in range(N)]
    until(file.exists)
    with contextlib.ExitStack() as stack:
        for _ in range(150):
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        assert processes[-1].wait(300) == 0
    assert "open files" not in errors.read_text()
    for each in devices:
        each.join(300)
        assert not each.is_alive()  # told goodbye


def test_no_more_connections_are_taken_than_files_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_server, "MORE", 8)
    with DeviceServer(["a"]) as server, contextlib.ExitStack() as stack:
        idle = [stack.enter_context(socket.create_connection(server.address)) for _ in range(30)]
        closed = [line for line in idle if _is_closed(line)]
        assert len(closed) >= 30 - 9


def _is_closed(line: socket.socket) -> bool:
    """Tell whether the server has hung up; what it said before does not matter."""
    line.settimeout(0.3)
    try:
        while line.recv(1000):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        return True
    return True


def test_says_that_too_few_files_may_be_open_for_so_many_devices() -> None:
    code = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200)); "
    code += "from fedpace.devices.server import DeviceServer; "
    code += "DeviceServer([str(i) for i in range(500)])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    least = 500 + LEAST_MORE + OTHER_FILES
    last = done.stderr.strip().splitlines()[-1]
    assert InputError.__name__ in last
    assert f"open files must be at least {least} for 500 devices, got a limit of 200" in last


@pytest.mark.parametrize("said", [b"", PREFACE + SETTINGS], ids=["nothing", "no_call"])
def test_hangs_up_on_a_connection_without_a_call(
    monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr(device_server, "HELLO", 0.5)
    with DeviceServer(NAMES) as server, socket.create_connection(server.address) as mute:
        mute.sendall(said)
        lasting(mute)  # would last for 30 s
        assert not server.connected


def test_ends_a_call_without_a_hello(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HELLO", 0.5)
    with DeviceServer(NAMES) as server:
        mute = Line(server.address[1], None)
        assert mute.status is grpc.StatusCode.DEADLINE_EXCEEDED
        mute.close()


def test_hangs_up_on_a_flood_of_pings(server: DeviceServer) -> None:
    with socket.create_connection(server.address) as flood:
        with contextlib.suppress(ConnectionError):  # it may hang up while we go on
            flood.sendall(PREFACE + SETTINGS + 1000 * PING)
        assert b"too_many_pings" in lasting(flood)


def test_a_device_that_answers_without_reading_is_not_sent_ever_more(
    server: DeviceServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "READ", 0.5)
    model = np.zeros(16 << 20, dtype=np.float32)  # 64 MiB: no buffer on the way takes it
    server.give({}, floats=1, accept=lambda *_: True)
    line = Line(server.address[1], NAMES[0])  # nobody iterates over it, so nothing is read
    line.say(*encode(Said(task=-1, ready={"samples": 10})))
    until(lambda: server.free == [0])
    told: SimpleQueue[Response] = SimpleQueue()
    task = server.ask("train", [0], model, told.put, seconds=60.0, most_floats=1)
    line.say(*encode(Said(task=task, update={}), np.zeros(1, dtype=np.float32)))
    assert told.get(timeout=300).problem == "protocol"
    until(lambda: not server.connected)
    assert server.refusals == {(0, "protocol"): 1}
    line.close()


def test_does_not_unpack_what_is_compressed(server: DeviceServer) -> None:
    address = "{}:{}".format(*server.address)
    bomb = hello("x" * (100 << 20))  # 100 kB on the wire
    options = [("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(address, options) as channel:
        call = channel.stream_stream(METHOD)(iter([bomb]), compression=grpc.Compression.Gzip)
        refused = (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.INVALID_ARGUMENT)
        assert call.code() in (*refused, grpc.StatusCode.INTERNAL)
    assert not server.connected
