"""TLS with certificates from both sides; a device's name is that of its certificate."""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import grpc

from fedpace.errors import InputError

# What gRPC says of a connection that failed for its certificates; trying again is of no use.
CERTIFICATE_WORDS = ("CERTIFICATE", "UNKNOWN_CA", "Peer name", "Hostname Verification")


class Certificates(NamedTuple):
    """The authority's certificate, and one's own with its key, as the bytes of PEM files."""

    authority: bytes
    own: bytes
    key: bytes

    @classmethod
    def read(cls, folder: Path, name: str = "server") -> Certificates:
        """Read `ca.pem`, `NAME.pem` and `NAME-key.pem`, and check that they belong together."""
        files = folder / "ca.pem", folder / f"{name}.pem", folder / f"{name}-key.pem"
        for file in files:
            if not file.is_file():
                raise InputError(f"{file}: there is no such file; make it with: fedpace lab certs")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_verify_locations(files[0])
            context.load_cert_chain(files[1], files[2])
        except ssl.SSLError as error:
            raise InputError(
                f"{folder}: the certificates of '{name}' cannot be used: {error.reason or error}; "
                "make them anew with: fedpace lab certs"
            ) from None
        return cls(*(file.read_bytes() for file in files))

    def for_server(self, came: Callable[[], object]) -> grpc.ServerCredentials:
        """Return what a server shows; it asks devices for theirs.

        `came` is called at each connection, before its handshake, in a thread of gRPC's.
        """

        def fetch() -> None:  # None: go on with the same certificate
            came()

        shown = grpc.ssl_server_certificate_configuration([(self.key, self.own)], self.authority)
        return grpc.dynamic_ssl_server_credentials(shown, fetch, require_client_authentication=True)

    @property
    def for_device(self) -> grpc.ChannelCredentials:
        """What a device shows; the server's must be for the host that is called."""
        return grpc.ssl_channel_credentials(self.authority, self.key, self.own)


def check_private(host: str, tls: Certificates | None, *, insecure: bool) -> None:
    """Refuse plain connections that leave the machine, unless they are asked for."""
    if tls is None and not insecure and not is_loopback(host):
        raise InputError(
            f"host must be a loopback address without TLS, got '{host}'; "
            "make certificates with: fedpace lab certs"
        )


def is_loopback(host: str) -> bool:
    """Return whether nothing that is sent there leaves the machine.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def target(host: str, port: int) -> str:
    """Return an address as gRPC writes it.

    >>> target("::1", 7100)
    '[::1]:7100'
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
