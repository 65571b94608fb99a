"""The command `fedpace lab run`: a study on the devices of a lab, or on any that join."""

from __future__ import annotations

import math
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from fedpace.checks import positive_count
from fedpace.cli_data import OVERRIDES, SETUP, say
from fedpace.cli_run import (
    CHOSEN,
    COUNT,
    FAILED,
    FIRST,
    INTERRUPTED,
    OUT,
    chosen_seeds,
    interruption,
    named_schemes,
    print_runs,
    write_study,
)
from fedpace.errors import InputError, MissingExtraError, TooFewClientsError

if TYPE_CHECKING:
    from fedpace.network.device_server import DeviceServer
    from fedpace.network.measure import RunProgress
    from fedpace.rounds.rows import Row
    from fedpace.studies.processes import Job
    from fedpace.studies.study import Study

# Without a terminal a line is printed so many seconds after the last.
EVERY = 30.0


def run_command(
    setup: Annotated[str, SETUP],
    out: Annotated[Path, OUT],
    schemes: Annotated[str, CHOSEN] = "all",
    seeds: Annotated[int, COUNT] = 1,
    first_seed: Annotated[int, FIRST] = 0,
    overrides: Annotated[list[str] | None, OVERRIDES] = None,
    deadline: Annotated[
        float | None,
        typer.Option(help="Seconds that a round waits for replies.", show_default="learned"),
    ] = None,
    evaluate_every: Annotated[
        int | None,
        typer.Option(
            help="Evaluate the whole model in every so many rounds; in between the loss is "
            "estimated from the drawn clients' own. 0: never.",
            show_default="1, or the setup's",
        ),
    ] = None,
    patience: Annotated[
        float, typer.Option(help="Seconds to wait while too few devices are there.")
    ] = 600.0,
    least: Annotated[
        int | None,
        typer.Option(
            help="Devices that must be there for training to go on.", show_default="half of them"
        ),
    ] = None,
    name: Annotated[str, typer.Option(help="The lab to run on.")] = "proto",
    state: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where labs are written down.")
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(help="Instead of a lab: listen on HOST:PORT for devices that join by hand."),
    ] = None,
    devices: Annotated[
        str | None,
        typer.Option(help="With --listen: their number, or their names with commas."),
    ] = None,
    certs: Annotated[
        Path | None,
        typer.Option(help="With --listen: the directory of ca.pem, server.pem, server-key.pem."),
    ] = None,
    goodbye: Annotated[
        bool,
        typer.Option("--goodbye", help="Let the devices end when all runs are done, not before."),
    ] = False,
) -> None:
    """Run a study on devices, and measure; interrupted, the same command goes on."""
    need_lab()
    from fedpace.network.measure import Waiting, jobs_of, run_on_devices, write_times
    from fedpace.studies.store import Store

    place = _lab(name, state) if listen is None else _listening(listen, devices, certs)
    study = _study(setup, overrides or [], place, deadline, evaluate_every)
    names, numbers = named_schemes(schemes), chosen_seeds(seeds, first_seed)
    waiting = Waiting(_checked_least(least, place), _positive("--patience", patience))
    jobs = jobs_of(study, names, numbers)
    write_study(out, study, names, numbers)
    server = _server(place)
    done = False
    try:
        with _shown(study) as (progress, beside):
            run_on_devices(study, jobs, out, server, waiting=waiting, progress=progress, say=beside)
        done = True
    except KeyboardInterrupt:
        say(interruption(Store(out), study, jobs))
        raise typer.Exit(INTERRUPTED) from None
    except TooFewClientsError as error:
        say(str(error))
        say(interruption(Store(out), study, jobs))
        raise typer.Exit(FAILED) from None
    finally:
        server.close(goodbye=goodbye and done)  # the same command may go on with the devices
    _say_refusals(server)
    print_runs(Store(out), study, jobs)
    times = write_times(study, jobs, out, len(place.devices))
    typer.echo(f"Written: {times}. Next: fedpace report {shlex.quote(str(out))}")


class _Place(NamedTuple):
    """Where devices are met, and how long one measured second stands for."""

    host: str
    port: int
    devices: list[str]
    certs: Path | None
    how: str
    time_scale: float = 1.0
    setup: str | None = None


def _lab(name: str, state: Path | None) -> _Place:
    from fedpace.lab.emulated import CERTIFICATES
    from fedpace.lab.record import lab_folder, read_lab

    lab = read_lab(name, state)
    certs = lab_folder(name, state) / CERTIFICATES
    return _Place(lab.host, lab.port, lab.device_names, certs, lab.how, lab.time_scale, lab.setup)


