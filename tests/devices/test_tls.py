"""Who has no certificate, another authority's, or one of another name, gets nothing."""

import contextlib
import re
import shutil
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID

from fedpace.devices import certificates as device_certificates
from fedpace.devices import server as device_server
from fedpace.devices.certificates import create_certificate, make_certificates, read_authority
from fedpace.devices.device import Trainer, serve
from fedpace.devices.server import DeviceServer
from fedpace.devices.wire import METHOD, Certificates
from fedpace.errors import InputError
from tests.devices.fakes import Line, hello
from tests.devices.fleet import NAMES, N, Running, joined, prepared, run, until


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
    with DeviceServer(NAMES, tls=Certificates.read(ours)) as server:
        yield server


def trusting(ours: Path, theirs: Path) -> Certificates:
    """Return certificates of their authority for a device that trusts ours."""
    authority = Certificates.read(ours).authority
    return Certificates.read(theirs, NAMES[0])._replace(authority=authority)


def never(job: dict[str, Any]) -> Trainer:
    raise AssertionError("got a job")


def test_trains_over_tls(server: DeviceServer, ours: Path, processes: list[Running]) -> None:
    processes += [joined(server.address[1], client, 0, ours) for client in range(N)]
    assert run(prepared(server), 0).clients.tolist() == list(range(N))


def test_refuses_a_certificate_of_another_name(server: DeviceServer, ours: Path) -> None:
    tls = Certificates.read(ours, NAMES[1])
    with pytest.raises(InputError, match="the certificate is for another name"):
        serve(*server.address, NAMES[0], never, tls=tls)
    assert not server.connected


@pytest.mark.parametrize(
    "names", [[f"{NAMES[0]}\0.evil"], [NAMES[0], "evil"], ["evil", NAMES[0]], []], ids=repr
)
def test_refuses_a_certificate_with_more_than_the_name(
    server: DeviceServer, ours: Path, monkeypatch: pytest.MonkeyPatch, names: list[str]
) -> None:
    attributes = [x509.NameAttribute(NameOID.COMMON_NAME, name) for name in names]
    monkeypatch.setattr(device_certificates, "_common_name", lambda _: x509.Name(attributes))
    authority = read_authority(*((ours / f"{name}.pem").read_bytes() for name in ("ca", "ca-key")))
    pem, key = create_certificate("", [], authority, 1).pem()
    tls = Certificates.read(ours, NAMES[0])._replace(own=pem, key=key)
    with pytest.raises(InputError, match="the certificate is for another name"):
        serve(*server.address, NAMES[0], never, tls=tls)
    assert not server.connected


def test_refuses_the_servers_own_certificate_as_a_device(server: DeviceServer, ours: Path) -> None:
    with pytest.raises(InputError, match="certificates must be accepted by both sides"):
        serve(*server.address, NAMES[0], never, tls=Certificates.read(ours, "server"))


def test_refuses_a_name_that_is_not_expected(server: DeviceServer, ours: Path) -> None:
    with pytest.raises(InputError, match="name must be one that the server expects, got 'nobody'"):
        serve(*server.address, "nobody", never, tls=Certificates.read(ours, NAMES[0]))


def test_refuses_a_certificate_of_another_authority(
    server: DeviceServer, ours: Path, theirs: Path
) -> None:
    tls = trusting(ours, theirs)  # so that only the server objects
    with pytest.raises(InputError, match="certificates must be accepted by both sides"):
        serve(*server.address, NAMES[0], never, tls=tls)
    assert not server.connected


def test_refuses_a_device_without_a_certificate(server: DeviceServer, ours: Path) -> None:
    credentials = grpc.ssl_channel_credentials((ours / "ca.pem").read_bytes())
    address = "{}:{}".format(*server.address)
    with grpc.secure_channel(address, credentials) as channel:
        call = channel.stream_stream(METHOD)(iter([hello(NAMES[0])]))
        assert call.code() is grpc.StatusCode.UNAVAILABLE
    assert not server.connected


def test_a_device_does_not_talk_to_a_server_of_another_authority(
    server: DeviceServer, theirs: Path
) -> None:
    with pytest.raises(InputError, match="certificates must be accepted by both sides"):
        serve(*server.address, NAMES[0], never, tls=Certificates.read(theirs, NAMES[0]))


def test_a_device_does_not_take_another_device_for_the_server(ours: Path) -> None:
    with (
        DeviceServer(NAMES, tls=Certificates.read(ours, NAMES[2])) as impostor,
        pytest.raises(InputError, match="certificates must be accepted by both sides"),
    ):
        serve(*impostor.address, NAMES[0], never, tls=Certificates.read(ours, NAMES[0]))


def test_gives_nothing_to_a_plain_connection(server: DeviceServer) -> None:
    line = Line(server.address[1], NAMES[0])
    assert line.status is grpc.StatusCode.UNAVAILABLE
    line.close()
    assert not server.connected


