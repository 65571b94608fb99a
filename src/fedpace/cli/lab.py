"""The commands `fedpace lab up`, `status`, `down` and `run`; `certs` and `join` work anywhere."""

from __future__ import annotations

import logging
import math
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from fedpace.cli import options, output
from fedpace.errors import InputError, TooFewClientsError, join_names

if TYPE_CHECKING:
    from rich.table import Table

    from fedpace.devices.lab.lab import Calibrated
    from fedpace.devices.lab.register import Lab
    from fedpace.devices.measure import RunProgress
    from fedpace.report.live import Live as LivePage
    from fedpace.studies.store import Job
    from fedpace.studies.study import Study
    from fedpace.training.callbacks import Remaining
    from fedpace.training.history import Row
    from fedpace.training.stopping import Stop

NAME = typer.Option("--name", help="Name of the lab. Labs with other names are not touched.")
# Above this median error a lab does not keep the times asked for.
MEDIAN_ERROR = 0.1
UNKNOWN = "–"

ONE = typer.Option("--name", help="Name of the lab.", show_default="all labs")
DEVICES = options.checked_option(
    "Number of devices.", options.positive_count, default="one per client of the setup"
)
TIMES = typer.Option(
    help="Round times in seconds: uniform:LOW:HIGH, exponential:MEAN, file:PATH, trace:fedscale, …",
    show_default="those of the setup",
)
SCALE = options.checked_option(
    "Multiply all times by this; 0.1 is ten times faster.", options.positive
)
SETUP = typer.Option(help="Setup with the model and local steps to measure devices with.")
SEED = options.checked_option("Seed of the times, as in a simulated run.", options.natural)
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
    from fedpace.devices.lab.lab import Limits, bring_up
    from fedpace.devices.lab.launch import check_cpu_share, may_make_networks, parse_cores
    from fedpace.studies.build import check_at_hand, client_count
    from fedpace.studies.study import load_study

    study = load_study(setup, overrides or ())
    if devices not in (None, clients := client_count(study)):
        raise InputError(
            f"--devices must be one per client of {setup}, {clients}, got {devices}; "
            f"leave it out, or change the setup with --set data.clients={devices}"
        )
    if cpu_share is not None:
        check_cpu_share(cpu_share)
    limits = Limits(None if cores is None else parse_cores(cores), cpu_share)
    options.look_in(folder)
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
            f"these devices compute for longer than the time asked for: {join_names(slow)}; "
            "give a larger --time-scale"
        )
    if silent := names[np.isnan(lab.measured)].tolist():
        output.say(f"these devices did not answer: {join_names(silent)}; see the lab's logs")
    if off.size and np.median(off) > MEDIAN_ERROR:
        output.say("the times differ by more than 10 %: is the machine busy with something else?")


