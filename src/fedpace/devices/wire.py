"""Messages of devices.proto, and the encrypted connections that carry them."""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from fedpace.devices.devices_pb2 import Asked, Said
from fedpace.errors import InputError

Floats = NDArray[np.float32]

NO_FLOATS: Floats = np.empty(0, dtype=np.float32)
METHOD = "/fedpace.v1.Devices/Attend"
# Bytes of numbers in a message, and of a complete message: longer ones are refused unread.
PART = 1 << 20
LONGEST = PART + (64 << 10)
# No compression on either side: a short compressed message may unpack to a thousand times its size.
PLAIN_MESSAGES = [
    ("grpc.max_receive_message_length", LONGEST),
    ("grpc.max_send_message_length", LONGEST),
    ("grpc.compression_enabled_algorithms_bitset", 1),
    ("grpc.per_message_decompression", 0),
]
# Words in gRPC's errors about certificates; another attempt would fail as well.
CERTIFICATE_WORDS = ("CERTIFICATE", "UNKNOWN_CA", "Peer name", "Hostname Verification")


class ProtocolError(Exception):
    """A message violates devices.proto or its limits; the connection must be closed."""


class Received(NamedTuple):
    """A complete message: kind, task, fields, numbers, and the bytes that crossed the wire."""

    kind: str = ""
    task: int = 0
    fields: Any = None
    floats: Floats = NO_FLOATS
    length: int = 0


def encode(message: Asked | Said, floats: Floats = NO_FLOATS) -> list[bytes]:
    """Return a message as bytes, after the parts of its numbers that do not fit into it.

    >>> [len(part) for part in encode(Said(task=1, update={"loss": 0.5}), np.zeros(300_000))]
    [1048584, 151443]
    """
    data = floats.astype("<f4").tobytes()
    first = list(range(0, max(len(data), 1), PART))
    kind = message.WhichOneof("kind")
    if data:
        getattr(message, kind).numbers = data[first[-1] :]
    ahead = [type(message)(part={"numbers": data[i : i + PART]}) for i in first[:-1]]
    return [each.SerializeToString() for each in (*ahead, message)]


class MessageReader:
    """Assemble messages of one kind, `Asked` or `Said`, of at most `most_floats` numbers."""

    def __init__(self, kind: type[Asked] | type[Said]) -> None:
        self.most_floats = 0
        self._kind = kind
        self._parts: list[bytes] = []
        self._length = 0

    def take(self, data: bytes) -> Received | None:
        """Return the message that these bytes complete, or None after a part.

        Raises
        ------
        ProtocolError
            If they are no message, or one with too many numbers.
        """
        try:
            message = self._kind.FromString(data)
        except DecodeError:
            raise ProtocolError("bytes that are no message") from None
        kind = message.WhichOneof("kind")
        if kind is None:
            raise ProtocolError("a message without a kind")
        fields = getattr(message, kind)
        self._length += len(data)
        self._parts.append(getattr(fields, "numbers", b""))
        if kind == "part" and len(self._parts[-1]) != PART:  # shorter ones could come without end
            raise ProtocolError(f"a part of {len(self._parts[-1])} bytes, not {PART}")
        if (count := sum(map(len, self._parts))) > 4 * self.most_floats:
            allowed = f"at most {self.most_floats} are expected"
            raise ProtocolError(f"{count} bytes of numbers, where {allowed}")
        if kind == "part":
            return None
        if count % 4:
            raise ProtocolError(f"{count} bytes of numbers, of which each has four")
        floats = np.frombuffer(b"".join(self._parts), "<f4") if count else NO_FLOATS
        received = Received(kind, message.task, fields, floats, self._length)
        self._parts, self._length = [], 0
        return received


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

    def for_server(self, on_connection: Callable[[], object]) -> grpc.ServerCredentials:
        """Return credentials of a server that requires those of devices.

        `on_connection` is called before the handshake of each connection, in a thread of gRPC's.
        """

        def fetch() -> None:  # None: keep the certificate
            on_connection()

        shown = grpc.ssl_server_certificate_configuration([(self.key, self.own)], self.authority)
        return grpc.dynamic_ssl_server_credentials(shown, fetch, require_client_authentication=True)

    @property
    def for_device(self) -> grpc.ChannelCredentials:
        """Credentials of a device; the server's certificate must be for the host called."""
        return grpc.ssl_channel_credentials(self.authority, self.key, self.own)


def check_private(host: str, tls: Certificates | None, *, insecure: bool) -> None:
    """Refuse plain connections to other machines unless `insecure`."""
    if tls is None and not insecure and not is_loopback(host):
        raise InputError(
            f"host must be a loopback address without TLS, got '{host}'; "
            "make certificates with: fedpace lab certs"
        )


def is_loopback(host: str) -> bool:
    """Return whether an address is on this machine.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def grpc_address(host: str, port: int) -> str:
    """Return an address in gRPC's notation.

    >>> grpc_address("::1", 7100)
    '[::1]:7100'
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
