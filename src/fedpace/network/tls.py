"""TLS 1.3 with certificates from both sides; a device's name is that of its certificate."""

from __future__ import annotations

import ipaddress
import logging
import ssl
import time
from collections import Counter
from pathlib import Path
from typing import Any

from fedpace.errors import InputError

# What a server says when it does not accept a certificate; trying again would change nothing.
CERTIFICATE_ALERTS = ("CERTIFICATE", "UNKNOWN_CA", "ACCESS_DENIED", "BAD_CERTIFICATE")
# Seconds between two lines about handshakes that fail for the same reason: strangers may knock on.
REMINDER = 60.0

logger = logging.getLogger(__name__)


def server_context(folder: Path, name: str = "server") -> ssl.SSLContext:
    """Return the server's side: `ca.pem`, and `NAME.pem` with its key `NAME-key.pem`.

    Why a handshake fails is logged: an expired certificate, say, or one of another authority.
    """
    context = _context(ssl.PROTOCOL_TLS_SERVER, folder, name)
    failed, said = Counter[str](), dict[str, float]()

    class Noted(ssl.SSLObject):
        """A handshake that says why it fails; asyncio would keep that to itself."""

        def do_handshake(self) -> None:
            try:
                super().do_handshake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise
            except ssl.SSLError as error:
                why = str(getattr(error, "verify_message", "") or error.reason or "no TLS")
                failed[why] += 1
                now = time.monotonic()
                if now - said.get(why, -REMINDER) >= REMINDER:
                    said[why] = now
                    logger.warning("a connection is refused, %d so far: %s", failed[why], why)
                raise

    context.sslobject_class = Noted
    return context


def client_context(folder: Path, name: str) -> ssl.SSLContext:
    """Return a device's side; the server's certificate must be for the host that is called."""
    return _context(ssl.PROTOCOL_TLS_CLIENT, folder, name)


def check_private(host: str, tls: ssl.SSLContext | None, *, insecure: bool) -> None:
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


def certified_name(certificate: dict[str, Any] | None) -> str | None:
    """Return the common name of the other side's certificate, as `getpeercert` gives it.

    >>> certified_name({"subject": ((("commonName", "device-07"),),)})
    'device-07'
    """
    names = [
        value
        for part in (certificate or {}).get("subject", ())
        for key, value in part
        if key == "commonName"
    ]
    return names[0] if len(names) == 1 else None


def refused_for_good(error: BaseException) -> bool:
    """Return whether an error is about certificates, so that trying again is of no use."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return True
    reason = str(getattr(error, "reason", "")) if isinstance(error, ssl.SSLError) else ""
    return "ALERT" in reason and any(word in reason for word in CERTIFICATE_ALERTS)


def _context(protocol: int, folder: Path, name: str) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    files = folder / "ca.pem", folder / f"{name}.pem", folder / f"{name}-key.pem"
    for file in files:
        if not file.is_file():
            raise InputError(f"{file}: there is no such file; make it with: fedpace lab certs")
    try:
        context.load_verify_locations(files[0])
        context.load_cert_chain(files[1], files[2])
    except ssl.SSLError as error:
        raise InputError(
            f"{folder}: the certificates of '{name}' cannot be used: {error.reason or error}; "
            "make them anew with: fedpace lab certs"
        ) from None
    return context
