"""The commands `fedpace lab up`, `status` and `down`: devices on this machine."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedpace.checks import positive_count
from fedpace.cli import options, output
from fedpace.errors import InputError, TooFewClientsError

if TYPE_CHECKING:
    from fedpace.lab.calibration import Calibrated
    from fedpace.lab.register import Lab

NAME = typer.Option("--name", help="Name of the lab. Labs with other names are not touched.")
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
    from fedpace.data.cache import look_in
    from fedpace.lab import cpu, links
    from fedpace.lab.emulated import Limits
    from fedpace.lab.up import bring_up
    from fedpace.studies.experiment import check_at_hand, client_count
    from fedpace.studies.study import load_study

    study = load_study(setup, overrides or ())
    if devices not in (None, clients := client_count(study)):
        raise InputError(
            f"--devices must be one per client of {setup}, {clients}, got {devices}; "
            f"leave it out, or change the setup with --set data.clients={devices}"
        )
    if cpu_share is not None:
        cpu.check_share(cpu_share)
    limits = Limits(None if cores is None else cpu.parsed_cores(cores), cpu_share)
    look_in(folder)
    check_at_hand(study)
    if not paced and not links.may_make_networks():
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
    from fedpace.lab import launch, register
    from fedpace.lab.shown import status_line, status_table
    from fedpace.report.tables import print_tables

    names = register.known_labs(state) if name is None else [name]
    if not names:
        print("No lab is up. Start one with: fedpace lab up")
    for each in names:
        lab, living = register.read_lab(each, state), launch.running(each)
        print_tables(status_table(lab, living))
        print(status_line(lab, living))


def down_command(
    name: Annotated[str, NAME] = "proto", state: Annotated[Path | None, options.STATE] = None
) -> None:
    """Remove a lab: its processes, network, limits and records."""
    options.need_lab()
    from fedpace.lab.down import take_down

    found = take_down(name, state)
    gone = sum(each.startswith("process") for each in found)
    if found:
        print(f"Lab '{name}' is down: removed {gone} processes and {len(found) - gone} others.")
    else:
        print(f"Nothing to remove: there is no lab '{name}'.")


def print_calibration(lab: Lab, found: Calibrated) -> None:
    """Print what was asked against what was measured, and say what cannot be met."""
    from fedpace.lab.shown import calibration_line, calibration_table, calibration_warnings
    from fedpace.report.tables import print_tables

    print_tables(calibration_table(lab, found))
    print(calibration_line(lab, found))
    for warning in calibration_warnings(lab, found):
        output.say(warning)
