"""Run a study on devices: every scheme with every seed, one run after another, measured."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

import fedpace
from fedpace.backends.remote.roster import MOST_TOGETHER, MOST_TOGETHER_ROBUST
from fedpace.checks import FloatArray
from fedpace.devices.backend import DeviceBackend
from fedpace.devices.server import DeviceServer
from fedpace.devices.shard import job_of
from fedpace.files import hold_lock, make_folder, write_text
from fedpace.samplers.build import resolve
from fedpace.seeds import Seeds
from fedpace.servers.build import server_for
from fedpace.servers.robust import is_robust
from fedpace.studies.build import check_schemes, model_of, parsed_schedule, run_with
from fedpace.studies.callbacks import Callbacks
from fedpace.studies.runner import is_stored
from fedpace.studies.store import Job, Store, run_key
from fedpace.studies.study import Study
from fedpace.training.callbacks import Callback, RunInfo
from fedpace.training.checkpoint import Checkpoint
from fedpace.training.history import Row
from fedpace.training.server import check_asynchronous
from fedpace.training.share_limit import LARGEST_SHARE

# File with the usual seconds of each client, one per line.
TIMES = "times.txt"
# Entries of a checkpoint: the devices' sample counts, and the memory of the screening.
SAMPLES, SCREEN = "samples", "screen"


class RunProgress(NamedTuple):
    """Progress: the current run and its last finished round, if any.

    `awaited` returns the names of the devices that are waited for now.
    """

    job: Job
    done: int
    total: int
    row: Row | None = None
    awaited: Callable[[], Sequence[str]] = tuple


@dataclass(frozen=True)
class WaitSettings:
    """Wait up to `patience` seconds for `least` devices; None for half of them."""

    least: int | None = None
    patience: float = 600.0


@dataclass(frozen=True)
class Trust:
    """The operator's sample counts of devices, and the largest share of rounds of one device."""

    samples: Mapping[str, int] = field(default_factory=dict)
    largest_share: float = LARGEST_SHARE


def run_on_devices(
    study: Study,
    jobs: Sequence[Job],
    directory: Path,
    server: DeviceServer,
    *,
    waiting: WaitSettings,
    trust: Trust | None = None,
    progress: Callable[[RunProgress], object],
    say: Callable[[str], None],
    callbacks: Sequence[Callback] = (),
) -> None:
    """Run all jobs and store each when it is finished; stored runs are not repeated.

    Every round is saved in a checkpoint, from which the same call resumes after any interruption.
    The directory is locked against a second process.
    """
    trust, callback = trust or Trust(), Callbacks(callbacks)
    with hold_lock(make_folder(directory, "--out") / ".lock", f"{directory} of --out"):
        store = Store(directory)
        store.tidy()
        server_rule = server_for(study.training.server)
        for done, job in enumerate(jobs):
            if is_stored(store, run_key(study, *job), job, say):
                with contextlib.suppress(OSError):  # remains if killed after storing
                    _checkpoint_path(study, job, directory).unlink(missing_ok=True)
                continue
            journal = checkpoint_of(study, job, directory)
            devices = DeviceBackend(
                server,
                model_of(study),
                Seeds(job.seed),
                deadline=None if study.network is None else study.network.deadline,
                least=waiting.least,
                patience=waiting.patience,
                largest_share=trust.largest_share,
                together=MOST_TOGETHER_ROBUST if is_robust(server_rule) else MOST_TOGETHER,
                say=say,
            )
            standing = RunProgress(job, done, len(jobs), awaited=lambda it=devices: it.awaited)  # type: ignore[misc]
            progress(standing)
            # The weights stay those of the beginning, also after a restart with other devices.
            devices.prepare(
                job_of(study, job.seed, server.names),
                journal.notes.get(SAMPLES),
                given=trust.samples,
                memory=journal.notes.get(SCREEN),
            )
            journal.live = _live(devices)
            found = journal.resume()
            callback.on_start(RunInfo(*job), () if found is None else found.rows)
            report = partial(_report_row, standing, progress, callback)
            outcome = run_with(devices, study, *job, callbacks=[journal, report])
            store.save(study, job.scheme, job.seed, outcome)
            journal.remove()
            callback.on_end(RunInfo(*job))


def _report_row(
    standing: RunProgress, progress: Callable[[RunProgress], object], callback: Callback, row: Row
) -> None:
    progress(standing._replace(row=row))
    callback.on_row(RunInfo(*standing.job), row)


def _live(devices: DeviceBackend) -> dict[str, Callable[[], object]]:
    """Return the entries of the checkpoint, evaluated at each write."""
    return {SAMPLES: lambda: devices.samples, SCREEN: lambda: devices.memory}


def jobs_of(study: Study, schemes: Sequence[str], seeds: Sequence[int]) -> list[Job]:
    """Return the runs in order: every scheme with the first seed, then with the next."""
    for scheme in schemes:
        resolve(scheme, argument="schemes")
    check_schemes(study, schemes)
    server = server_for(study.training.server)
    if study.training.asynchronous:
        check_asynchronous(server)
    parsed_schedule(study.training.schedule)
    return [Job(scheme, seed) for seed in seeds for scheme in schemes]


def checkpoint_of(study: Study, job: Job, directory: Path) -> Checkpoint:
    """Return the checkpoint of one run, a file beside the stored runs."""
    path = _checkpoint_path(study, job, directory)
    path.parent.mkdir(parents=True, exist_ok=True)
    about = {
        "version": fedpace.__version__,
        "study": study.model_dump(mode="json"),
        "scheme": job.scheme,
        "seed": job.seed,
    }
    return Checkpoint(path, about)


def _checkpoint_path(study: Study, job: Job, directory: Path) -> Path:
    return directory / "checkpoints" / f"{run_key(study, *job)}.npz"


def write_times(study: Study, jobs: Sequence[Job], directory: Path, clients: int) -> Path:
    """Write each client's usual seconds, one per line, for the simulator.

    `fedpace run SETUP --set 'devices.times="file:DIR/times.txt"'` then predicts these runs.
    """
    keys = {run_key(study, *job) for job in jobs}
    runs = [run.history.rows for run in Store(directory).runs(keys=keys)]
    path = directory / TIMES
    write_text(path, "".join(f"{seconds:.6f}\n" for seconds in usual_seconds(runs, clients)))
    return path


def usual_seconds(runs: Sequence[Sequence[Row]], clients: int) -> FloatArray:
    """Return each client's median over runs of its median seconds in a run.

    Thus full participation, with many rounds per client and all devices computing at once, counts
    no more than another run. A client that never answered gets the median of the others.
    """
    usual = np.full((len(runs), clients), np.nan)
    for index, rows in enumerate(runs):
        drawn = np.concatenate([row.clients for row in rows])
        seconds = np.concatenate([row.client_seconds for row in rows])
        for client in np.unique(drawn).tolist():
            usual[index, client] = np.median(seconds[drawn == client])
    times = medians(usual)
    return np.where(np.isfinite(times), times, medians(times[:, np.newaxis]))


def medians(values: FloatArray) -> FloatArray:
    """Return the median of each column, without NaN; NaN for a column without numbers."""
    known = np.isfinite(values).any(axis=0)
    found = np.full(values.shape[1], np.nan)
    found[known] = np.nanmedian(values[:, known], axis=0)
    return found
