"""The command `fedpace lab run`: a study on the devices of a lab, or on any that join."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from fedpace.checks import positive_count
from fedpace.cli import options, output
from fedpace.errors import InputError
from fedpace.samplers.build import resolve
from fedpace.training.callbacks import Remaining, duration
from fedpace.training.share_limit import LARGEST_SHARE, check_share

if TYPE_CHECKING:
    from fedpace.devices.measure import RunProgress
    from fedpace.report.live import Live as LivePage
    from fedpace.studies.store import Job
    from fedpace.studies.study import Study
    from fedpace.training.history import Row
    from fedpace.training.stopping import Stop

# Seconds between two lines where there is no terminal.
EVERY = 30.0

DEADLINE = options.checked(
    "Seconds to wait for replies in a round.", options.positive, default="learned"
)
EVALUATE = typer.Option(
    metavar="N",
    help="Evaluate the model on all devices every N rounds, and estimate the loss from the drawn "
    "clients in between. 0: never evaluate.",
    show_default="1, or the setup's",
)
PATIENCE = options.checked("Seconds to wait while too few devices are connected.", options.positive)
LEAST = options.checked(
    "Least number of connected devices to train with.", positive_count, default="half of them"
)
LISTEN = typer.Option(
    metavar="HOST:PORT", help="Use no lab: wait at this address for devices that join."
)
DEVICES = typer.Option(help="With --listen: number of devices, or names separated by commas.")
CERTS = typer.Option(help="With --listen: directory with ca.pem, server.pem, server-key.pem.")
SAMPLES = typer.Option(
    "--samples-file",
    help="CSV file with the columns name and samples: how many samples devices have. What they "
    "say themselves then does not count.",
    show_default="as devices say, bounded",
)
SHARE = options.checked("Largest share of the rounds that one device may be in.", check_share)
GOODBYE = typer.Option("--goodbye", help="End the programs of the devices when all runs are done.")


def lab_run_command(
    setup: Annotated[str, options.SETUP],
    out: Annotated[Path, options.OUT],
    schemes: Annotated[str, options.CHOSEN] = "all",
    seeds: Annotated[int, options.SEEDS] = 1,
    first_seed: Annotated[int, options.FIRST] = 0,
    overrides: Annotated[list[str] | None, options.OVERRIDES] = None,
    deadline: Annotated[float | None, DEADLINE] = None,
    evaluate_every: Annotated[int | None, EVALUATE] = None,
    patience: Annotated[float, PATIENCE] = 600.0,
    least: Annotated[int | None, LEAST] = None,
    name: Annotated[str, typer.Option(help="Name of the lab to run on.")] = "proto",
    state: Annotated[Path | None, options.STATE] = None,
    listen: Annotated[str | None, LISTEN] = None,
    devices: Annotated[str | None, DEVICES] = None,
    certs: Annotated[Path | None, CERTS] = None,
    samples_file: Annotated[Path | None, SAMPLES] = None,
    largest_share: Annotated[float, SHARE] = LARGEST_SHARE,
    goodbye: Annotated[bool, GOODBYE] = False,
    robust: Annotated[bool, options.ROBUST] = False,
    live: Annotated[bool, options.LIVE] = False,
    log: Annotated[list[str] | None, options.LOG] = None,
) -> None:
    """Run a study on devices, and measure it. Interrupted, the same command continues."""
    options.need_lab()
    from fedpace.backends.remote.screening import verdict
    from fedpace.devices.device import read_samples
    from fedpace.devices.measure import Trust, WaitSettings, jobs_of, run_on_devices, write_times
    from fedpace.devices.server import DeviceServer
    from fedpace.devices.wire import Certificates
    from fedpace.studies.store import run_key, write_record

    numbers = range(first_seed, first_seed + seeds)
    options.named_schemes(schemes, resolve)  # what is misspelt is said first
    place = _lab(name, state) if listen is None else _listening(listen, devices, certs)
    network = {"deadline": deadline, "evaluate_every": evaluate_every}
    study = _study(setup, options.with_robust(overrides, robust), place, **network)
    every = options.trained(study.training.asynchronous)
    names = options.named_schemes(schemes, resolve, every=every)
    if least is not None and least > len(place.devices):
        raise InputError(f"--least must be at most {len(place.devices)}, got {least}; lower it")
    jobs = jobs_of(study, names, numbers)
    trust = Trust({} if samples_file is None else read_samples(samples_file), largest_share)
    keys = [run_key(study, *job) for job in jobs]
    write_record(out, study, names, numbers)
    tls = None if place.certs is None else Certificates.read(place.certs)
    server = DeviceServer(place.devices, host=place.host, port=place.port, tls=tls)
    if listen is not None and certs is not None and samples_file is None:
        output.say(
            "sample counts are the devices' own word: give --samples-file, or colluders may hold "
            "up to half of the weight, with --robust 30 %"
        )
    done = False
    try:
        with (
            output.live_page(out, live) as page,
            output.interruptible(out, keys),
            output.study_callbacks(study, out, page, log or ()) as callbacks,
            _shown(study, page) as (progress, tell),
        ):
            run_on_devices(
                study,
                jobs,
                out,
                server,
                waiting=WaitSettings(least, patience),
                trust=trust,
                progress=progress,
                say=tell,
                callbacks=callbacks,
            )
        done = True
    finally:
        server.close(goodbye=goodbye and done)  # the same command may go on with the devices
    for (client, reason), count in sorted(server.refusals.items()):
        output.say(f"{server.names[client]}: {verdict(reason)} {count} times")
    output.print_runs(out, keys)
    output.print_logs(out, log or ())
    output.print_written(write_times(study, jobs, out, len(place.devices)))
    output.print_next(out)


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
    from fedpace.devices.lab.lab import CERTIFICATES
    from fedpace.devices.lab.register import lab_folder, read_lab

    lab = read_lab(name, state)
    certs = lab_folder(name, state) / CERTIFICATES
    return _Place(lab.host, lab.port, lab.device_names, certs, lab.how, lab.time_scale, lab.setup)


def _listening(listen: str, devices: str | None, certs: Path | None) -> _Place:
    from fedpace.devices.device import parse_address, parse_devices

    if devices is None:
        raise InputError("--listen needs --devices, got none; write --devices 40, or their names")
    return _Place(*parse_address(listen), parse_devices(devices), certs, "devices")


def _study(setup: str, overrides: list[str], place: _Place, **network: object) -> Study:
    """Load the study as it is measured here, with these fields of its network section."""
    from fedpace.studies.build import client_count
    from fedpace.studies.study import load_study

    network |= {"how": place.how, "time_scale": place.time_scale}
    given = [f"network.{name}={value!r}" for name, value in network.items() if value is not None]
    study = load_study(setup, [*overrides, *given])
    options.no_shared_link(study.devices.link)
    clients, devices = client_count(study), len(place.devices)
    if clients != devices:
        raise InputError(
            f"{setup}: must have one client per device, got {clients} clients for {devices} "
            f"devices; add --set data.clients={devices}"
        )
    if place.setup not in (None, study.name):
        measured = f"the lab's times were measured with {place.setup}"
        output.say(f"{measured}; with {study.name} they may differ")
    return study


@contextmanager
def _shown(
    study: Study, page: LivePage | None
) -> Iterator[tuple[Callable[[RunProgress], None], output.Say]]:
    """Return how to show the standing, and how to say something beside it."""
    from fedpace.studies.build import stopping

    console = Console(stderr=True)
    rounds = _Rounds(stopping(study))
    with Live(console=console, refresh_per_second=4, transient=True) as live:

        def show(now: RunProgress) -> None:
            if console.is_terminal:
                live.update(Text(rounds.line(now)))
            else:
                rounds.print_sometimes(now)
            if page is not None:
                _show_on(page, now)

        yield show, output.beside(live.console) if console.is_terminal else output.say


def _show_on(page: LivePage, now: RunProgress) -> None:
    """Let the page know which run is being done, and how to ask who is waited for."""
    from fedpace.training.callbacks import Progress, RunInfo

    page.on_progress(Progress(now.done, now.total))
    if now.row is None:
        page.awaited = now.awaited
        page.on_start(RunInfo(*now.job), ())


class _Rounds:
    """Describe how far a run is, and how long it may still take."""

    def __init__(self, stop: Stop) -> None:
        self._stop, self._printed = stop, -math.inf
        self._of: tuple[Job | None, Remaining] = (None, Remaining(stop))

    def line(self, now: RunProgress) -> str:
        """Return one line."""
        run, row = f"run {now.done + 1} of {now.total}, {now.job}", now.row
        if row is None:
            return f"{run}: waiting for devices"
        measured = f"{row.phase} round {row.round}, {row.seconds:.1f} s measured"
        mean = f" (mean of the last ten {row.sustained_loss:.4f})" * self._judged(row)
        return f"{run}: {measured}, loss {row.loss:.4f}{mean}{self._left(now.job, row)}"

    def print_sometimes(self, now: RunProgress) -> None:
        """Print a line when a run begins, and again after a while."""
        line = self.line(now)
        if now.row is None or time.monotonic() - self._printed > EVERY:
            self._printed = time.monotonic()
            print(line, file=sys.stderr, flush=True)

    def _judged(self, row: Row) -> bool:
        """Tell whether the run ends by the mean of its last losses, and there is one."""
        return self._stop.sustained and math.isfinite(row.sustained_loss)

    def _left(self, job: Job, row: Row) -> str:
        """Say how long it may take until the run's last round or second."""
        if job != self._of[0]:
            self._of = job, Remaining(self._stop)
        left = self._of[1].seconds(row)
        return "" if left is None else f", at most {duration(left)} left"
