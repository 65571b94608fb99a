"""The processes of a lab, their limits, and their network: a namespace per device."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

from fedpace.devices.lab.register import Names
from fedpace.errors import InputError
from fedpace.files import lock_folder

# Environment variable with lab and device: processes are found by it in /proc, even after a crash.
MARK = "FEDPACE_LAB"
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
# Seconds to wait for the end of a killed process.
PATIENCE = 10.0
# During exec a process has no environment for a moment: look twice.
LOOKS, LOOK_AGAIN = 2, 0.05


def start(command: Sequence[str], *, lab: str, device: str, log: Path) -> int:
    """Start a device's process, which outlives this one; return its number."""
    with log.open("ab") as file:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, **ONE_THREAD, MARK: f"{lab} {device}"},
            start_new_session=True,
        )
    # Avoid Python's warning about a process that goes on.
    process.returncode = 0
    return process.pid


def running_devices(lab: str) -> dict[str, int]:
    """Return the process id of each running device of a lab."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal() and (device := _device_of(int(folder.name), lab)):
            found[device] = int(folder.name)
    return dict(sorted(found.items()))


def stop(lab: str) -> list[str]:
    """Kill every process of a lab, and return the devices that ran; they have nothing to save."""
    stopped: dict[str, int] = {}
    looks, end = 0, time.monotonic() + PATIENCE
    while looks < LOOKS and time.monotonic() < end:
        left = running_devices(lab)
        stopped |= left
        looks = 0 if left else looks + 1
        for pid in left.values():
            _kill(pid, lab)
        if looks:
            time.sleep(LOOK_AGAIN)
    return sorted(stopped)


def memory(pid: int) -> int:
    """Return the bytes of memory of a process, or 0 if it has ended."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def _device_of(pid: int, lab: str) -> str | None:
    """Return the device of a process, or None if it is not the lab's."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # ended, or another user's
        return None
    mark = f"{MARK}={lab} ".encode()
    marked = (entry for entry in environment.split(b"\0") if entry.startswith(mark))
    return next((entry.removeprefix(mark).decode(errors="replace") for entry in marked), None)


def _kill(pid: int, lab: str) -> None:
    """Kill a process and wait for its end; never another process that has reused its number."""
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(pid)
        try:
            if _device_of(pid, lab):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                gone = select.poll()
                gone.register(handle, select.POLLIN)
                gone.poll(1000 * PATIENCE)
        finally:
            os.close(handle)
    with contextlib.suppress(ChildProcessError):  # do not leave a zombie if it was a child
        os.waitpid(pid, os.WNOHANG)


CGROUPS = Path("/sys/fs/cgroup")
# Microseconds per period of a share: short, so that local steps are slowed down evenly.
PERIOD = 10_000
LEAST_SHARE = 0.1


def parse_cores(text: str) -> list[int]:
    """Return the cores of a text such as "0-1" or "0,2"; this process must be allowed to use them.

    >>> parse_cores("0")
    [0]
    """
    try:
        cores: list[int] = []
        for part in text.split(","):
            first, _, last = part.partition("-")
            cores += range(int(first), int(last or first) + 1)
    except ValueError:
        cores = []
    usable = os.sched_getaffinity(0)
    if not cores or not usable.issuperset(cores):
        raise InputError(
            f"--cores must be some of {', '.join(map(str, sorted(usable)))}, got '{text}'; "
            "write 0-1 or 0,2"
        )
    return cores


def pin(pid: int, core: int) -> None:
    """Keep a process on one core."""
    with contextlib.suppress(ProcessLookupError):
        os.sched_setaffinity(pid, {core})


def check_cpu_share(share: float) -> None:
    """Refuse a share of a core that cannot be enforced here."""
    if not LEAST_SHARE <= share <= 1:
        raise InputError(
            f"--cpu-share must be from {LEAST_SHARE:g} to 1 of a core, got {share:g}; write 0.25"
        )
    if _root() is None:
        raise InputError(
            f"--cpu-share needs control groups with cpu limits that this user may write, got none "
            f"under {CGROUPS}; leave it out, or use --cores"
        )


def limit(names: Names, device: int, pid: int, share: float) -> None:
    """Put a process into its own control group with a share of a core."""
    root = _root()
    assert root is not None, "check_cpu_share comes first"
    folder = root / _group(names) / f"{device:03d}"
    folder.mkdir(parents=True, exist_ok=True)
    quota = round(share * PERIOD)
    if (folder / "cpu.cfs_quota_us").exists():
        (folder / "cpu.cfs_period_us").write_text(str(PERIOD))
        (folder / "cpu.cfs_quota_us").write_text(str(quota))
    else:
        (root / _group(names) / "cgroup.subtree_control").write_text("+cpu")
        (folder / "cpu.max").write_text(f"{quota} {PERIOD}")
    with contextlib.suppress(ProcessLookupError):
        (folder / "cgroup.procs").write_text(str(pid))


def remove_limits(names: Names) -> None:
    """Remove the lab's control groups; their processes must have ended."""
    for group in limits_left(names):
        for folder in (*Path(group).glob("[0-9]*"), Path(group)):
            _remove(folder)


