"""Who has no certificate, another authority's, or one of another name, gets nothing."""

import contextlib
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedpace.errors import InputError
from fedpace.network.authority import new_certificate, read_authority
from fedpace.network.certs import make_certificates
from fedpace.network.device import serve
from fedpace.network.device_server import DeviceServer
from fedpace.network.tls import client_context, server_context
from fedpace.network.trainer import Trainer
from fedpace.network.wire import encoded
from tests.network.fleet import NAMES, N, joined, prepared, run, until


def certificates(factory: pytest.TempPathFactory) -> Path:
    """Write certificates of an authority of their own."""
    folder = factory.mktemp("tls")
    make_certificates(folder, NAMES, ["127.0.0.1"])
    return folder


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificates(tmp_path_factory)


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificates(tmp_path_factory)


@pytest.fixture
def server(ours: Path) -> Iterator[DeviceServer]:
    with DeviceServer(NAMES, tls=server_context(ours)) as server:
        yield server


def never(job: dict[str, Any]) -> Trainer:
    raise AssertionError("got a job")


def test_trains_over_tls(
    server: DeviceServer, ours: Path, processes: list[subprocess.Popen[bytes]]
) -> None:
    processes += [joined(server.address[1], client, 0, ours) for client in range(N)]
    assert run(prepared(server), 0).clients.tolist() == list(range(N))


def test_refuses_a_certificate_of_another_name(server: DeviceServer, ours: Path) -> None:
    tls = client_context(ours, NAMES[1])
    with pytest.raises(InputError, match="the certificate is for another name"):
        serve(*server.address, NAMES[0], never, tls=tls)
    assert not server.connected


def test_refuses_the_servers_own_certificate_as_a_device(server: DeviceServer, ours: Path) -> None:
    with pytest.raises(InputError, match="certificates must be accepted by both sides"):
        serve(*server.address, NAMES[0], never, tls=client_context(ours, "server"))


def test_refuses_a_name_that_is_not_expected(server: DeviceServer, ours: Path) -> None:
    with pytest.raises(InputError, match="name must be one that the server expects, got 'nobody'"):
        serve(*server.address, "nobody", never, tls=client_context(ours, NAMES[0]))


def test_refuses_a_certificate_of_another_authority(
    server: DeviceServer, ours: Path, theirs: Path
) -> None:
    tls = client_context(theirs, NAMES[0])
    tls.load_verify_locations(ours / "ca.pem")  # so that only the server objects
    with pytest.raises(InputError, match="certificates must be accepted by both sides"):
        serve(*server.address, NAMES[0], never, tls=tls)
    assert not server.connected


def test_refuses_a_device_without_a_certificate(server: DeviceServer, ours: Path) -> None:
    tls = ssl.create_default_context(cafile=str(ours / "ca.pem"))
    with pytest.raises(InputError, match="certificates must be accepted by both sides"):
        serve(*server.address, NAMES[0], never, tls=tls)
    assert not server.connected


def test_a_device_does_not_talk_to_a_server_of_another_authority(
    server: DeviceServer, theirs: Path
) -> None:
    with pytest.raises(InputError, match="certificates must be accepted by both sides"):
        serve(*server.address, NAMES[0], never, tls=client_context(theirs, NAMES[0]))


def test_a_device_does_not_take_another_device_for_the_server(ours: Path) -> None:
    with (
        DeviceServer(NAMES, tls=server_context(ours, NAMES[2])) as impostor,
        pytest.raises(InputError, match="certificates must be accepted by both sides"),
    ):
        serve(*impostor.address, NAMES[0], never, tls=client_context(ours, NAMES[0]))


def test_gives_nothing_to_a_plain_connection(server: DeviceServer) -> None:
    with socket.create_connection(server.address) as plain:
        plain.sendall(encoded("hello", name=NAMES[0]))
        plain.settimeout(10)
        received = plain.recv(1000)
    assert b"job" not in received  # an alert of TLS at most
    assert not server.connected


