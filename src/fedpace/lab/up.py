"""Bring a lab up: network, certificates, devices, and rates that give the times asked for."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedpace.checks import FloatArray
from fedpace.errors import InputError
from fedpace.files import locked, made_folder
from fedpace.lab.calibration import Calibrated, calibrate, packet_size, rates_for
from fedpace.lab.down import left_of, take_down
from fedpace.lab.emulated import CERTIFICATES, EmulatedDevices, Limits
from fedpace.lab.launch import running
from fedpace.lab.links import may_make_networks, need_iproute, raise_network, server_address
from fedpace.lab.register import FILE, Lab, claim, lab_folder, taken, write_lab
from fedpace.network.certs import make_certificates
from fedpace.network.device_server import DeviceServer
from fedpace.network.devices import Devices
from fedpace.network.shard import job_of
from fedpace.network.tls import Certificates
from fedpace.seeds import Seeds
from fedpace.studies.experiment import drawn_times, model_of, split
from fedpace.studies.study import Study
from fedpace.times.distributions import ORDERS

PORT = 7100
LOOPBACK = "127.0.0.1"
# A round in which a device does not answer: a multiple of the longest time, and seconds more.
DEADLINE, DEADLINE_MORE = 5.0, 30.0


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
    """Bring a lab up for a study, one device per client; what fails is taken down again.

    Parameters
    ----------
    study : Study
        Whose model and local steps the devices are measured with.
    name : str
        The lab's name; two labs with different names do not touch each other.
    times, time_scale : str, float > 0
        The devices' round times, see `fedpace.times.distributions.usual_times`, and what all of
        them are multiplied with.
    seed : int
        Of the stream that times are drawn from, as in a simulated run of this seed.
    paced : bool
        Let devices keep their rates themselves, on the loopback; always so without root.
    limits, state : Limits, Path, optional
        Of the devices' computation, and where labs are written down.
    say : callable of a str
        Told what is done.
    """
    if left := left_of(name, state):
        raise taken(name, left[0])
    lab = _planned(study, name, _asked(study, times, seed), time_scale, paced=paced)
    folder = lab_folder(name, state)
    made_folder(folder, "--state", mode=0o700)  # it holds private keys
    claim(lab, folder)  # first, so that the folder is known as this lab's
    try:
        lab = _connected(lab, folder.parent)
        write_lab(lab, folder)
        make_certificates(folder / CERTIFICATES, lab.device_names, [lab.host, "localhost"])
        found = _calibrated(EmulatedDevices(lab, folder, limits or Limits()), study, seed, say)
    except BaseException:
        take_down(name, state)
        raise
    lab = replace(lab, rates=found.rates.tolist(), measured=found.measured.seconds.tolist())
    with locked(folder.parent):  # `take_down` is through, or has not begun
        if not (folder / FILE).exists() or not running(name):
            raise InputError(
                f"lab '{name}' must stay while it is brought up, got taken down meanwhile; give "
                "the same command again"
            )
        write_lab(lab, folder)
    return lab, found


def _planned(study: Study, name: str, asked: FloatArray, time_scale: float, *, paced: bool) -> Lab:
    """Return the lab as it is to be; say what is missing for it."""
    paced = paced or not may_make_networks()
    if not paced:
        need_iproute()
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
    )


def _asked(study: Study, times: str, seed: int) -> FloatArray:
    """Draw the times as the simulator does for this seed."""
    needs_data = times.partition(":")[0] in ORDERS
    train = split(study, seed).train if needs_data else None
    return drawn_times(study, times, Seeds(seed), train=train)


def _connected(lab: Lab, labs: Path) -> Lab:
    """Make the network, or find a free port where there is to be none."""
    if lab.how == "namespaces":
        subnet = raise_network(lab.names, lab.devices, lab.packet, labs)
        return replace(lab, host=str(server_address(subnet)))
    with socket.socket() as free:
        free.bind((LOOPBACK, 0))
        return replace(lab, port=free.getsockname()[1])


def _calibrated(
    devices: EmulatedDevices, study: Study, seed: int, say: Callable[[str], None]
) -> Calibrated:
    """Start the devices, and measure them with real rounds of the study."""
    lab, wanted = devices.lab, np.array(devices.lab.wanted)
    tls = Certificates.read(devices.folder / CERTIFICATES)
    server = DeviceServer(lab.device_names, host=lab.host, port=lab.port, tls=tls)
    try:
        backend = Devices(
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