def _listening(listen: str, devices: str | None, certs: Path | None) -> _Place:
    from fedpace.network.join import parsed_address, parsed_devices

    if devices is None:
        raise InputError("--listen needs --devices, got none; write --devices 40, or their names")
    return _Place(*parsed_address(listen), parsed_devices(devices), certs, "devices")


def _study(
    setup: str,
    overrides: list[str],
    place: _Place,
    deadline: float | None,
    evaluate_every: int | None,
) -> Study:
    """Load the study as it is measured here."""
    from fedpace.studies.experiment import client_count
    from fedpace.studies.study import load_study

    network = [f"network.how={place.how}", f"network.time_scale={place.time_scale!r}"]
    if deadline is not None:
        network.append(f"network.deadline={_positive('--deadline', deadline)!r}")
    if evaluate_every is not None:
        network.append(f"network.evaluate_every={evaluate_every}")
    study = load_study(setup, [*overrides, *network])
    if client_count(study) != len(place.devices):
        raise InputError(
            f"{setup}: must have one client per device, got {client_count(study)} clients for "
            f"{len(place.devices)} devices; add --set data.clients={len(place.devices)}"
        )
    if place.setup not in (None, study.name):
        say(f"the lab's times were measured with {place.setup}; with {study.name} they may differ")
    return study


def _server(place: _Place) -> DeviceServer:
    from fedpace.network.device_server import DeviceServer
    from fedpace.network.tls import server_context

    tls = None if place.certs is None else server_context(place.certs)
    return DeviceServer(place.devices, host=place.host, port=place.port, tls=tls)


def _checked_least(least: int | None, place: _Place) -> int | None:
    if least is None:
        return None
    return positive_count("--least", least, "lower it", len(place.devices))


def _positive(option: str, value: float) -> float:
    if not 0 < value < math.inf:
        raise InputError(f"{option} must be positive, got {value:g}; leave it out")
    return value


def _say_refusals(server: DeviceServer) -> None:
    for (client, reason), count in sorted(server.refusals.items()):
        say(f"{server.names[client]}: {count} times refused: {reason}")


@contextmanager
def _shown(
    study: Study,
) -> Iterator[tuple[Callable[[RunProgress], None], Callable[[str], None]]]:
    """Return how to show the standing and how to say something beside it, on standard error."""
    console = Console(stderr=True)
    rounds = _Rounds(study)
    if not console.is_terminal:
        yield rounds.print_sometimes, say
        return
    with Live(console=console, refresh_per_second=4, transient=True) as live:
        yield (
            lambda now: live.update(Text(rounds.line(now))),
            lambda message: live.console.print(f"fedpace: {message}", soft_wrap=True, markup=False),
        )


class _Rounds:
    """Describe how far a run is, and how long it may go on."""

    def __init__(self, study: Study) -> None:
        from fedpace.studies.experiment import stopping

        self._stop = stopping(study)
        self._job: Job | None = None
        self._first: tuple[float, float] = (0.0, 0.0)
        self._printed = -math.inf

    def line(self, now: RunProgress) -> str:
        """Return one line."""
        run = f"run {now.done + 1} of {now.total}, {now.job}"
        row = now.row
        if row is None:
            return f"{run}: waiting for devices"
        text = (
            f"{run}: {row.phase} round {row.round}, {row.seconds:.1f} s measured, "
            f"loss {row.loss:.4f}"
        )
        return f"{text}{self._left(now.job, row)}"

    def print_sometimes(self, now: RunProgress) -> None:
        """Print a line when a run begins, and again after a while."""
        if now.row is None or time.monotonic() - self._printed > EVERY:
            self._printed = time.monotonic()
            print(self.line(now), file=sys.stderr, flush=True)
        else:
            self._left(now.job, now.row)

    def _left(self, job: Job, row: Row) -> str:
        """Say how long it may take until the run's last round or second."""
        done = self._share(row)
        if job != self._job:
            self._job, self._first = job, (time.monotonic(), done)
        begin, begun = self._first
        if done <= begun:
            return ""
        left = (time.monotonic() - begin) * (1 - done) / (done - begun)
        return f", at most {timedelta(seconds=round(max(left, 0)))} left"

    def _share(self, row: Row) -> float:
        stop = self._stop
        rounds = 0.0 if stop.rounds is None or row.phase != "train" else row.round / stop.rounds
        return max(rounds, 0.0 if stop.seconds is None else row.seconds / stop.seconds)


def need_lab() -> None:
    """Say what a lab needs that is not here."""
    if not sys.platform.startswith("linux"):
        raise InputError(
            f"a lab must be on Linux, got {sys.platform}; run it there, or join devices by hand"
        )
    if not all(map(find_spec, ("pydantic", "threadpoolctl", "cryptography"))):
        raise MissingExtraError(
            "the lab needs Pydantic, threadpoolctl and cryptography; install them with: "
            "pip install 'fedpace[lab]'"
        )
