"""Join a server as a device, and parse addresses, names and sample counts."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from fedpace.checks import positive_count
from fedpace.errors import InputError

# A Linux bridge has 1024 ports; three digits fit into the name of an interface.
MOST_DEVICES = 1000
HEADER = ["name", "samples"]


def join(
    address: str,
    name: str,
    *,
    certs: Path | None = None,
    shards: Path | None = None,
    pace: float | None = None,
    patience: float | None = None,
    allow: Sequence[str] = (),
) -> None:
    """Act as one device until the server says goodbye; see `fedpace.devices.device.serve`.

    `certs` is the folder of the certificates, and `pace` limits the bytes per second in each
    direction. For `shards` and `allow` see `fedpace.devices.shard.OwnShard`.
    """
    from fedpace.devices.device import RateLimit, serve
    from fedpace.devices.shard import OwnShard
    from fedpace.devices.wire import Certificates

    host, port = parse_address(address)
    serve(
        host,
        port,
        name,
        OwnShard(name, shards, allow=allow),
        tls=None if certs is None else Certificates.read(certs, name),
        rate_limit=None if pace is None else RateLimit(up=pace, down=pace),
        patience=patience,
    )


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of a text.

    >>> parse_address("[::1]:7100")
    ('::1', 7100)
    """
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise InputError(f"address must be HOST:PORT, got '{text}'; write 192.168.1.10:7100")
    return host.removeprefix("[").removesuffix("]"), int(port)


def device_names(count: int) -> list[str]:
    """Return the default names of devices.

    >>> device_names(3)
    ['device-00', 'device-01', 'device-02']
    """
    positive_count("--devices", count, "give a number of devices", MOST_DEVICES)
    width = max(2, len(str(count - 1)))
    return [f"device-{number:0{width}d}" for number in range(count)]


def parse_devices(text: str) -> list[str]:
    """Return the names of a text: a number of devices, or names with commas.

    >>> parse_devices("2"), parse_devices("kitchen, attic,kitchen")
    (['device-00', 'device-01'], ['kitchen', 'attic'])
    """
    if text.strip().isdecimal():
        return device_names(int(text))
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise InputError(f"--devices must be a number or names, got '{text}'; write 40")
    return names


def read_samples(path: Path) -> dict[str, int]:
    """Return the sample counts of devices from a CSV file with the columns name and samples."""
    try:
        lines = list(csv.reader(path.read_text(encoding="utf-8").splitlines(), strict=True))
    except (OSError, ValueError, csv.Error) as error:
        raise InputError(f"{path}: cannot be read: {error}; give a CSV file") from None
    if not lines or [each.strip() for each in lines[0]] != HEADER:
        raise InputError(f"{path}: line 1 must be 'name,samples', got {lines[:1]!r:.60}; write it")
    counts: dict[str, int] = {}
    for number, line in enumerate(lines[1:], start=2):
        if not line:
            continue
        name, count = line if len(line) == 2 else ("", "")
        if not name or name in counts or not count.strip().isdecimal() or int(count) < 1:
            raise InputError(
                f"{path}: line {number} must be a new name and a positive integer, got "
                f"{line!r:.60}; write kitchen,120"
            )
        counts[name] = int(count)
    return counts
