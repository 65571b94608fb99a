import contextlib
import os
import ssl
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from fedpace.devices.certificates import make_certificates
from fedpace.errors import InputError
from fedpace.files import hold_lock
from tests.cli.calling import command


def server_context(folder: Path, name: str = "server") -> ssl.SSLContext:
    return context(ssl.PROTOCOL_TLS_SERVER, folder, name)


def client_context(folder: Path, name: str) -> ssl.SSLContext:
    return context(ssl.PROTOCOL_TLS_CLIENT, folder, name)


def context(protocol: int, folder: Path, name: str) -> ssl.SSLContext:
    made = ssl.SSLContext(protocol)
    made.verify_mode = ssl.CERT_REQUIRED
    made.load_verify_locations(folder / "ca.pem")
    made.load_cert_chain(folder / f"{name}.pem", folder / f"{name}-key.pem")
    return made


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> str:
    """Let both talk in memory; return the client's name as the server sees it."""
    ends = []
    ahead, back = (ssl.MemoryBIO(), ssl.MemoryBIO()), (ssl.MemoryBIO(), ssl.MemoryBIO())
    ends.append(client.wrap_bio(back[0], ahead[0], server_hostname=host))
    ends.append(server.wrap_bio(back[1], ahead[1], server_side=True))
    for _ in range(5):
        for mine, other in ((0, 1), (1, 0)):
            with contextlib.suppress(ssl.SSLWantReadError):
                ends[mine].do_handshake()
            back[other].write(ahead[mine].read())
    with contextlib.suppress(ssl.SSLWantReadError):
        ends[1].read(1)
    certificate: Any = ends[1].getpeercert()
    ((key, name),) = certificate["subject"][0]
    assert key == "commonName"
    return str(name)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certs")
    make_certificates(folder, ["device-00", "device-01"], ["10.1.2.1", "server.example"])
    return folder


@pytest.mark.parametrize("host", ["10.1.2.1", "server.example"])
def test_server_and_device_know_each_other_by_name(folder: Path, host: str) -> None:
    name = handshake(server_context(folder), client_context(folder, "device-01"), host)
    assert name == "device-01"


def test_a_server_under_another_address_is_not_trusted(folder: Path) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="IP address mismatch"):
        handshake(server_context(folder), client_context(folder, "device-00"), "10.1.2.2")


def test_a_device_cannot_pass_for_the_server(folder: Path) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(
            server_context(folder, "device-01"), client_context(folder, "device-00"), "10.1.2.1"
        )


def test_another_authority_is_not_trusted(folder: Path, tmp_path: Path) -> None:
    make_certificates(tmp_path, ["device-00"], ["10.1.2.1"])
    with pytest.raises(ssl.SSLError):
        handshake(server_context(tmp_path), client_context(folder, "device-00"), "10.1.2.1")


def test_devices_can_be_added_and_nothing_is_made_anew(folder: Path) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert make_certificates(folder, ["device-01", "attic"], ["10.1.2.1"]) == {"attic": ""}
    after = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert before.items() <= after.items()
    name = handshake(server_context(folder), client_context(folder, "attic"), "10.1.2.1")
    assert name == "attic"


def test_a_new_host_is_added_to_the_servers_certificate(tmp_path: Path) -> None:
    make_certificates(tmp_path, ["device-00"], ["10.1.2.1", "::1"])
    made = make_certificates(tmp_path, ["device-00"], ["new.example", "0:0:0:0:0:0:0:1"])
    assert made == {"server": "it did not hold for new.example"}
    for host in ("new.example", "10.1.2.1", "::1"):  # devices may still call it as before
        name = handshake(server_context(tmp_path), client_context(tmp_path, "device-00"), host)
        assert name == "device-00"


def test_what_expires_soon_is_made_anew_by_the_same_authority(tmp_path: Path) -> None:
    hosts = ["10.1.2.1"]
    make_certificates(tmp_path, ["device-00"], hosts, days=20)
    old = client_context(tmp_path, "device-00")  # a device that has got nothing new yet
    assert make_certificates(tmp_path, ["device-00"], hosts, days=20) == {}
    made = make_certificates(tmp_path, ["device-00"], hosts)
    assert list(made) == ["ca", "server", "device-00"]
    assert all(reason.startswith("it was valid until ") for reason in made.values())
    for device in (old, client_context(tmp_path, "device-00")):
        assert handshake(server_context(tmp_path), device, hosts[0]) == "device-00"
    assert make_certificates(tmp_path, ["device-00"], hosts) == {}


