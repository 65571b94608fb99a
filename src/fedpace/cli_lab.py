"""The commands `fedpace lab`: devices on one machine or on many, and studies that run on them."""

from __future__ import annotations

import logging
import math
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from fedpace.checks import positive_count
from fedpace.cli_data import FOLDER, OVERRIDES, say
from fedpace.cli_lab_run import need_lab, run_command
from fedpace.errors import InputError, TooFewClientsError, listed

if TYPE_CHECKING:
    from fedpace.lab.calibration import Calibrated
    from fedpace.lab.record import Lab

lab_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Run studies on real processes, sockets and clocks: a lab of devices on this machine, "
    "or devices anywhere.",
    epilog="Example:  fedpace lab up --devices 40 --times uniform:0.187:7.159 --time-scale 0.1",
)
lab_app.command(
    "run",
    epilog="Example:  fedpace lab run prototype --schemes uniform,optimal-mean --out runs",
)(run_command)

NAME = typer.Option("--name", help="The lab's name; labs of different names do not touch.")
STATE = typer.Option(
    "--state",
    metavar="DIR",
    help="Where labs are written down.",
    show_default="the user's state folder",
)
# Above this median error a lab does not do what was asked for.
MEDIAN_ERROR = 0.1


@lab_app.command(
    "up",
    epilog="Example:  fedpace lab up --devices 40 --times uniform:0.187:7.159 --time-scale 0.1",
)
def up_command(
    devices: Annotated[
        int | None, typer.Option(help="How many.", show_default="one per client of the setup")
    ] = None,
    times: Annotated[
        str | None,
        typer.Option(
            help="Round times in seconds: uniform:LOW:HIGH, exponential:MEAN, file:PATH, …",
            show_default="those of the setup",
        ),
    ] = None,
    time_scale: Annotated[
        float, typer.Option(help="Multiply all times, so that a study fits into an afternoon.")
    ] = 1.0,
    name: Annotated[str, NAME] = "proto",
    setup: Annotated[
        str, typer.Option(help="The setup whose model and local steps devices are measured with.")
    ] = "prototype",
    overrides: Annotated[list[str] | None, OVERRIDES] = None,
    seed: Annotated[
        int, typer.Option(help="Draws the times as a simulated run of this seed does.")
    ] = 0,
    paced: Annotated[
        bool,
        typer.Option(
            "--paced",
            help="Let devices keep their rates themselves, without namespaces; always so without "
            "root.",
        ),
    ] = False,
    cores: Annotated[
        str | None, typer.Option(help="Keep devices on these cores, in turn: 0-1 or 0,2.")
    ] = None,
    cpu_share: Annotated[
        float | None, typer.Option(help="Let each device compute with this share of a core.")
    ] = None,
    state: Annotated[Path | None, STATE] = None,
    folder: Annotated[Path | None, FOLDER] = None,
) -> None:
    """Start a lab: a process per device, each behind a link that gives it the time asked for."""
    need_lab()
    from fedpace.data.cache import look_in
    from fedpace.lab.cpu import check_share, parsed_cores
    from fedpace.lab.emulated import Limits
    from fedpace.lab.iproute import may_make_networks
    from fedpace.lab.up import bring_up
    from fedpace.studies.experiment import check_at_hand, client_count
    from fedpace.studies.study import load_study

    if not 0 < time_scale < math.inf:
        raise InputError(f"--time-scale must be positive, got {time_scale:g}; write 0.1")
    if seed < 0:
        raise InputError(f"--seed must be at least 0, got {seed}; give 0, 1, 2, …")
    study = load_study(setup, overrides or ())
    if devices is not None and positive_count("--devices", devices) != client_count(study):
        raise InputError(
            f"--devices must be one per client of {setup}, {client_count(study)}, got {devices}; "
            f"leave it out, or change the setup with --set data.clients={devices}"
        )
    if cpu_share is not None:
        check_share(cpu_share)
    limits = Limits(None if cores is None else parsed_cores(cores), cpu_share)
    look_in(folder)
    check_at_hand(study)
    if not paced and not may_make_networks():
        say("without root: devices keep their rates themselves, on the loopback interface")
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
            say=say,
        )
    except TooFewClientsError as error:
        raise InputError(f"the lab's devices must stay, got: {error}") from None
    _print_calibration(lab, found)
    more = [part for each in overrides or () for part in ("--set", each)]
    more += [] if state is None else ["--state", str(state)]
    print(f"Next: {shlex.join(['fedpace', 'lab', 'run', setup, '--name', name, *more])} --out runs")


