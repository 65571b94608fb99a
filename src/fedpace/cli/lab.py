"""The commands `fedpace lab up`, `status` and `down`: devices on this machine."""

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
    from fedpace.devices.lab.calibration import Calibrated
    from fedpace.devices.lab.register import Lab

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
    from fedpace.devices.lab.launch import check_share, parse_cores
    from fedpace.devices.lab.links import may_make_networks
    from fedpace.studies.build import check_at_hand, client_count
    from fedpace.studies.study import load_study

    study = load_study(setup, overrides or ())
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

    from fedpace.devices.lab.calibration import errors
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
