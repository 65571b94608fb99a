"""Bring a lab up, with rates that give the round times asked for, and take it down."""

from __future__ import annotations

import math
import shutil
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from ipaddress import IPv4Address
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedpace.checks import FloatArray
from fedpace.devices.backend import DeviceBackend
from fedpace.devices.certificates import make_certificates
from fedpace.devices.lab.launch import (
    QUEUE,
    check_iproute,
    create_network,
    limit,
    limits_left,
    may_make_networks,
    network_left,
    pin,
    remove_limits,
    remove_network,
    running_devices,
    server_address,
    share_server_link,
    start,
    stop,
    tc_batch,
)
from fedpace.devices.lab.register import (
    FILE,
    Lab,
    Names,
    claim,
    forget,
    lab_folder,
    name_taken_error,
    write_lab,
)
from fedpace.devices.measure import medians
from fedpace.devices.server import DeviceServer
from fedpace.devices.shard import job_of
from fedpace.devices.wire import Certificates
from fedpace.errors import InputError
from fedpace.files import lock_folder, make_folder
from fedpace.seeds import Seeds
from fedpace.studies.build import drawn_times, model_of, split
from fedpace.studies.study import DevicesSection, Study
from fedpace.times.distributions import ORDERS
from fedpace.times.links import FAIR, SharedLink
from fedpace.training.backend import BaseBackend, Task

# Overhead of a TLS 1.3 record of at most 16 KiB: header, type and authentication tag.
RECORD, RECORD_EXTRA = 16384, 22
# Overhead of Ethernet per packet, and within it of IPv4 and TCP with time stamps.
ETHERNET, HEADERS = 14, 52
# Longest packet; how many a model should have, because a token bucket lets one pass at once; and
# the packet length that every network must carry.
LONGEST_PACKET, PACKETS, SHORTEST_PACKET = 1500, 32, 576
# Bytes per second: faster than any device asked for, slower than what tc refuses.
FASTEST = 1e9
# Rounds per device, whose median counts: for the first correction, the second, and to verify.
PASSES = (1, 3, 3)
# A larger correction would follow a disturbance, not the link.
LARGEST_CORRECTION = 4.0