@lab_app.command("status", epilog="Example:  fedpace lab status --name proto")
def status_command(
    name: Annotated[
        str | None, typer.Option("--name", help="The lab.", show_default="all labs")
    ] = None,
    state: Annotated[Path | None, STATE] = None,
) -> None:
    """Show which labs are up, which of their devices live, and how long their rounds take."""
    need_lab()
    from fedpace.lab.record import known_labs, read_lab

    names = known_labs(state) if name is None else [name]
    if not names:
        print("No lab is up. Start one with: fedpace lab up")
    for each in names:
        _print_status(read_lab(each, state))


@lab_app.command("down", epilog="Example:  fedpace lab down --name proto")
def down_command(
    name: Annotated[str, NAME] = "proto", state: Annotated[Path | None, STATE] = None
) -> None:
    """Remove a lab: processes, namespaces, links, rates, and what was written down of it."""
    need_lab()
    from fedpace.lab.down import take_down

    found = take_down(name, state)
    if not found:
        print(f"There is nothing of a lab '{name}'.")
        return
    devices = sum(each.startswith("process") for each in found)
    print(f"Lab '{name}' is down: {devices} processes and {len(found) - devices} other things gone")


@lab_app.command(
    "certs",
    epilog="Example:  fedpace lab certs --out certs --devices 40 --server 192.168.1.10",
)
def certs_command(
    out: Annotated[Path, typer.Option(help="The directory for the files; devices can be added.")],
    devices: Annotated[
        str, typer.Option(help="Names with commas, or a number: device-00, device-01, …")
    ],
    server: Annotated[
        str, typer.Option(help="The names and addresses, with commas, that devices call it by.")
    ],
    days: Annotated[int, typer.Option(help="How long they are valid.")] = 825,
) -> None:
    """Make an authority, and certificates of the server and of every device.

    Certificates that are there stay, but for those that expire within 30 days, that do not hold
    for the --server, or that cannot be used.
    """
    from fedpace.network.certs import AUTHORITY, make_certificates
    from fedpace.network.join import parsed_devices

    positive_count("--days", days)
    names = parsed_devices(devices)
    hosts = [host.strip() for host in server.split(",") if host.strip()]
    if not hosts:
        raise InputError(f"--server must be a name or an address, got '{server}'; see --help")
    signed = make_certificates(out, names, hosts, days=days)
    count = len(signed.keys() - {AUTHORITY})
    print(f"{out}: {count} certificates made, {len(names) + 1 - count} were there")
    for name, why in signed.items():
        if why:
            print(f"{name}: made anew, because {why}; bring it to where it is used")
    print(
        "Give each device ca.pem and its own NAME.pem and NAME-key.pem, and the server ca.pem, "
        "server.pem and server-key.pem; ca-key.pem stays with you."
    )


