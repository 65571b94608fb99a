"""Bring a lab up, with rates that give the round times asked for, and take it down."""

from __future__ import annotations

import shutil
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedpace.checks import FloatArray
from fedpace.devices.backend import DeviceBackend
from fedpace.devices.certificates import make_certificates
from fedpace.devices.lab.calibration import Calibrated, calibrate, packet_size, rates_for, shape
from fedpace.devices.lab.launch import (
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
    start,
    stop,
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
from fedpace.devices.server import DeviceServer
from fedpace.devices.shard import job_of
from fedpace.devices.wire import Certificates
from fedpace.errors import InputError
from fedpace.files import locked, made_folder
from fedpace.seeds import Seeds
from fedpace.studies.build import drawn_times, model_of, split
from fedpace.studies.study import Study
from fedpace.times.distributions import ORDERS

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
    see `fedpace.times.distributions.usual_times`, drawn with `seed` as in a simulated run. With
    `paced`, and always without root, devices limit their own rates on the loopback.
    """
    if left := remains_of(name, state):
        raise name_taken_error(name, left[0])
    lab = _plan(study, name, _draw_times(study, times, seed), time_scale, paced=paced)
    folder = lab_folder(name, state)
    made_folder(folder, "--state", mode=0o700)  # it holds private keys
    claim(lab, folder)  # first, so that the folder is known as this lab's
    try:
        lab = _connect(lab, folder.parent)
        write_lab(lab, folder)
        make_certificates(folder / CERTIFICATES, lab.device_names, [lab.host, "localhost"])
        found = _calibrate(EmulatedDevices(lab, folder, limits or Limits()), study, seed, say)
    except BaseException:
        take_down(name, state)
        raise
    lab = replace(lab, rates=found.rates.tolist(), measured=found.measured.seconds.tolist())
    with locked(folder.parent):  # `take_down` has finished, or has not begun
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
    with locked(folder.parent) if folder.parent.is_dir() else nullcontext():
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