def _place(lab: Lab) -> str:
    shared = "" if lab.link is None else f", link {lab.link}"
    return f"server {lab.host}:{lab.port}, time scale {lab.time_scale:g}{shared}"


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
    from rich import box
    from rich.table import Table

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
DAYS = options.checked_option("Days until the certificates expire.", options.positive_count)
CERTS = typer.Option(help="Directory with ca.pem and this device's NAME.pem and NAME-key.pem.")
PACE = options.checked_option(
    "Most bytes per second, in each direction.", options.positive, default="no limit"
)
PATIENCE = options.checked_option(
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
    from fedpace.devices.device import join

    options.look_in(folder)
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


# Seconds between two lines where there is no terminal.
EVERY = 30.0

DEADLINE = options.checked_option(
    "Seconds to wait for replies in a round.", options.positive, default="learned"
)
EVALUATE = typer.Option(
    metavar="N",
    help="Evaluate the model on all devices every N rounds, and estimate the loss from the drawn "
    "clients in between. 0: never evaluate.",
    show_default="1, or the setup's",
)
WAIT = options.checked_option(
    "Seconds to wait while too few devices are connected.", options.positive
)
LEAST = options.checked_option(
    "Least number of connected devices to train with.",
    options.positive_count,
    default="half of them",
)
LISTEN = typer.Option(
    metavar="HOST:PORT", help="Use no lab: wait at this address for devices that join."
)
EXPECTED = typer.Option(help="With --listen: number of devices, or names separated by commas.")
SERVER_CERTS = typer.Option(
    help="With --listen: directory with ca.pem, server.pem, server-key.pem."
)
SAMPLES = typer.Option(
    "--samples-file",
    help="CSV file with the columns name and samples: how many samples devices have. What they "
    "say themselves then does not count.",
    show_default="as devices say, bounded",
)


def _check_share(name: str, value: float) -> float:
    from fedpace.training.share_limit import check_share

    return check_share(name, value)


LARGEST = options.checked_option(
    "Largest share of the rounds that one device may be in.", _check_share, default="0.4"
)
GOODBYE = typer.Option("--goodbye", help="End the programs of the devices when all runs are done.")


def run_command(
    setup: Annotated[str, options.SETUP],
    out: Annotated[Path, options.OUT],
    schemes: Annotated[str, options.CHOSEN] = "all",
    seeds: Annotated[int, options.SEEDS] = 1,
    first_seed: Annotated[int, options.FIRST] = 0,
    overrides: Annotated[list[str] | None, options.OVERRIDES] = None,
    deadline: Annotated[float | None, DEADLINE] = None,
    evaluate_every: Annotated[int | None, EVALUATE] = None,
    patience: Annotated[float, WAIT] = 600.0,
    least: Annotated[int | None, LEAST] = None,
    name: Annotated[str, typer.Option(help="Name of the lab to run on.")] = "proto",
    state: Annotated[Path | None, options.STATE] = None,
    listen: Annotated[str | None, LISTEN] = None,
    devices: Annotated[str | None, EXPECTED] = None,
    certs: Annotated[Path | None, SERVER_CERTS] = None,
    samples_file: Annotated[Path | None, SAMPLES] = None,
    largest_share: Annotated[float | None, LARGEST] = None,
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
    from fedpace.samplers.build import resolve
    from fedpace.studies.store import run_key, write_record
    from fedpace.training.share_limit import LARGEST_SHARE

    numbers = range(first_seed, first_seed + seeds)
    options.named_schemes(schemes, resolve)  # what is misspelt is said first
    place = (
        _place_of_lab(name, state) if listen is None else _place_to_listen(listen, devices, certs)
    )
    network = {"deadline": deadline, "evaluate_every": evaluate_every}
    study = _study(setup, options.with_robust(overrides, robust), place, **network)
    every = options.every_scheme(study.training.asynchronous)
    names = options.named_schemes(schemes, resolve, every=every)
    if least is not None and least > len(place.devices):
        raise InputError(f"--least must be at most {len(place.devices)}, got {least}; lower it")
    jobs = jobs_of(study, names, numbers)
    share = LARGEST_SHARE if largest_share is None else largest_share
    trust = Trust({} if samples_file is None else read_samples(samples_file), share)
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
            _show_progress(study, page) as (progress, tell),
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
    link: str | None = None


def _place_of_lab(name: str, state: Path | None) -> _Place:
    from fedpace.devices.lab.lab import CERTIFICATES
    from fedpace.devices.lab.register import lab_folder, read_lab

    lab = read_lab(name, state)
    certs = lab_folder(name, state) / CERTIFICATES
    what = (lab.how, lab.time_scale, lab.setup, lab.link)
    return _Place(lab.host, lab.port, lab.device_names, certs, *what)


def _place_to_listen(listen: str, devices: str | None, certs: Path | None) -> _Place:
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
    if study.devices.link != place.link:
        raise InputError(
            f"devices.link must be the link where it is measured, {place.link or 'none'}, got "
            f"{study.devices.link or 'none'}; give lab up and lab run the same --set devices.link, "
            "or leave it out"
        )
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
def _show_progress(
    study: Study, page: LivePage | None
) -> Iterator[tuple[Callable[[RunProgress], None], output.Say]]:
    """Return how to show the standing, and how to say something beside it."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from fedpace.studies.build import stop_rule

    console = Console(stderr=True)
    rounds = _Rounds(stop_rule(study))
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
        self._of: tuple[Job, Remaining] | None = None

    def line(self, now: RunProgress) -> str:
        """Return one line."""
        run, row = f"run {now.done + 1} of {now.total}, {now.job}", now.row
        if row is None:
            return f"{run}: waiting for devices"
        measured = f"{row.phase} round {row.round}, {row.seconds:.1f} s measured"
        mean = f" (mean of the last ten {row.sustained_loss:.4f})" * self._ends_by_mean(row)
        return f"{run}: {measured}, loss {row.loss:.4f}{mean}{self._time_left(now.job, row)}"

    def print_sometimes(self, now: RunProgress) -> None:
        """Print a line when a run begins, and again after a while."""
        line = self.line(now)
        if now.row is None or time.monotonic() - self._printed > EVERY:
            self._printed = time.monotonic()
            print(line, file=sys.stderr, flush=True)

    def _ends_by_mean(self, row: Row) -> bool:
        """Tell whether the run ends by the mean of its last losses, and there is one."""
        return self._stop.sustained and math.isfinite(row.sustained_loss)

    def _time_left(self, job: Job, row: Row) -> str:
        """Say how long it may take until the run's last round or second."""
        from fedpace.training.callbacks import Remaining, duration

        if self._of is None or job != self._of[0]:
            self._of = job, Remaining(self._stop)
        left = self._of[1].seconds(row)
        return "" if left is None else f", at most {duration(left)} left"