@lab_app.command(
    "join",
    epilog="Example:  fedpace lab join 192.168.1.10:7100 --name device-07 --certs certs",
)
def join_command(
    address: Annotated[str, typer.Argument(help="HOST:PORT of the server.", show_default=False)],
    name: Annotated[str, typer.Option(help="This device's name, as in its certificate.")],
    certs: Annotated[
        Path | None,
        typer.Option(help="The directory of ca.pem and this device's NAME.pem and NAME-key.pem."),
    ] = None,
    pace: Annotated[
        float | None, typer.Option(help="Keep to so many bytes per second, down and up.")
    ] = None,
    patience: Annotated[
        float | None,
        typer.Option(help="Seconds without a server until giving up.", show_default="never"),
    ] = None,
    shards: Annotated[Path | None, typer.Option(hidden=True)] = None,
    folder: Annotated[Path | None, FOLDER] = None,
) -> None:
    """Be a device: train on what is here when the server asks, and keep the data to yourself."""
    need_lab()
    from fedpace.data.cache import look_in
    from fedpace.network.join import join

    for option, value in (("--pace", pace), ("--patience", patience)):
        if value is not None and not 0 < value < math.inf:
            raise InputError(f"{option} must be positive, got {value:g}; leave it out")
    look_in(folder)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    join(address, name, certs=certs, shards=shards, pace=pace, patience=patience)


def _print_calibration(lab: Lab, found: Calibrated) -> None:
    """Print what was asked against what was measured, and what cannot be met."""
    import numpy as np

    from fedpace.lab.calibration import errors

    computing = found.measured.computing
    _print_table({**_times(lab), "computing\nseconds": [f"{each:.4f}" for each in computing]})
    off = errors(np.array(lab.wanted), found.measured.seconds)
    how = "tc in namespaces" if lab.how == "namespaces" else "pacing inside the devices"
    median = float(np.median(off)) if off.size else math.nan
    compared = f"median error {100 * median:.1f} %, largest {100 * off.max(initial=0.0):.1f} %"
    print(
        f"Lab '{lab.name}' is up: {lab.devices} devices, {how}, server {lab.host}:{lab.port}, "
        f"time scale {lab.time_scale:g}. Asked against measured: "
        f"{compared if off.size else 'no device answered'}."
    )
    pairs = zip(lab.device_names, computing, lab.wanted, strict=True)
    if slow := [device for device, computes, wanted in pairs if computes >= wanted]:
        say(
            f"these compute for longer than their whole time: {listed(slow)}; "
            "a larger --time-scale gives them room"
        )
    if silent := [
        device
        for device, took in zip(lab.device_names, lab.measured, strict=True)
        if math.isnan(took)
    ]:
        say(f"these did not answer: {listed(silent)}; see the logs in the lab's folder")
    if median > MEDIAN_ERROR:
        say("times are further off than 10 %: is the machine busy with something else?")


def _print_status(lab: Lab) -> None:
    from fedpace.lab.launch import memory, running

    living = running(lab.name)
    numbers = [living.get(device) for device in lab.device_names]
    held = ["–" if pid is None else f"{memory(pid) / 1e6:.0f}" for pid in numbers]
    processes = ["gone" if pid is None else str(pid) for pid in numbers]
    _print_table({**_times(lab), "process": processes, "memory\nMB": held})
    print(
        f"Lab '{lab.name}': {len(living)} of {lab.devices} devices live, {lab.how}, server "
        f"{lab.host}:{lab.port}, time scale {lab.time_scale:g}"
    )


def _times(lab: Lab) -> dict[str, list[str]]:
    """Return the columns of what was asked of each device and what was measured."""
    unknown = ["–"] * lab.devices
    rates = [f"{rate / 1000:.1f}" for rate in lab.rates]
    measured = [f"{seconds:.4f}" for seconds in lab.measured]
    pairs = zip(lab.measured, lab.wanted, strict=False)
    return {
        "device": lab.device_names,
        "asked\nseconds": [f"{seconds:.4f}" for seconds in lab.wanted],
        "measured\nseconds": measured or unknown,
        "error\n%": [f"{100 * (took / asked - 1):+.1f}" for took, asked in pairs] or unknown,
        "rate\nkB/s": rates or unknown,
    }


def _print_table(columns: dict[str, list[str]]) -> None:
    table = Table(box=box.SIMPLE_HEAD)
    for title in columns:
        table.add_column(title, justify="left" if title == "device" else "right")
    for row in zip(*columns.values(), strict=True):
        table.add_row(*row)
    Console().print(table)
