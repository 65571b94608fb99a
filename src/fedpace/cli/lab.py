"""The commands `fedpace lab up`, `status` and `down` here; `certs` and `join` anywhere."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.table import Table

from fedpace.checks import positive_count
from fedpace.cli import options, output
from fedpace.errors import InputError, TooFewClientsError, listed

if TYPE_CHECKING:
    from fedpace.devices.lab.lab import Calibrated
    from fedpace.devices.lab.register import Lab

import logging

NAME = typer.Option("--name", help="Name of the lab. Labs with other names are not touched.")
# Above this median error a lab does not keep the times asked for.
MEDIAN_ERROR = 0.1
UNKNOWN = "–"

ONE = typer.Option("--name", help="Name of the lab.", show_default="all labs")
DEVICES = options.checked(
    "Number of devices.", positive_count, default="one per client of the setup"
)
TIMES = typer.Option(
    help="Round times in seconds: uniform:LOW:HIGH, exponential:MEAN, file:PATH, trace:fedscale, …",
    show_default="those of the setup",
)
SCALE = options.checked("Multiply all times by this; 0.1 is ten times faster.", options.positive)
SETUP = typer.Option(help="Setup with the model and local steps to measure devices with.")
SEED = options.checked("Seed of the times, as in a simulated run.", options.natural)
PACED = typer.Option(
    "--paced",
    help="Let devices limit their own speed, without network namespaces; without root this is "
    "always so.",
)
CORES = typer.Option(help="Cores for the devices, in turn: 0-1 or 0,2.", show_default="all")
SHARE = typer.Option(help="Share of a core for each device, from 0.1.", show_default="no limit")


def up_command(
    devices: Annotated[int | None, DEVICES] = None,
    times: Annotated[str | None, TIMES] = None,
    time_scale: Annotated[float, SCALE] = 1.0,
    name: Annotated[str, NAME] = "proto",
    setup: Annotated[str, SETUP] = "prototype",
    overrides: Annotated[list[str] | None, options.OVERRIDES] = None,
    seed: Annotated[int, SEED] = 0,
    paced: Annotated[bool, PACED] = False,
    cores: Annotated[str | None, CORES] = None,
    cpu_share: Annotated[float | None, SHARE] = None,
    state: Annotated[Path | None, options.STATE] = None,
    folder: Annotated[Path | None, options.FOLDER] = None,
) -> None:
    """Start a lab: one process per device, each behind a link as slow as you ask for."""
    options.need_lab()
    from fedpace.data.datasets import look_in
    from fedpace.devices.lab.lab import Limits, bring_up
    from fedpace.devices.lab.launch import check_share, may_make_networks, parse_cores
    from fedpace.studies.build import check_at_hand, client_count
    from fedpace.studies.study import load_study

    study = load_study(setup, overrides or ())
    options.no_shared_link(study.devices.link)
    if devices not in (None, clients := client_count(study)):
        raise InputError(
            f"--devices must be one per client of {setup}, {clients}, got {devices}; "
            f"leave it out, or change the setup with --set data.clients={devices}"
        )
    if cpu_share is not None:
        check_share(cpu_share)
    limits = Limits(None if cores is None else parse_cores(cores), cpu_share)
    look_in(folder)
    check_at_hand(study)
    if not paced and not may_make_networks():
        output.say("without root: devices limit their own speed, on the loopback interface")
    try:
        lab, found = bring_up(
            study,
            name,
            times=times or study.devices.times,
            time_scale=time_scale,
            seed=seed,
            paced=paced,
            limits=limits,
            state=state,
            say=output.say,
        )
    except TooFewClientsError as error:
        raise InputError(f"the lab's devices must stay, got: {error}") from None
    print_calibration(lab, found)
    more = [part for each in overrides or () for part in ("--set", each)]
    more += [] if state is None else ["--state", str(state)]
    print(f"Next: {shlex.join(['fedpace', 'lab', 'run', setup, '--name', name, *more])} --out runs")


def status_command(
    name: Annotated[str | None, ONE] = None, state: Annotated[Path | None, options.STATE] = None
) -> None:
    """Show the labs: which devices live, and how long their rounds take."""
    options.need_lab()
    from fedpace.devices.lab.launch import memory, running_devices
    from fedpace.devices.lab.register import known_labs, read_lab
    from fedpace.report.tables import print_tables

    names = known_labs(state) if name is None else [name]
    if not names:
        print("No lab is up. Start one with: fedpace lab up")
    for each in names:
        lab, running = read_lab(each, state), running_devices(each)
        numbers = [running.get(device) for device in lab.device_names]
        held = [UNKNOWN if pid is None else f"{memory(pid) / 1e6:.0f}" for pid in numbers]
        processes = ["gone" if pid is None else str(pid) for pid in numbers]
        print_tables(_table({**_times(lab), "process": processes, "memory\nMB": held}))
        alive = f"{len(running)} of {lab.devices} devices live"
        print(f"Lab '{lab.name}': {alive}, {lab.how}, {_place(lab)}")


def down_command(
    name: Annotated[str, NAME] = "proto", state: Annotated[Path | None, options.STATE] = None
) -> None:
    """Remove a lab: its processes, network, limits and records."""
    options.need_lab()
    from fedpace.devices.lab.lab import take_down

    found = take_down(name, state)
    gone = sum(each.startswith("process") for each in found)
    if found:
        print(f"Lab '{name}' is down: removed {gone} processes and {len(found) - gone} others.")
    else:
        print(f"Nothing to remove: there is no lab '{name}'.")


def print_calibration(lab: Lab, found: Calibrated) -> None:
    """Print the round times asked for and measured, and warn about those that cannot be met."""
    import numpy as np

    from fedpace.devices.lab.lab import errors
    from fedpace.report.tables import print_tables

    measured, names = found.measured, np.array(lab.device_names)
    computing = [f"{each:.4f}" for each in measured.computing]
    print_tables(_table({**_times(lab), "computing\nseconds": computing}))
    off = errors(np.array(lab.wanted), measured.seconds)
    compared = "no device answered"
    if off.size:
        compared = f"median error {100 * np.median(off):.1f} %, largest {100 * off.max():.1f} %"
    how = "tc in namespaces" if lab.how == "namespaces" else "pacing inside the devices"
    print(
        f"Lab '{lab.name}' is up: {lab.devices} devices, {how}, {_place(lab)}. "
        f"Asked against measured: {compared}."
    )
    if slow := names[measured.computing >= lab.wanted].tolist():
        output.say(
            f"these devices compute for longer than the time asked for: {listed(slow)}; "
            "give a larger --time-scale"
        )
    if silent := names[np.isnan(lab.measured)].tolist():
        output.say(f"these devices did not answer: {listed(silent)}; see the lab's logs")
    if off.size and np.median(off) > MEDIAN_ERROR:
        output.say("the times differ by more than 10 %: is the machine busy with something else?")


def _place(lab: Lab) -> str:
    return f"server {lab.host}:{lab.port}, time scale {lab.time_scale:g}"


def _times(lab: Lab) -> dict[str, list[str]]:
    """Return the columns of a lab's table that both commands show."""
    unknown = [UNKNOWN] * lab.devices
    pairs = zip(lab.measured, lab.wanted, strict=False)
    return {
        "device": lab.device_names,
        "asked\nseconds": [f"{seconds:.4f}" for seconds in lab.wanted],
        "measured\nseconds": [f"{seconds:.4f}" for seconds in lab.measured] or unknown,
        "error\n%": [f"{100 * (took / asked - 1):+.1f}" for took, asked in pairs] or unknown,
        "rate\nkB/s": [f"{rate / 1000:.1f}" for rate in lab.rates] or unknown,
    }


