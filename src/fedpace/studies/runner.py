"""Scheme × seed over cores or a cluster; every finished run is stored at once."""

from __future__ import annotations

import os
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from importlib import resources
from io import BytesIO
from itertools import chain, product
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedpace.backends.local import optimiser_named
from fedpace.checks import positive_count
from fedpace.errors import InputError, InUseError
from fedpace.files import make_folder, write_through
from fedpace.samplers.build import resolve
from fedpace.servers.build import server_for
from fedpace.studies.build import check_schemes, parsed_schedule, simulator
from fedpace.studies.callbacks import Callbacks
from fedpace.studies.processes import JobResult, Order, run_in_processes, run_on_cluster
from fedpace.studies.store import DamagedRunError, Job, Store, run_key
from fedpace.studies.study import Study, check_setup, load_study, setups
from fedpace.training.callbacks import Callback, Progress, RunInfo
from fedpace.training.history import Row
from fedpace.training.server import check_asynchronous

# The scheme whose runs last longest: all clients train in every round.
LONGEST = "full"
# Seconds between two looks at the runs of another process.
LOOK = 0.5
MODELS = "models"
Warn = Callable[[str], None]


class Failure(NamedTuple):
    """A run that failed, and why."""

    scheme: str
    seed: int
    reason: str

    def __str__(self) -> str:
        return f"{self.scheme}, seed {self.seed}: {self.reason}"


class StudyJobs(NamedTuple):
    """The keys of a study's runs, and the order for workers, which holds the text of own files."""

    keys: Mapping[Job, str]
    order: Order


class StudyResult(NamedTuple):
    """The number of stored runs, and those that failed."""

    stored: int
    failures: tuple[Failure, ...]


def run_study(
    study: Study,
    schemes: Sequence[str],
    seeds: Sequence[int],
    directory: Path,
    *,
    processes: int | None = None,
    scheduler: str | None = None,
    jobs: StudyJobs | None = None,
    save: bool = False,
    callbacks: Sequence[Callback | Callable[[Row], object]] = (),
) -> StudyResult:
    """Run every scheme with every seed, and store each run as soon as it is finished.

    Stored runs are not repeated, so the same call continues after any interruption, also after a
    power loss. If another process is doing a run in the same directory, this one waits for it, and
    does the run itself if that process dies. A damaged file is removed and its run repeated. The
    numbers depend on study, scheme and seed only. Own files count as they are at the start.

    Parameters
    ----------
    study, schemes, seeds
        What is trained, names of schemes, and integers ≥ 0.
    directory : Path
        Directory for the runs; it may hold runs of other studies.
    processes : int ≥ 1, optional
        Runs at a time on this machine; by default one per core.
    scheduler : str, optional
        The address of a Dask scheduler, such as tcp://10.0.0.1:8786, to run there instead.
    jobs : StudyJobs, optional
        The result of `study_jobs` for these arguments, if it was called before.
    save : bool
        Keep the trained parameters in the runs' files; runs stored without them are repeated.
    callbacks : sequence of Callback, or functions of a row
        `on_progress` is called at the start, after every run, and every minute in between;
        `on_row` with every round, on a cluster when its run is over.
    """
    keys, order = study_jobs(study, schemes, seeds) if jobs is None else jobs
    count = usable_cores() if processes is None else positive_count("processes", processes)
    calls = Callbacks(callbacks)
    store = Store(directory)
    store.tidy()
    warn = calls.on_warning
    todo = [job for job, key in keys.items() if not is_stored(store, key, job, warn, save=save)]
    clock = _Clock(len(keys), todo, calls)
    order = replace(order, save=save, watched=calls.sees_rows)
    failures: list[Failure] = []
    if todo and (note := local_steps_note(study, schemes)):
        warn(note)
    with _Claims(store, keys, clock, calls, save=save, cluster=scheduler is not None) as claims:
        while todo:
            free = claims.take(todo)
            if scheduler is None:
                workers = min(count, len(todo))
                results = run_in_processes(
                    order, free, processes=workers, callback=calls, idle=clock.report
                )
            else:
                results = run_on_cluster(order, free, scheduler=scheduler, callback=calls)
            with closing(results):
                failures += _store(store, keys, results, clock, calls, claims)
            todo = claims.wait_for_others()
    for file in order.changed_files():
        warn(f"{file} was changed during the study; its runs are those of the text at the start")
    return StudyResult(len(keys) - len(failures), tuple(sorted(failures)))