def test_what_cannot_be_used_is_made_anew(folder: Path, tmp_path: Path) -> None:
    names = [f"device-0{number}" for number in range(6)]
    make_certificates(tmp_path, names, ["10.1.2.1"])
    (tmp_path / "device-00.pem").write_text("nothing")
    (tmp_path / "device-01-key.pem").write_bytes((tmp_path / "device-02-key.pem").read_bytes())
    (tmp_path / "device-02-key.pem").unlink()
    for end in (".pem", "-key.pem"):
        (tmp_path / f"device-03{end}").write_bytes((folder / f"device-00{end}").read_bytes())
        (tmp_path / f"device-05{end}").write_bytes((tmp_path / f"server{end}").read_bytes())
    assert make_certificates(tmp_path, names, ["10.1.2.1"]) == {
        "device-00": "it cannot be read",
        "device-01": "its key is another's",
        "device-02": "",
        "device-03": "another authority signed it",
        "device-05": "it is for another name",
    }
    for name in names:
        tls = client_context(tmp_path, name)
        assert handshake(server_context(tmp_path), tls, "10.1.2.1") == name


def test_keys_are_for_their_owner_only(folder: Path) -> None:
    for path in folder.glob("*-key.pem"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "name",
    ["ca", "CA", "server", "ca-key", "kitchen-key", "Attic-KEY", "../device", "", "a b", "a" * 64],
)
def test_refuses_names_that_would_be_other_files(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="--devices must be names"):
        make_certificates(tmp_path, [name], ["10.1.2.1"])


def test_an_authority_without_its_key_is_said(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_bytes((folder / "ca.pem").read_bytes())
    with pytest.raises(InputError, match="cannot be read as the authority's key"):
        make_certificates(tmp_path, ["device-00"], ["10.1.2.1"])


def test_a_key_is_not_overwritten_by_a_certificate_nor_the_other_way_round(tmp_path: Path) -> None:
    make_certificates(tmp_path, ["device-00"], ["10.1.2.1"])
    key, certificate = tmp_path / "ca-key.pem", tmp_path / "ca.pem"
    before = key.read_bytes()
    (tmp_path / "attic.pem").write_bytes(before)  # somebody keeps a key under this name
    with pytest.raises(InputError, match=r"attic.pem: holds a key, which is not overwritten"):
        make_certificates(tmp_path, ["attic"], ["10.1.2.1"])
    (tmp_path / "attic.pem").unlink()
    (tmp_path / "attic-key.pem").write_bytes(certificate.read_bytes())
    with pytest.raises(InputError, match=r"attic-key.pem: holds a certificate, which is not"):
        make_certificates(tmp_path, ["attic"], ["10.1.2.1"])
    assert not (tmp_path / "attic.pem").exists()
    assert key.read_bytes() == before


def test_an_authority_that_lost_its_certificate_keeps_its_key(tmp_path: Path) -> None:
    make_certificates(tmp_path, ["device-00"], ["10.1.2.1"])
    certificate, key = tmp_path / "ca.pem", tmp_path / "ca-key.pem"
    before = key.read_bytes()
    certificate.unlink()
    with pytest.raises(InputError, match=r"ca-key.pem: .* is not overwritten; bring ca.pem back"):
        make_certificates(tmp_path, ["device-00"], ["10.1.2.1"])
    assert key.read_bytes() == before


def test_links_in_the_folder_are_not_followed(tmp_path: Path) -> None:
    folder, other = tmp_path / "certs", tmp_path / "other"
    folder.mkdir()
    other.write_text("of somebody else")
    for name in (".attic.pem.part", "attic-key.pem"):
        (folder / name).symlink_to(other)
    make_certificates(folder, ["attic"], ["10.1.2.1"])
    (folder / ".lock").symlink_to(other)
    with pytest.raises(InputError, match=r"\.lock: is a link; remove it, or choose another place"):
        make_certificates(folder, ["attic"], ["10.1.2.1"])
    assert other.read_text() == "of somebody else"


def test_of_two_at_once_one_makes_all_and_the_other_says_who_does(tmp_path: Path) -> None:
    folder = tmp_path / "certs"
    commands = [command("lab", "certs", "--out", folder, "--devices", n, "--server", "10.1.2.1")
                for n in ("100", "a,b")] * 2  # fmt: skip
    both = [
        subprocess.Popen(each, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        for each in commands
    ]
    said = [each.communicate()[1] for each in both]
    codes = [each.returncode for each in both]
    assert 0 in codes
    for code, text in zip(codes, said, strict=True):
        assert code == 0 or "must not be in use, got one that " in text
    authority = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
    for path in folder.glob("*.pem"):
        if not path.stem.endswith("-key"):
            signed = x509.load_pem_x509_certificate(path.read_bytes())
            signed.verify_directly_issued_by(authority)


def test_says_who_holds_a_folder(tmp_path: Path) -> None:
    with (
        hold_lock(tmp_path / ".lock", "this"),
        pytest.raises(
            InputError, match=rf"must not be in use, got one that 'process {os.getpid()}"
        ),
    ):
        make_certificates(tmp_path, ["device-00"], ["10.1.2.1"])
    assert make_certificates(tmp_path, ["device-00"], ["10.1.2.1"])