def _table(columns: dict[str, list[str]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    for title in columns:
        table.add_column(title, justify="left" if title == "device" else "right")
    for row in zip(*columns.values(), strict=True):
        table.add_row(*row)
    return table


OUT = typer.Option(help="Directory for the files. Give the same one again to add devices.")
DEVICE_NAMES = typer.Option(
    help="Number of devices (device-00, device-01, …), or names separated by commas."
)
SERVER = typer.Option(help="Names and addresses of the server, separated by commas.")
DAYS = options.checked("Days until the certificates expire.", positive_count)
CERTS = typer.Option(help="Directory with ca.pem and this device's NAME.pem and NAME-key.pem.")
PACE = options.checked(
    "Most bytes per second, in each direction.", options.positive, default="no limit"
)
PATIENCE = options.checked(
    "Seconds without a server before giving up.", options.positive, default="never"
)
ALLOW = typer.Option(
    metavar="PATH",
    help="Python file or module that the server's study may use here, as data or as a model. "
    "Repeat it for more. Without it, the server can run no Python code of its choice.",
    show_default="none",
)


def certs_command(
    out: Annotated[Path, OUT],
    devices: Annotated[str, DEVICE_NAMES],
    server: Annotated[str, SERVER],
    days: Annotated[int, DAYS] = 825,
) -> None:
    """Make certificates for the server and for every device.

    Existing certificates stay, except those that expire within 30 days, that are for another
    --server, or that cannot be used.
    """
    options.need("lab", "cryptography")
    from fedpace.devices.certificates import AUTHORITY, make_certificates
    from fedpace.devices.device import parse_devices

    names = parse_devices(devices)
    hosts = [host.strip() for host in server.split(",") if host.strip()]
    if not hosts:
        example = "write 192.168.1.10"
        raise InputError(f"--server must be a name or an address, got '{server}'; {example}")
    signed = make_certificates(out, names, hosts, days=days)
    made = len(signed.keys() - {AUTHORITY})
    print(f"{out}: {made} certificates made, {len(names) + 1 - made} already existed")
    for name, why in signed.items():
        if why:
            print(f"{name}: made again, because {why}; copy it to where it is used")
    print(
        "Give each device ca.pem and its own NAME.pem and NAME-key.pem, and the server ca.pem, "
        "server.pem and server-key.pem; ca-key.pem stays with you."
    )


def join_command(
    address: Annotated[str, typer.Argument(help="HOST:PORT of the server.")],
    name: Annotated[str, typer.Option(help="Name of this device, as in its certificate.")],
    certs: Annotated[Path | None, CERTS] = None,
    pace: Annotated[float | None, PACE] = None,
    patience: Annotated[float | None, PATIENCE] = None,
    allow: Annotated[list[str] | None, ALLOW] = None,
    shards: Annotated[Path | None, typer.Option(hidden=True)] = None,
    folder: Annotated[Path | None, options.FOLDER] = None,
) -> None:
    """Act as a device: train on the data here when the server asks. The data stay here."""
    options.need_lab()
    from fedpace.data.datasets import look_in
    from fedpace.devices.device import join

    look_in(folder)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    join(
        address,
        name,
        certs=certs,
        shards=shards,
        pace=pace,
        patience=patience,
        allow=allow or (),
    )
