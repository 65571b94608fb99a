"""Run a study on devices: every scheme with every seed, measured, one run after another."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

import fedpace
from fedpace.checks import FloatArray
from fedpace.estimation.policy import named
from fedpace.files import held, made_folder, write_text
from fedpace.network.device_server import DeviceServer
from fedpace.network.devices import Devices
from fedpace.network.shard import job_of
from fedpace.rounds.checkpoint import Checkpoint
from fedpace.rounds.limits import LARGEST_SHARE
from fedpace.rounds.rows import Row
from fedpace.rounds.server import server_named
from fedpace.seeds import Seeds
from fedpace.studies.experiment import check_mode, model_of, parsed_schedule, run_with
from fedpace.studies.processes import Job
from fedpace.studies.runner import is_stored
from fedpace.studies.store import Store, run_key
from fedpace.studies.study import Study
from fedpace.studies.watching import Watcher, Watchers

# The usual seconds of each client, one per line, in the directory of the runs.
TIMES = "times.txt"
# What the checkpoint of a run keeps the devices' sample counts under, and what is usual of them.
SAMPLES, SCREEN = "samples", "screen"


class RunProgress(NamedTuple):
    """How far the runs are: which one is being done, and its last finished round, if any.

    `awaited` returns the names of the devices that are waited for at the time.
    """

    job: Job
    done: int
    total: int
    row: Row | None = None
    awaited: Callable[[], Sequence[str]] = tuple


@dataclass(frozen=True)
class Waiting:
    """Until `least` devices are there, or half of them, training waits up to `patience` seconds."""

    least: int | None = None
    patience: float = 600.0


@dataclass(frozen=True)
class Trust:
    """How many samples devices have, as the operator knows it, and how often one may be drawn."""

    samples: Mapping[str, int] = field(default_factory=dict)
    largest_share: float = LARGEST_SHARE


def run_on_devices(
    study: Study,
    jobs: Sequence[Job],
    directory: Path,
    server: DeviceServer,
    *,
    waiting: Waiting,
    trust: Trust | None = None,
    progress: Callable[[RunProgress], object],
    say: Callable[[str], None],
    watcher: Watcher | None = None,
) -> None:
    """Run all jobs and store each when it is finished; what is stored is not run again.

    Every round is written to a checkpoint: the same call goes on from there, whatever ended it.
    Nobody else runs on devices into the same directory meanwhile.
    """
    with held(made_folder(directory, "--out") / ".lock", f"{directory} of --out"):
        _run_all(
            study,
            jobs,
            directory,
            server,
            waiting=waiting,
            trust=trust or Trust(),
            progress=progress,
            say=say,
            watcher=watcher or Watchers(),
        )


def _run_all(
    study: Study,
    jobs: Sequence[Job],
    directory: Path,
    server: DeviceServer,
    *,
    waiting: Waiting,
    trust: Trust,
    progress: Callable[[RunProgress], object],
    say: Callable[[str], None],
    watcher: Watcher,
) -> None:
    store = Store(directory)
    store.tidy()
    for done, job in enumerate(jobs):
        if is_stored(store, study, job, say):
            with contextlib.suppress(OSError):  # left if the server was killed after storing
                _checkpoint_path(study, job, directory).unlink(missing_ok=True)
            continue
        journal = checkpoint_of(study, job, directory)
        devices = Devices(
            server,
            model_of(study),
            Seeds(job.seed),
            deadline=None if study.network is None else study.network.deadline,
            least=waiting.least,
            patience=waiting.patience,
            largest_share=trust.largest_share,
            say=say,
        )
        standing = RunProgress(job, done, len(jobs), awaited=lambda it=devices: it.awaited)  # type: ignore[misc]
        progress(standing)
        # The weights of a run are those that it began with, whoever is there after a restart.
        devices.prepare(
            job_of(study, job.seed, server.names),
            journal.notes.get(SAMPLES),
            given=trust.samples,
            memory=journal.notes.get(SCREEN),
        )
        journal.live = _live(devices)
        if (found := journal.resume()) is not None:
            watcher.resumed(job, found.rows[1:])  # but for that of the initial model
        outcome = run_with(
            devices,
            study,
            *job,
            journal=journal,
            watch=partial(_seen, standing, progress, watcher),
        )
        store.save(study, job.scheme, job.seed, outcome)
        journal.remove()
        watcher.done(job)


def _seen(
    standing: RunProgress, progress: Callable[[RunProgress], object], watcher: Watcher, row: Row
) -> None:
    progress(standing._replace(row=row))
    watcher.row(standing.job, row)


def _live(devices: Devices) -> dict[str, Callable[[], object]]:
    """Return what the checkpoint keeps of the devices."""
    return {SAMPLES: lambda: devices.samples, SCREEN: lambda: devices.memory}


def jobs_of(study: Study, schemes: Sequence[str], seeds: Sequence[int]) -> list[Job]:
    """Return the runs in their order: every scheme with the first seed, then with the next."""
    for scheme in schemes:
        named(scheme, argument="schemes")
    check_mode(study, schemes)
    server_named(study.training.server)
    parsed_schedule(study.training.schedule)
    return [Job(scheme, seed) for seed in seeds for scheme in schemes]


def checkpoint_of(study: Study, job: Job, directory: Path) -> Checkpoint:
    """Return the journal of one run: a file beside the stored runs."""
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
    """Write each client's usual seconds, one per line, as the simulator reads them.

    `fedpace run SETUP --set 'devices.times="file:DIR/times.txt"'` then predicts these runs.
    """
    keys = {run_key(study, *job) for job in jobs}
    runs = [run.history.rows for run in Store(directory).runs(keys=keys)]
    path = directory / TIMES
    write_text(path, "".join(f"{seconds:.6f}\n" for seconds in usual_seconds(runs, clients)))
    return path


def usual_seconds(runs: Sequence[Sequence[Row]], clients: int) -> FloatArray:
    """Return the median over runs of the median that a client took in each.

    So a run of full participation, with most rounds of each client and all devices computing at
    once, counts no more than others. A client that never answered gets the median of the others.
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
    """Return the median of each column's numbers; NaN where it has none."""
    known = np.isfinite(values).any(axis=0)
    found = np.full(values.shape[1], np.nan)
    found[known] = np.nanmedian(values[:, known], axis=0)
    return found
