"""Join a server as a device."""

from __future__ import annotations

from pathlib import Path

from fedpace.checks import positive_count
from fedpace.errors import InputError

# A Linux bridge has 1024 ports; three digits fit into the name of an interface.
MOST_DEVICES = 1000


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
    address, name : str
        HOST:PORT of the server, and the device's name.
    certs, shards : Path, optional
        The folder of ca.pem, NAME.pem and NAME-key.pem, which may be missing on loopback only; for
        that of shards see `OwnShard`.
    pace, patience : float, optional
        Bytes per second, down and up, that the device keeps to by itself, and seconds without any
        server after which to give up.
    """
    from fedpace.network.device import Pace, serve
    from fedpace.network.shard import OwnShard
    from fedpace.network.tls import Certificates

    host, port = parsed_address(address)
    serve(
        host,
        port,
        name,
        OwnShard(name, shards),
        tls=None if certs is None else Certificates.read(certs, name),
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


def device_names(count: int) -> list[str]:
    """Return the names that devices have where nobody gives them others.

    >>> device_names(3)
    ['device-00', 'device-01', 'device-02']
    """
    positive_count("--devices", count, "give a number of devices", MOST_DEVICES)
    width = max(2, len(str(count - 1)))
    return [f"device-{number:0{width}d}" for number in range(count)]


def parsed_devices(text: str) -> list[str]:
    """Return the names of a text: a number of devices, or names with commas.

    >>> parsed_devices("2"), parsed_devices("kitchen, attic,kitchen")
    (['device-00', 'device-01'], ['kitchen', 'attic'])
    """
    if text.strip().isdecimal():
        return device_names(int(text))
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise InputError(f"--devices must be a number or names, got '{text}'; write 40")
    return names
