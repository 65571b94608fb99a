"""The lab's network: a namespace per device, connected to one bridge by a veth pair with `tc`."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from functools import partial
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

from fedpace.devices.lab.register import Names
from fedpace.errors import InputError
from fedpace.files import locked

# Private addresses, a thousand for each lab.
PRIVATE = IPv4Network("10.0.0.0/8")
PREFIX = 22


def check_iproute() -> None:
    """Refuse to go on without the programs `ip` and `tc`."""
    missing = [program for program in ("ip", "tc") if shutil.which(program) is None]
    if missing:
        raise InputError(
            f"the lab needs the programs ip and tc, got no {' and no '.join(missing)}; "
            "install them, with: apt-get install iproute2, or dnf install iproute iproute-tc"
        )


def may_make_networks() -> bool:
    """Return whether this user may create namespaces, which needs root."""
    return os.geteuid() == 0


def _call(command: list[str], text: str = "") -> str:
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InputError(
            f"{command[0]} must succeed, got: {done.stderr.strip()}; the lab needs root, and a "
            "Linux kernel with network namespaces, veth, bridge and tbf; --paced does without"
        )
    return done.stdout


def _batch(program: str, lines: Iterable[str], namespace: str | None = None) -> None:
    """Run many commands of one program in one process."""
    within = [] if namespace is None else ["-netns", namespace]
    _call([program, *within, "-batch", "-"], "\n".join(lines))


ip_batch, tc_batch = partial(_batch, "ip"), partial(_batch, "tc")


def ip_json(*arguments: str) -> list[dict[str, Any]]:
    """Return the output of `ip` as records."""
    text = _call(["ip", "-json", *arguments])
    return [record for record in json.loads(text or "[]") if record]


def create_network(names: Names, devices: int, packet: int, labs: Path) -> IPv4Network:
    """Create the bridge, the namespaces and the links; return the chosen subnet.

    The bridge has the first address, device i the one after the i-th. No packet is longer than
    `packet` bytes. Labs in the folder `labs` choose one after another.
    """
    with locked(labs):
        subnet = free_subnet(names.lab, taken_subnets())
        server = server_address(subnet)
        ip_batch(
            [
                f"link add {names.bridge} type bridge forward_delay 0 mcast_snooping 0",
                f"link set {names.bridge} addrgenmode none",
                f"address add {server}/{PREFIX} dev {names.bridge}",
                f"link set {names.bridge} up",
            ]
        )
    ip_batch(line for device in range(devices) for line in _host_side(names, device, packet))
    for device in range(devices):
        ip_batch(_device_side(subnet[device + 2], packet), names.namespace(device))
    return subnet


def remove_network(names: Names) -> None:
    """Remove the lab's network; rates go with their links."""
    deleted = [
        *(f"link delete {link}" for link in sorted(_links(names), reverse=True)),
        *(f"netns delete {space}" for space in _namespaces(names)),
    ]
    if deleted:  # without a check: an interface may just have gone
        command = ["ip", "-force", "-batch", "-"]
        text = "\n".join(deleted)
        subprocess.run(command, input=text, text=True, capture_output=True, check=False)


def network_left(names: Names) -> list[str]:
    """Return the existing namespaces and interfaces of the lab."""
    return _namespaces(names) + _links(names)


def _namespaces(names: Names) -> list[str]:
    found = (str(record["name"]) for record in ip_json("netns", "list"))
    return [name for name in found if names.owns_namespace(name)]


def _links(names: Names) -> list[str]:
    found = (str(record["ifname"]) for record in ip_json("link", "show"))
    return [name for name in found if names.owns_link(name)]


def server_address(subnet: IPv4Network) -> IPv4Address:
    """Return the bridge's address.

    >>> str(server_address(IPv4Network("10.20.4.0/22")))
    '10.20.4.1'
    """
    return subnet[1]


def free_subnet(lab: str, taken: list[IPv4Network]) -> IPv4Network:
    """Return a subnet that overlaps with none taken; the search starts at a hash of the name.

    >>> first = free_subnet("proto", [])
    >>> free_subnet("proto", [first]) == first
    False
    """
    count = 1 << (PREFIX - PRIVATE.prefixlen)
    begin = int.from_bytes(hashlib.blake2b(lab.encode(), digest_size=4).digest()) % count
    size = 1 << (32 - PREFIX)
    for offset in range(count):
        address = PRIVATE.network_address + (begin + offset) % count * size
        subnet = IPv4Network((address, PREFIX))
        if not any(subnet.overlaps(other) for other in taken):
            return subnet
    raise InputError(
        f"the lab must have a free /{PREFIX} of {PRIVATE}, got none; take other labs down"
    )


def taken_subnets() -> list[IPv4Network]:
    """Return the subnets of this machine's addresses and routes, without the default route."""
    addresses = [
        f"{each['local']}/{each['prefixlen']}"
        for link in ip_json("-4", "address", "show")
        for each in link.get("addr_info", ())
        if "local" in each
    ]
    routes = [str(route["dst"]) for route in ip_json("-4", "route", "show", "table", "all")]
    networks = []
    for text in addresses + routes:
        with contextlib.suppress(ValueError):  # "default", say
            networks.append(IPv4Network(text, strict=False))
    return [network for network in networks if network.prefixlen > 0]


def _host_side(names: Names, device: int, packet: int) -> Iterator[str]:
    veth, space = names.veth(device), names.namespace(device)
    yield f"netns add {space}"
    yield f"link add {veth} type veth peer name eth0 netns {space}"
    yield f"link set {veth} addrgenmode none"
    yield f"link set {veth} mtu {packet} master {names.bridge} up"


def _device_side(address: IPv4Address, packet: int) -> Iterator[str]:
    yield "link set eth0 addrgenmode none"  # before the packets are too short for IPv6
    yield f"address add {address}/{PREFIX} dev eth0"
    yield "link set lo up"
    yield f"link set eth0 mtu {packet} up"