def limits_left(names: Names) -> list[str]:
    """Return the existing control groups of the lab."""
    groups = (root / _group(names) for root in (CGROUPS, CGROUPS / "cpu"))
    return [str(group) for group in groups if group.is_dir()]


def _group(names: Names) -> str:
    return f"fedpace-{names.lab}"


def _root() -> Path | None:
    """Return a folder for control groups with CPU limits, of version 2 or 1, if there is one."""
    for root, sign in ((CGROUPS, "cgroup.controllers"), (CGROUPS / "cpu", "cpu.cfs_quota_us")):
        here = (root / sign).is_file() or (root / "cgroup.procs").is_file()
        if not here or not os.access(root, os.W_OK):
            continue
        enabled = root / "cgroup.subtree_control"  # version 1 has no such file
        if not enabled.exists() or "cpu" in enabled.read_text().split():
            return root
    return None


def _remove(folder: Path) -> None:
    """Remove a group; it may be busy for a moment after its processes end."""
    for _ in range(50):
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.02)


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


# Bytes that may wait before a slow link: more than any TCP window, so that nothing is dropped.
QUEUE = 16 * 1024 * 1024


def create_network(names: Names, devices: int, packet: int, labs: Path) -> IPv4Network:
    """Create the bridge, the namespaces and the links; return the chosen subnet.

    The bridge has the first address, device i the one after the i-th. No packet is longer than
    `packet` bytes. Labs in the folder `labs` choose one after another.
    """
    with lock_folder(labs):
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


def share_server_link(
    names: Names, rate: float, packet: int, addresses: Sequence[IPv4Address]
) -> None:
    """Limit all packets between devices and server to `rate` bytes per second, both ways together.

    Packets of the bridge are redirected to an interface for that (ifb), and go on from there. Each
    device, known by its address, has a queue of its own; the queues take turns.
    """
    shared, bits = names.shared, max(round(8 * rate), 8)
    each = max(bits // max(len(addresses), 1), 8)
    burst = f"burst {packet} cburst {packet} quantum {packet}"
    ip_batch(
        [
            f"link add {shared} type ifb",
            f"link set {shared} up",
            # Packets as long as on a wire, so that queues take turns by packets.
            f"link set {names.bridge} gso_max_size {packet} gso_max_segs 1",
        ]
    )
    everything = f"protocol ip u32 match u32 0 0 action mirred egress redirect dev {shared}"
    lines = [
        f"qdisc replace dev {shared} root handle 1: htb",
        f"class add dev {shared} parent 1: classid 1:1 htb rate {bits}bit ceil {bits}bit {burst}",
    ]
    for place, address in enumerate(addresses):
        own = f"1:{place + 2:x}"
        lines += [
            f"class add dev {shared} parent 1:1 classid {own} htb rate {each}bit ceil {bits}bit "
            + burst,
            f"qdisc add dev {shared} parent {own} bfifo limit {QUEUE}",
            *(
                f"filter add dev {shared} parent 1: protocol ip u32 match ip {end} {address}/32 "
                f"flowid {own}"
                for end in ("src", "dst")
            ),
        ]
    lines += [
        f"qdisc add dev {names.bridge} clsact",
        f"filter add dev {names.bridge} egress {everything}",
        f"filter add dev {names.bridge} ingress {everything}",
    ]
    tc_batch(lines)


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
