"""The lab's network: a namespace per device, joined by veth to one bridge."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from fedpace.errors import InputError
from fedpace.lab.iproute import ip_batch, ip_batch_as_far_as_possible, ip_json, links, namespaces
from fedpace.lab.names import Names

# Room for a thousand devices each, out of the addresses that are for private use.
PRIVATE = IPv4Network("10.0.0.0/8")
PREFIX = 22


def raise_network(names: Names, devices: int, packet: int, labs: Path) -> IPv4Network:
    """Make the bridge, the namespaces and the links; return the addresses chosen.

    The bridge has the first address, device i the one after the i-th. No packet is longer than
    `packet` bytes. Labs that are written down in the folder `labs` choose one after another.
    """
    with _one_at_a_time(labs):
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
        ip_batch(_device_side(device_address(subnet, device), packet), names.namespace(device))
    return subnet


def remove_network(names: Names) -> None:
    """Remove whatever there is of the lab's network; rates go with their links."""
    if mine := [link for link in links() if names.owns_link(link)]:
        ip_batch_as_far_as_possible(f"link delete {link}" for link in sorted(mine, reverse=True))
    if spaces := [space for space in namespaces() if names.owns_namespace(space)]:
        ip_batch_as_far_as_possible(f"netns delete {space}" for space in spaces)


def network_left(names: Names) -> list[str]:
    """Return the namespaces and interfaces of the lab that are there."""
    spaces = [space for space in namespaces() if names.owns_namespace(space)]
    return spaces + [link for link in links() if names.owns_link(link)]


def server_address(subnet: IPv4Network) -> IPv4Address:
    """Return the bridge's address.

    >>> str(server_address(IPv4Network("10.20.4.0/22")))
    '10.20.4.1'
    """
    return subnet[1]


def device_address(subnet: IPv4Network, device: int) -> IPv4Address:
    """Return a device's address.

    >>> str(device_address(IPv4Network("10.20.4.0/22"), 300))
    '10.20.5.46'
    """
    return subnet[device + 2]


def free_subnet(lab: str, taken: list[IPv4Network]) -> IPv4Network:
    """Return the first subnet that overlaps with none taken, from where the lab's name points.

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
    """Return what this machine's addresses and routes use, but for the default route."""
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


@contextlib.contextmanager
def _one_at_a_time(labs: Path) -> Iterator[None]:
    """Let no other lab of this folder choose its subnet meanwhile."""
    with (labs / ".lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