def test_closing_ends_connections_that_are_still_shaking_hands(ours: Path) -> None:
    server = DeviceServer(NAMES, tls=Certificates.read(ours))
    with socket.create_connection(server.address) as mute:
        line = Line(server.address[1], NAMES[0], Certificates.read(ours, NAMES[0]))
        until(lambda: server.connected == [0])  # so the mute one, who came before, is known too
        server.close(goodbye=False)
        line.close()
        mute.settimeout(10)
        assert mute.recv(1) == b""


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
def test_refuses_older_tls(server: DeviceServer, ours: Path) -> None:
    tls = ssl.create_default_context(cafile=str(ours / "ca.pem"))
    tls.load_cert_chain(ours / f"{NAMES[0]}.pem", ours / f"{NAMES[0]}-key.pem")
    tls.minimum_version = ssl.TLSVersion.TLSv1
    tls.maximum_version = ssl.TLSVersion.TLSv1_1
    tls.set_ciphers("ALL:@SECLEVEL=0")
    with socket.create_connection(server.address) as plain, pytest.raises(ssl.SSLError):
        tls.wrap_socket(plain, server_hostname="127.0.0.1")


def test_a_device_goes_on_trying_when_a_full_server_hangs_up(ours: Path) -> None:
    knocks: list[object] = []

    def hang_up(full: socket.socket) -> None:
        with contextlib.suppress(OSError):  # the end of the test
            while True:
                line, address = full.accept()
                knocks.append(address)
                line.close()

    with socket.create_server(("127.0.0.1", 0)) as full:
        threading.Thread(target=hang_up, args=(full,), daemon=True).start()
        tls = Certificates.read(ours, NAMES[0])
        with pytest.raises(InputError, match="without any for 5 s; start the server first"):
            serve("127.0.0.1", full.getsockname()[1], NAMES[0], never, tls=tls, patience=5.0)
        full.shutdown(socket.SHUT_RDWR)
    assert len(knocks) > 4


@pytest.mark.parametrize("host", ["0.0.0.0", "10.1.2.3", "example.org", "::"])
def test_refuses_plain_connections_off_loopback(host: str) -> None:
    with pytest.raises(InputError, match=f"host must be a loopback address .* got '{host}'"):
        DeviceServer(NAMES, host=host)
    with pytest.raises(InputError, match=f"host must be a loopback address .* got '{host}'"):
        serve(host, 1, NAMES[0], never)


def test_names_the_certificate_that_is_missing_or_broken(ours: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"device-9.pem: there is no such file; make it with"):
        Certificates.read(ours, "device-9")
    mixed = shutil.copytree(ours, tmp_path / "mixed")
    shutil.copy(ours / "device-1-key.pem", mixed / "device-0-key.pem")
    with pytest.raises(InputError, match="certificates of 'device-0' cannot be used"):
        Certificates.read(mixed, "device-0")


def test_says_why_a_certificate_is_refused(
    server: DeviceServer, ours: Path, theirs: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InputError):
        serve(*server.address, NAMES[0], never, tls=trusting(ours, theirs))
    assert "CERTIFICATE_VERIFY_FAILED: unable to get local issuer" in capfd.readouterr().err


def test_the_log_says_how_many_were_refused(
    ours: Path, theirs: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_server, "HELLO", 2.0)
    with DeviceServer(NAMES, tls=Certificates.read(ours)) as server:
        with pytest.raises(InputError):
            serve(*server.address, NAMES[0], never, tls=trusting(ours, theirs))
        until(lambda: re.search(r"connections without a call: [1-9]", caplog.text))


def test_says_that_a_certificate_has_expired(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    make_certificates(tmp_path, NAMES, ["127.0.0.1"])
    authority = read_authority(*((tmp_path / f"ca{end}.pem").read_bytes() for end in ("", "-key")))
    expired = create_certificate(NAMES[0], [], authority, days=-1)  # valid until yesterday
    for end, contents in zip(("", "-key"), expired.pem(), strict=True):
        (tmp_path / f"{NAMES[0]}{end}.pem").write_bytes(contents)
    with (
        DeviceServer(NAMES, tls=Certificates.read(tmp_path)) as server,
        pytest.raises(InputError, match="certificates must be accepted by both sides"),
    ):
        serve(*server.address, NAMES[0], never, tls=Certificates.read(tmp_path, NAMES[0]))
    assert "certificate has expired" in capfd.readouterr().err


def test_says_that_two_processes_use_one_certificate(
    server: DeviceServer, ours: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tls = Certificates.read(ours, NAMES[0])
    with contextlib.ExitStack() as stack:
        for _ in range(4):
            line = Line(server.address[1], NAMES[0], tls)
            stack.callback(line.close)
            assert line.next().kind == "welcome"
    assert server.refusals == {(0, "two at once"): 1}
    assert "do two processes use its name?" in caplog.text