def packet_size(payload: int) -> int:
    """Return the longest packet of a link for models of `payload` bytes.

    >>> packet_size(81_640), packet_size(2_440)
    (1500, 576)
    """
    return min(LONGEST_PACKET, max(SHORTEST_PACKET, payload // PACKETS))


def wire_bytes(payload: int) -> int:
    """Return the bytes that cross the wire for a payload under TLS over TCP.

    >>> wire_bytes(81_640)
    85512
    """
    encrypted = payload + math.ceil(payload / RECORD) * RECORD_EXTRA
    packets = math.ceil(encrypted / (packet_size(payload) - HEADERS))
    return encrypted + packets * (HEADERS + ETHERNET)


def rates_for(transfer_seconds: FloatArray, payload: int) -> FloatArray:
    """Return the bytes per second at which a payload goes down and comes up in given seconds.

    Both directions have the same rate: 2 · wire bytes / seconds, without the packet that passes
    at once. Times that cannot be met are given the fastest rate.

    >>> rates_for(np.array([2.0]), 81_640).round()
    array([83998.])
    """
    shaped = 2 * (wire_bytes(payload) - packet_size(payload) - ETHERNET)
    with np.errstate(divide="ignore"):
        rates = np.where(transfer_seconds > 0, shaped / transfer_seconds, FASTEST)
    return np.minimum(rates, FASTEST)


def shape(names: Names, rates: Sequence[float], packet: int) -> None:
    """Set the rate of every device's link, down and up, in bytes per second."""
    tc_batch(
        f"qdisc replace dev {names.veth(device)} root {token_bucket(rate, packet)}"
        for device, rate in enumerate(rates)
    )
    for device, rate in enumerate(rates):
        tc_batch(
            [f"qdisc replace dev eth0 root {token_bucket(rate, packet)}"], names.namespace(device)
        )


def token_bucket(rate: float, packet: int) -> str:
    """Return arguments of `tc` for a rate in bytes per second, with a burst of one packet.

    >>> token_bucket(1000.0, 1500)
    'tbf rate 8000bit burst 1514 limit 16777216'
    """
    return f"tbf rate {max(round(8 * rate), 8)}bit burst {packet + ETHERNET} limit {QUEUE}"


def shared_rate(devices: DevicesSection, payload: int, time_scale: float) -> float:
    """Return the bytes per second of a server's link that carries as many rounds as the study's.

    It carries capacity / megabits rounds of one client in a second of the study, and a round is two
    payloads, with their acknowledgements: one for two packets.

    >>> round(shared_rate(DevicesSection(link="shared:64", megabits=64.0), 81_640, 0.5))
    349503
    """
    assert devices.link is not None
    rounds = SharedLink.parse(devices.link).capacity / devices.megabits / time_scale
    packets = wire_bytes(payload) / (packet_size(payload) + ETHERNET)
    return 2 * rounds * (wire_bytes(payload) + packets / 2 * (HEADERS + ETHERNET))


class RoundMedians(NamedTuple):
    """Medians over rounds, one entry per device; NaN for one that never answered."""

    seconds: FloatArray
    computing: FloatArray


class Calibrated(NamedTuple):
    """The rates found, and the round times measured with them afterwards."""

    rates: FloatArray
    measured: RoundMedians


def calibrate(
    backend: BaseBackend,
    wanted: FloatArray,
    rates: FloatArray,
    set_rates: Callable[[FloatArray], None],
    *,
    at_once: int,
    rng: np.random.Generator,
    say: Callable[[str], None],
) -> Calibrated:
    """Find the rates with which a round of device i takes wanted_i seconds, and verify them.

    The time beyond computing is the link's: the rate is corrected in proportion. The final rates
    are measured again, so that the reported errors were not used for a correction. `at_once`
    devices train at a time, as many as a round of the study draws: they compete for the cores.
    """
    for index, rounds in enumerate(PASSES):
        if index:
            set_rates(rates)
        say(f"measuring real rounds, {index + 1} of {len(PASSES)}")
        now = measure(backend, at_once=at_once, rounds=rounds, rng=rng)
        if index < len(PASSES) - 1:
            rates = correct_rates(rates, wanted, now)
    return Calibrated(rates, now)


def correct_rates(rates: FloatArray, wanted: FloatArray, measured: RoundMedians) -> FloatArray:
    """Return rate_i · (measured_i − computing_i) / (wanted_i − computing_i).

    A device that computes for longer than its time gets the fastest rate; one that was not
    measured keeps its rate.

    >>> measured = RoundMedians(np.array([1.1, 3.0]), np.array([0.1, 2.5]))
    >>> correct_rates(np.array([100.0, 100.0]), np.array([0.6, 2.0]), measured)
    array([2.e+02, 1.e+09])
    """
    left = wanted - measured.computing
    with np.errstate(divide="ignore", invalid="ignore"):
        factors = (measured.seconds - measured.computing) / left
    factors = np.clip(factors, 1 / LARGEST_CORRECTION, LARGEST_CORRECTION)
    better = np.where(left > 0, np.minimum(rates * factors, FASTEST), FASTEST)
    return np.where(np.isfinite(measured.seconds), better, rates)


def measure(
    backend: BaseBackend, *, at_once: int, rounds: int, rng: np.random.Generator
) -> RoundMedians:
    """Let every device train a few times, in random groups, and return the medians."""
    parameters = backend.initial()
    n = backend.weights.size
    seconds, computing = np.full((2, rounds, n), np.nan)
    for index in range(rounds):
        order = rng.permutation(n)
        for first in range(0, n, at_once):
            clients = np.sort(order[first : first + at_once])
            backend.submit(Task(clients, parameters, index, learning_rate=0.01, seconds=0.0))
            reply = backend.collect()
            seconds[index, reply.clients] = reply.seconds
            computing[index, reply.clients] = reply.computing_seconds
    return RoundMedians(medians(seconds), medians(computing))


def errors(wanted: FloatArray, measured: FloatArray) -> FloatArray:
    """Return |measured − wanted| / wanted of the measured devices.

    >>> errors(np.array([1.0, 2.0]), np.array([1.1, np.nan])).round(3)
    array([0.1])
    """
    relative: FloatArray = np.abs(measured - wanted) / wanted
    return relative[np.isfinite(relative)]


PORT = 7100
LOOPBACK = "127.0.0.1"
# A round in which a device does not answer: a multiple of the longest time, and seconds more.
DEADLINE, DEADLINE_MORE = 5.0, 30.0
CERTIFICATES, SHARDS, LOGS = "certs", "shards", "logs"
# Seconds for devices to join after their start: each imports NumPy, and computes.
PATIENCE, PATIENCE_EACH = 60.0, 3.0
LOOK_AGAIN = 0.5
# A device counts as gone when it was missing in this many looks: a starting one is not visible.
GONE = 4


@dataclass(frozen=True)
class Limits:
    """Limits of the devices' computation: cores in turn, and a share of one; None for no limit."""

    cores: Sequence[int] | None = None
    share: float | None = None


@dataclass(frozen=True)
class EmulatedDevices:
    """The devices of a lab, whose file is in `folder`."""

    lab: Lab
    folder: Path
    limits: Limits

    def start(self, rates: FloatArray) -> None:
        """Start every device; paced devices get their rates."""
        for part in (SHARDS, LOGS):
            (self.folder / part).mkdir(exist_ok=True)
        for number, device in enumerate(self.lab.device_names):
            command = self._command(number, device, float(rates[number]))
            log = self.log(device)
            pid = start(command, lab=self.lab.name, device=device, log=log)
            if self.limits.cores:
                pin(pid, self.limits.cores[number % len(self.limits.cores)])
            if self.limits.share is not None:
                limit(self.lab.names, number, pid, self.limits.share)

    def set_rates(self, rates: FloatArray) -> None:
        """Set the rates of all links, or restart paced devices with theirs."""
        if self.lab.how == "namespaces":
            shape(self.lab.names, rates.tolist(), self.lab.packet)
            return
        stop(self.lab.name)
        self.start(rates)

    def wait(self, ready: Callable[[], Sequence[int]], say: Callable[[str], None]) -> None:
        """Wait until every device is ready; the error names the log of a missing one."""
        end = time.monotonic() + PATIENCE + PATIENCE_EACH * self.lab.devices
        shown, gone = 0, Counter[str]()
        while len(there := ready()) < self.lab.devices:
            living = running_devices(self.lab.name)
            for number, device in enumerate(self.lab.device_names):
                gone[device] = 0 if device in living else gone[device] + 1
                late = number not in there and time.monotonic() > end
                if late or gone[device] >= GONE:
                    self._raise_missing(device)
            if len(there) > shown:
                shown = len(there)
                say(f"{shown} of {self.lab.devices} devices are ready")
            time.sleep(LOOK_AGAIN)

    def log(self, device: str) -> Path:
        """Return a device's log file."""
        return self.folder / LOGS / f"{device}.log"

    def _raise_missing(self, device: str) -> None:
        try:
            lines = self.log(device).read_text(errors="replace").strip().splitlines()
        except OSError:
            lines = []
        raise InputError(
            f"{device} must join the lab, got: {lines[-1] if lines else 'an empty log'}; "
            f"see {self.log(device)}"
        )

    def _command(self, number: int, device: str, rate: float) -> list[str]:
        join = [
            *(sys.executable, "-m", "fedpace", "lab", "join", f"{self.lab.host}:{self.lab.port}"),
            *("--name", device, "--certs", str(self.folder / CERTIFICATES)),
            *("--shards", str(self.folder / SHARDS)),
            *(word for place in self.lab.allow for word in ("--allow", place)),
        ]
        if self.lab.how == "namespaces":
            return ["ip", "netns", "exec", self.lab.names.namespace(number), *join]
        return [*join, "--pace", f"{rate:.1f}"]


def bring_up(
    study: Study,
    name: str,
    *,
    times: str,
    time_scale: float,
    seed: int = 0,
    paced: bool = False,
    limits: Limits | None = None,
    state: Path | None = None,
    say: Callable[[str], None],
) -> tuple[Lab, Calibrated]:
    """Start a lab for a study, one device per client; after a failure it is taken down again.

    The devices are measured with the study's model and local steps. `times` are their round times,
    see `fedpace.times.distributions.device_times`, drawn with `seed` as in a simulated run. With
    `paced`, and always without root, devices limit their own rates on the loopback. A link that
    the study's clients share is limited last: the devices' own links are measured without it.
    """
    if left := remains_of(name, state):
        raise name_taken_error(name, left[0])
    lab = _plan(study, name, _draw_times(study, times, seed), time_scale, paced=paced)
    folder = lab_folder(name, state)
    make_folder(folder, "--state", mode=0o700)  # it holds private keys
    claim(lab, folder)  # first, so that the folder is known as this lab's
    try:
        lab = _connect(lab, folder.parent)
        write_lab(lab, folder)
        make_certificates(folder / CERTIFICATES, lab.device_names, [lab.host, "localhost"])
        found = _calibrate(EmulatedDevices(lab, folder, limits or Limits()), study, seed, say)
        if lab.link is not None:
            rate = shared_rate(study.devices, 4 * model_of(study).size, time_scale)
            addresses = [IPv4Address(lab.host) + 1 + each for each in range(lab.devices)]
            share_server_link(lab.names, rate, lab.packet + ETHERNET, addresses)
    except BaseException:
        take_down(name, state)
        raise
    lab = replace(lab, rates=found.rates.tolist(), measured=found.measured.seconds.tolist())
    with lock_folder(folder.parent):  # `take_down` has finished, or has not begun
        if not (folder / FILE).exists() or not running_devices(name):
            raise InputError(
                f"lab '{name}' must stay while it is brought up, got taken down meanwhile; give "
                "the same command again"
            )
        write_lab(lab, folder)
    return lab, found


def _plan(study: Study, name: str, asked: FloatArray, time_scale: float, *, paced: bool) -> Lab:
    paced = paced or not may_make_networks()
    if not paced:
        check_iproute()
    link = study.devices.link
    if link is not None and (paced or SharedLink.parse(link).rule != FAIR):
        got = f"{link}, {'paced' if paced else 'optimal'}"
        raise InputError(
            f"devices.link must be fair in a lab, and needs root, got {got}; write shared:20, "
            "or leave it out"
        )
    return Lab(
        name=name,
        devices=asked.size,
        setup=study.name,
        asked=asked.tolist(),
        time_scale=time_scale,
        how="paced" if paced else "namespaces",
        host=LOOPBACK,
        port=PORT,
        packet=packet_size(4 * model_of(study).size),
        rates=[],
        measured=[],
        link=link,
        allow=sorted({name.rpartition(":")[0] for name in study.own_code if ":" in name}),
    )


def _draw_times(study: Study, times: str, seed: int) -> FloatArray:
    """Draw the times as the simulator does for this seed."""
    needs_data = times.partition(":")[0] in ORDERS
    train = split(study, seed).train if needs_data else None
    return drawn_times(study, times, Seeds(seed), train=train)


def _connect(lab: Lab, labs: Path) -> Lab:
    """Create the network, or find a free port of the loopback."""
    if lab.how == "namespaces":
        subnet = create_network(lab.names, lab.devices, lab.packet, labs)
        return replace(lab, host=str(server_address(subnet)))
    with socket.socket() as free:
        free.bind((LOOPBACK, 0))
        return replace(lab, port=free.getsockname()[1])


def _calibrate(
    devices: EmulatedDevices, study: Study, seed: int, say: Callable[[str], None]
) -> Calibrated:
    lab, wanted = devices.lab, np.array(devices.lab.wanted)
    tls = Certificates.read(devices.folder / CERTIFICATES)
    server = DeviceServer(lab.device_names, host=lab.host, port=lab.port, tls=tls)
    try:
        backend = DeviceBackend(
            server,
            model_of(study),
            Seeds(seed),
            deadline=DEADLINE * float(wanted.max()) + DEADLINE_MORE,
            least=1,
        )

        def set_rates(rates: FloatArray) -> None:
            devices.set_rates(rates)
            devices.wait(lambda: server.free, say)

        rates = rates_for(wanted, 4 * backend.initial().size)
        devices.start(rates)
        devices.wait(lambda: server.connected, say)
        backend.prepare(job_of(study, seed, lab.device_names))
        if lab.how == "namespaces":
            set_rates(rates)
        rng = Seeds(seed).stream("calibration")
        k = study.training.k
        return calibrate(backend, wanted, rates, set_rates, at_once=k, rng=rng, say=say)
    finally:
        server.close(goodbye=False)


def take_down(name: str, state: Path | None = None) -> list[str]:
    """Remove a lab's processes, links, namespaces, limits and files; return what was found.

    Everything is found by the lab's name, even after a crash. Nothing to remove is no error.
    """
    names = Names(name)
    found = remains_of(name, state)
    folder = lab_folder(name, state)
    # `bring_up` checks under this lock whether the lab still exists.
    with lock_folder(folder.parent) if folder.parent.is_dir() else nullcontext():
        stop(name)
        if shutil.which("ip") and may_make_networks():
            remove_network(names)
        remove_limits(names)
        forget(folder)
    if left := remains_of(name, state):
        raise InputError(
            f"lab '{name}' must be down, got left: {', '.join(left)}; give the same command again "
            "as the user who started it"
        )
    return found


def remains_of(name: str, state: Path | None = None) -> list[str]:
    """Return everything that exists of a lab."""
    names = Names(name)
    processes = [f"process {pid} ({device})" for device, pid in running_devices(name).items()]
    network = network_left(names) if shutil.which("ip") else []
    written = lab_folder(name, state) / FILE
    return processes + network + limits_left(names) + [str(written)] * written.exists()