def study_jobs(study: Study, schemes: Sequence[str], seeds: Sequence[int]) -> StudyJobs:
    """Return the runs in the order to begin them; refuse settings with which no run can begin.

    One seed of every scheme comes first, so that the time left can be estimated early; then the
    longest runs, so that no core is idle at the end.
    """
    if not schemes or not seeds or min(seeds) < 0:
        raise InputError(
            f"a study must have schemes and seeds of at least 0, got {len(schemes)} schemes and "
            f"{len(seeds)} seeds from {min(seeds, default=0)}; see --schemes and --seeds"
        )
    for scheme in schemes:
        resolve(scheme, argument="schemes")
    check_schemes(study, schemes)
    server = server_for(study.training.server)
    if study.training.asynchronous:
        check_asynchronous(server)
    optimiser_named(study.training.optimiser)
    parsed_schedule(study.training.schedule)
    simulator(study, seeds[0])
    jobs = dict.fromkeys(Job(scheme, seed) for seed in seeds for scheme in schemes)
    ordered = sorted(jobs, key=lambda job: (job.seed != seeds[0], job.scheme != LONGEST))
    return StudyJobs({job: run_key(study, *job) for job in ordered}, Order.of(study, schemes))


def local_steps_note(study: Study, schemes: Sequence[str]) -> str:
    """Return who takes how many local steps, if only `pace` chooses them; else nothing."""
    others = [scheme for scheme in schemes if scheme != "pace"]
    if study.training.local_steps != "auto" or not others:
        return ""
    named, fixed = ", ".join(others), study.local_steps
    return f"pace chooses its local steps; {named}: {fixed} each (devices.reference_steps)"


def is_stored(store: Store, key: str, job: Job, warn: Warn, *, save: bool = False) -> bool:
    """Return whether a run is stored; remove a damaged file.

    With `save`, a file without the trained parameters is removed too.
    """
    while path := store.find(key):
        try:
            run = store.load(path)
        except DamagedRunError as error:
            warn(f"{error}; it is removed and {job} is done again")
            store.remove(path)
        else:
            if not save or run.parameters is not None:
                return True
            store.remove(path)
    return False


def write_models(study: Study, keys: Mapping[Job, str], out: Path) -> list[Path]:
    """Write the trained models of stored runs to OUT/models, an .npz file per run.

    A PyTorch module's arrays have the names of its `state_dict`, scikit-learn's are coef_ and
    intercept_; other models have one vector, "parameters".
    """
    store, written = Store(out), []
    model = simulator(study, next(iter(keys)).seed).model
    for job, key in keys.items():
        path = store.find(key)
        run = None if path is None else store.load(path)
        if run is None or run.parameters is None:
            continue
        buffer = BytesIO()
        np.savez_compressed(buffer, allow_pickle=False, **model.arrays(run.parameters))
        target = make_folder(out / MODELS, "--out") / f"{job.file_name}.npz"
        write_through(target, buffer.getvalue(), temporary=target.with_suffix(".part"))
        written.append(target)
    return written


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    known = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if known else os.cpu_count() or 1


class _Clock:
    """Count runs, and estimate the time left."""

    def __init__(self, total: int, todo: Sequence[Job], calls: Callback) -> None:
        self._begin, self._total, self._calls = time.monotonic(), total, calls
        self._left = Counter(job.scheme for job in todo)
        self._seconds: dict[str, list[float]] = {}
        self.report()

    def note(self, job: Job, seconds: float) -> None:
        """Count a run that took `seconds`; 0 for a run that another process did."""
        self._left[job.scheme] -= 1
        if seconds > 0:
            self._seconds.setdefault(job.scheme, []).append(seconds)
        self.report()

    def report(self) -> None:
        """Call `on_progress`."""
        self._calls.on_progress(self._progress())

    def _progress(self) -> Progress:
        """Return the progress; the time left is the time so far × work left / work done."""
        done = self._total - self._left.total()
        if not self._seconds:
            return Progress(done, self._total)
        spent = list(chain(*self._seconds.values()))
        means = {scheme: fmean(each) for scheme, each in self._seconds.items()}
        ahead = sum(n * means.get(scheme, fmean(spent)) for scheme, n in self._left.items())
        elapsed = time.monotonic() - self._begin
        return Progress(done, self._total, elapsed * ahead / sum(spent))