def test_closing_ends_connections_that_are_still_shaking_hands(ours: Path) -> None:
    server = DeviceServer(NAMES, tls=server_context(ours))
    tls = client_context(ours, NAMES[0])
    with socket.create_connection(server.address) as mute:
        with tls.wrap_socket(
            socket.create_connection(server.address), server_hostname="127.0.0.1"
        ) as device:
            device.sendall(encoded("hello", name=NAMES[0]))
            until(lambda: server.connected == [0])  # so the mute one, who came before, is known too
            server.close(goodbye=False)
        mute.settimeout(10)
        assert mute.recv(1) == b""


def test_refuses_older_tls(server: DeviceServer, ours: Path) -> None:
    tls = client_context(ours, NAMES[0])
    tls.minimum_version = tls.maximum_version = ssl.TLSVersion.TLSv1_2
    with socket.create_connection(server.address) as plain, pytest.raises(ssl.SSLError):
        tls.wrap_socket(plain, server_hostname="127.0.0.1")


@pytest.mark.parametrize("host", ["0.0.0.0", "10.1.2.3", "example.org", "::"])
def test_refuses_plain_connections_off_loopback(host: str) -> None:
    with pytest.raises(InputError, match=f"host must be a loopback address .* got '{host}'"):
        DeviceServer(NAMES, host=host)
    with pytest.raises(InputError, match=f"host must be a loopback address .* got '{host}'"):
        serve(host, 1, NAMES[0], never)


def test_names_the_certificate_that_is_missing_or_broken(ours: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"device-9.pem: there is no such file; make it with"):
        client_context(ours, "device-9")
    mixed = shutil.copytree(ours, tmp_path / "mixed")
    shutil.copy(ours / "device-1-key.pem", mixed / "device-0-key.pem")
    with pytest.raises(InputError, match="certificates of 'device-0' cannot be used"):
        client_context(mixed, "device-0")


def test_says_why_a_certificate_is_refused(
    server: DeviceServer, ours: Path, theirs: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tls = client_context(theirs, NAMES[0])
    tls.load_verify_locations(ours / "ca.pem")
    for _ in range(2):
        with pytest.raises(InputError):
            serve(*server.address, NAMES[0], never, tls=tls)
    said = [each.getMessage() for each in caplog.records if "is refused" in each.getMessage()]
    assert len(said) == 1  # of many that are alike the first is told
    assert said[0].startswith("a connection is refused, 1 so far: self-signed certificate")


def test_says_that_a_certificate_has_expired(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_certificates(tmp_path, NAMES, ["127.0.0.1"])
    authority = read_authority(*((tmp_path / f"ca{end}.pem").read_bytes() for end in ("", "-key")))
    expired = new_certificate(NAMES[0], [], authority, days=-1)  # valid until yesterday
    for end, contents in zip(("", "-key"), expired.pem(), strict=True):
        (tmp_path / f"{NAMES[0]}{end}.pem").write_bytes(contents)
    with (
        DeviceServer(NAMES, tls=server_context(tmp_path)) as server,
        pytest.raises(InputError, match="certificates must be accepted by both sides"),
    ):
        serve(*server.address, NAMES[0], never, tls=client_context(tmp_path, NAMES[0]))
    assert "a connection is refused, 1 so far: certificate has expired" in caplog.text


def test_says_that_two_processes_use_one_certificate(
    server: DeviceServer, ours: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tls = client_context(ours, NAMES[0])
    with contextlib.ExitStack() as stack:
        for _ in range(4):
            plain = stack.enter_context(socket.create_connection(server.address))
            line = stack.enter_context(tls.wrap_socket(plain, server_hostname="127.0.0.1"))
            line.sendall(encoded("hello", name=NAMES[0]))
            assert line.recv(1)  # is let in
    assert server.refusals == {(0, "two at once"): 1}
    assert "do two processes use its name?" in caplog.text
