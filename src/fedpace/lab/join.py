"""Join a server as a device."""

from __future__ import annotations

from pathlib import Path

from fedpace.errors import InputError
from fedpace.network.device import serve
from fedpace.network.tls import client_context
from fedpace.network.wire import Pace


def join(
    address: str,
    name: str,
    *,
    certs: Path | None = None,
    shards: Path | None = None,
    pace: float | None = None,
    patience: float | None = None,
) -> None:
    """Serve a server as one device, until it says goodbye; see `fedpace.network.device.serve`.

    Parameters
    ----------
    address : str
        HOST:PORT of the server.
    name : str
        The device's name.
    certs : Path, optional
        The folder of ca.pem, NAME.pem and NAME-key.pem; only on loopback may it be missing.
    shards : Path, optional
        See `OwnShard`.
    pace : float, optional
        Bytes per second, down and up, that the device keeps to by itself.
    patience : float, optional
        Seconds without any server after which to give up.
    """
    from fedpace.lab.own_shard import OwnShard

    host, port = parsed_address(address)
    serve(
        host,
        port,
        name,
        OwnShard(name, shards),
        tls=None if certs is None else client_context(certs, name),
        pace=None if pace is None else Pace(up=pace, down=pace),
        patience=patience,
    )


def parsed_address(text: str) -> tuple[str, int]:
    """Return host and port of a text.

    >>> parsed_address("[::1]:7100")
    ('::1', 7100)
    """
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise InputError(f"address must be HOST:PORT, got '{text}'; write 192.168.1.10:7100")
    return host.removeprefix("[").removesuffix("]"), int(port)