class _Claims:
    """Locks on the runs that this process does.

    Each run is unlocked when it is stored. Runs on a cluster, which are all sent at once, share
    one lock. The operating system frees the locks of a process that dies.
    """

    def __init__(
        self,
        store: Store,
        keys: Mapping[Job, str],
        clock: _Clock,
        calls: Callback,
        *,
        save: bool,
        cluster: bool,
    ) -> None:
        self._store, self._keys, self._clock, self._calls = store, keys, clock, calls
        self._save, self._cluster = save, cluster
        self._held: dict[str, ExitStack] = {}
        self._busy: list[Job] = []
        self._warned = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for claim in self._held.values():
            claim.close()

    def take(self, todo: Iterable[Job]) -> Iterator[Job]:
        """Lock and yield the jobs that are neither stored by now nor done by another process."""
        for job in todo:
            key, warn = self._keys[job], self._calls.on_warning
            if not self._claim(self._lock(job)):
                self._busy.append(job)
            elif is_stored(self._store, key, job, warn, save=self._save):
                self.release(job)
                self._clock.note(job, 0.0)
            else:
                yield job

    def release(self, job: Job) -> None:
        """Unlock a run."""
        if not self._cluster:
            self._held.pop(self._lock(job)).close()

    def wait_for_others(self) -> list[Job]:
        """Return the jobs that other processes were doing, as soon as one of these is over."""
        busy, self._busy = self._busy, []
        if busy and not self._warned:
            self._warned = True
            self._calls.on_warning(
                f"{self._store.directory}: another process is at work here too; "
                f"waiting for the {len(busy)} runs that it does"
            )
        while busy and not any(self._claim(self._lock(job)) for job in busy):
            time.sleep(LOOK)
        return busy

    def _claim(self, key: str) -> bool:
        if key in self._held:
            return True
        claim = ExitStack()
        try:
            claim.enter_context(self._store.claim(key))
        except InUseError:
            return False
        self._held[key] = claim
        return True

    def _lock(self, job: Job) -> str:
        return "cluster" if self._cluster else self._keys[job]


def _store(
    store: Store,
    keys: Mapping[Job, str],
    results: Iterator[tuple[Job, JobResult]],
    clock: _Clock,
    calls: Callback,
    claims: _Claims,
) -> list[Failure]:
    """Store finished runs, and return the failures."""
    failures: list[Failure] = []
    for job, result in results:
        if result.problem:
            failures.append(Failure(*job, result.problem))
        else:
            store.save_packed(keys[job], result.contents)
        claims.release(job)
        calls.on_end(RunInfo(*job))
        clock.note(job, result.seconds)
    return failures


GRIDS = resources.files("fedpace.studies") / "grids"


class Grid(BaseModel):
    """Each of the `tasks` with the settings `set` and one of each list in `vary`.

    `tasks` are names of setups; `own` has settings of single tasks, by name.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    tasks: list[str] = Field(min_length=1)
    set: list[str] = []
    vary: list[list[str]] = []
    own: dict[str, list[str]] = {}

    @model_validator(mode="after")
    def _check_own(self) -> Self:
        if unknown := [task for task in self.own if task not in self.tasks]:
            raise ValueError(f"own must name tasks of the grid, got {unknown[0]!r}")
        return self

    def studies(self, overrides: Iterable[str] = ()) -> list[Study]:
        """Return the studies; the settings of the last list change fastest."""
        given = list(overrides)
        return [
            load_study(task, [*self.set, *self.own.get(task, ()), *chosen, *given])
            for task in self.tasks
            for chosen in product(*self.vary)
        ]


def grids() -> list[str]:
    """Return the names of the grids that come with fedpace."""
    return sorted(Path(each.name).stem for each in GRIDS.iterdir() if each.name.endswith("toml"))


def load_studies(name_or_path: str, overrides: Iterable[str] = ()) -> list[Study]:
    """Return the studies of a grid, or the one of a setup: see `load_study`.

    A grid comes with fedpace, or is a TOML file with `tasks`, names of setups, and optionally
    `set`, `vary` and `own`, settings as for --set. Duplicates are removed.

    >>> [study.name for study in load_studies("simulation-1")]
    ['simulation-1']
    >>> len(load_studies("field"))
    18
    """
    check_setup(name_or_path, [*setups(), *grids()])
    values = _grid_values(name_or_path)
    if values is None:
        return [load_study(name_or_path, overrides)]
    try:
        studies = Grid.model_validate(values).studies(overrides)
    except ValidationError as error:
        first = error.errors()[0]
        field, problem = ".".join(map(str, first["loc"])), first["msg"].lower()
        raise InputError(
            f"{name_or_path}: '{field}': {problem}; a grid has tasks, set, vary and own"
        ) from None
    return [study for at, study in enumerate(studies) if study not in studies[:at]]


def _grid_values(name_or_path: str) -> dict[str, Any] | None:
    """Return the fields of a grid, or None."""
    if name_or_path in grids():
        return tomllib.loads((GRIDS / f"{name_or_path}.toml").read_text(encoding="utf-8"))
    if not name_or_path.endswith(".toml"):
        return None
    try:
        values = tomllib.loads(Path(name_or_path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return None  # `load_study` says what is wrong
    return values if "tasks" in values else None
