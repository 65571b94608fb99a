"""Scheme × seed over cores or a cluster; every finished run is stored at once."""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Literal, NamedTuple, Self

from fedpace.checks import positive_count
from fedpace.errors import InputError, InUseError
from fedpace.estimation.policy import named
from fedpace.rounds.optimisers import optimiser_named
from fedpace.rounds.server import server_named
from fedpace.studies.dask import run_on_cluster, run_spread
from fedpace.studies.experiment import check_mode, parsed_schedule, simulator
from fedpace.studies.processes import Done, Job, Order, run_in_processes
from fedpace.studies.store import DamagedRunError, Store, run_key
from fedpace.studies.study import Study
from fedpace.studies.watching import Watcher, Watchers

Warn = Callable[[str], None]
Spread = Literal["runs", "clients"]
# The scheme whose runs last longest: all clients train in every round.
LONGEST = "full"
# Seconds between two looks at the runs of another process.
LOOK = 0.5


class Failure(NamedTuple):
    """A run that could not be done, and why."""

    scheme: str
    seed: int
    reason: str

    def __str__(self) -> str:
        return f"{self.scheme}, seed {self.seed}: {self.reason}"


class Standing(NamedTuple):
    """How far a study is; `seconds_left` is None as long as nothing can be said."""

    done: int
    total: int
    seconds_left: float | None = None


class Finished(NamedTuple):
    """What a study came to: how many of its runs are stored, and which could not be done."""

    stored: int
    failures: tuple[Failure, ...]


class _Progress:
    """Keep the standing of a study, and tell it after every run."""

    def __init__(
        self, total: int, todo: Sequence[Job], progress: Callable[[Standing], object]
    ) -> None:
        self._begin, self._total, self._progress = time.monotonic(), total, progress
        self._left = Counter(job.scheme for job in todo)
        self._seconds: dict[str, list[float]] = {}
        progress(self.standing())

    def note(self, job: Job, seconds: float) -> None:
        """Count a run that took `seconds`; 0 for a run that was found."""
        self._left[job.scheme] -= 1
        if seconds > 0:
            self._seconds.setdefault(job.scheme, []).append(seconds)
        self._progress(self.standing())

    def standing(self) -> Standing:
        """Tell how far it is: the time so far × work left / work done."""
        done = self._total - self._left.total()
        if not self._seconds:
            return Standing(done, self._total)
        spent = list(chain(*self._seconds.values()))
        means = {scheme: fmean(each) for scheme, each in self._seconds.items()}
        ahead = sum(n * means.get(scheme, fmean(spent)) for scheme, n in self._left.items())
        elapsed = time.monotonic() - self._begin
        return Standing(done, self._total, elapsed * ahead / sum(spent))


def run_study(
    study: Study,
    schemes: Sequence[str],
    seeds: Sequence[int],
    directory: Path,
    *,
    processes: int | None = None,
    scheduler: str | None = None,
    spread: Spread = "runs",
    jobs: Sequence[Job] | None = None,
    save: bool = False,
    progress: Callable[[Standing], object] | None = None,
    warn: Warn | None = None,
    watcher: Watcher | None = None,
) -> Finished:
    """Run every scheme with every seed, and store each run as soon as it is finished.

    Stored runs are not repeated, so the same call continues after any interruption, a loss of power
    included. A run that another process does here at the same time is waited for, and done here if
    that process dies. A damaged file is removed and its run repeated. The numbers depend on study,
    scheme and seed alone, not on where and in what order runs are done.

    Parameters
    ----------
    study, schemes, seeds
        What is trained, names of schemes, and integers ≥ 0.
    directory : Path
        Where runs are stored; it may hold runs of other studies.
    processes : int ≥ 1, optional
        Runs at a time on this machine; the cores by default.
    scheduler : str, optional
        The address of a Dask scheduler, such as tcp://10.0.0.1:8786, to run there instead.
    spread : "runs" or "clients"
        What goes to the workers of a cluster: whole runs, or the clients of each round.
    jobs : sequence of Job, optional
        What `checked_jobs` returns for these arguments, if it was called before.
    save : bool
        Keep the trained parameters in the runs' files; runs stored without them are done again.
    progress, warn : callable, optional
        `progress` gets the standing at the start and after every run; `warn` gets a line for each
        damaged file, killed process and the like.
    watcher : Watcher, optional
        Sees every round when it is over; of whole runs on a cluster, when the run is.
    """
    say, show = warn or (lambda _: None), progress or (lambda _: None)
    jobs = checked_jobs(study, schemes, seeds) if jobs is None else jobs
    count = usable_cores() if processes is None else positive_count("processes", processes)
    store = Store(directory)
    store.tidy()
    todo = [job for job in jobs if not is_stored(store, study, job, say, save=save)]
    clock = _Progress(len(jobs), todo, show)
    order = Order.of(study, schemes, save=save, watched=watcher is not None)
    seen, failures = watcher or Watchers(), tuple[Failure, ...]()
    whole = scheduler is not None and spread == "runs"
    with _Claims(store, study, clock, say, save=save, whole=whole) as claims:
        while todo:
            wanted = claims.free(todo)
            if scheduler is None:
                results = run_in_processes(
                    order, wanted, processes=min(count, len(todo)), warn=say, watcher=seen
                )
            else:
                run = run_on_cluster if whole else run_spread
                results = run(order, wanted, scheduler=scheduler, warn=say, watcher=seen)
            with closing(results):
                failures += _stored(store, study, results, clock, seen, claims)
            todo = claims.waited()
    return Finished(len(jobs) - len(failures), tuple(sorted(failures)))


def checked_jobs(study: Study, schemes: Sequence[str], seeds: Sequence[int]) -> list[Job]:
    """Return the runs in the order to begin them, or say what is wrong before any is begun.

    One seed of every scheme comes first, so that the time left is known early; then what lasts
    longest, so that no core is idle at the end.
    """
    if not schemes or not seeds or min(seeds) < 0:
        raise InputError(
            f"a study must have schemes and seeds of at least 0, got {len(schemes)} schemes and "
            f"{len(seeds)} seeds from {min(seeds, default=0)}; see --schemes and --seeds"
        )
    for scheme in schemes:
        named(scheme, argument="schemes")
    check_mode(study, schemes)
    server_named(study.training.server)
    optimiser_named(study.training.optimiser)
    parsed_schedule(study.training.schedule)
    simulator(study, seeds[0])
    jobs = dict.fromkeys(Job(scheme, seed) for seed in seeds for scheme in schemes)
    return sorted(jobs, key=lambda job: (job.seed != seeds[0], job.scheme != LONGEST))


def is_stored(store: Store, study: Study, job: Job, warn: Warn, *, save: bool = False) -> bool:
    """Tell whether a run is stored and whole; remove a damaged file.

    With `save`, one without its parameters is removed too: it is to be done again.
    """
    while path := store.find(run_key(study, *job)):
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


def usable_cores() -> int:
    """Return how many cores this process may use."""
    known = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if known else os.cpu_count() or 1


class _Claims:
    """The runs that this process does: none of them is another's meanwhile.

    Each is locked, and freed when it is stored. Whole runs on a cluster, which are all sent at
    once, have one lock together. The system frees those of a process that dies.
    """

    def __init__(
        self,
        store: Store,
        study: Study,
        clock: _Progress,
        warn: Warn,
        *,
        save: bool,
        whole: bool,
    ) -> None:
        self._store, self._study, self._clock, self._warn = store, study, clock, warn
        self._save, self._whole = save, whole
        self._held: dict[str, ExitStack] = {}
        self._busy: list[Job] = []
        self._told = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for claim in self._held.values():
            claim.close()

    def free(self, todo: Iterable[Job]) -> Iterator[Job]:
        """Claim and yield the jobs that are not stored by now, but for those of others."""
        for job in todo:
            if not self._claim(self._lock(job)):
                self._busy.append(job)
            elif is_stored(self._store, self._study, job, self._warn, save=self._save):
                self.release(job)
                self._clock.note(job, 0.0)
            else:
                yield job

    def release(self, job: Job) -> None:
        """Let others see that a run is over."""
        if not self._whole:
            self._held.pop(self._lock(job)).close()

    def waited(self) -> list[Job]:
        """Return the jobs that others were at, as soon as one of these is over."""
        busy, self._busy = self._busy, []
        if busy and not self._told:
            self._told = True
            self._warn(
                f"{self._store.directory}: another process is at work here too; "
                f"it does {len(busy)} of the runs, which are waited for"
            )
        while busy and not any(self._claim(self._lock(job)) for job in busy):
            time.sleep(LOOK)
        return busy

    def _claim(self, key: str) -> bool:
        if key in self._held:
            return True
        claim = ExitStack()
        try:
            claim.enter_context(self._store.claimed(key))
        except InUseError:
            return False
        self._held[key] = claim
        return True

    def _lock(self, job: Job) -> str:
        return "cluster" if self._whole else run_key(self._study, *job)


def _stored(
    store: Store,
    study: Study,
    results: Iterator[tuple[Job, Done]],
    clock: _Progress,
    watcher: Watcher,
    claims: _Claims,
) -> tuple[Failure, ...]:
    """Store what comes back, and return what went wrong."""
    failures: list[Failure] = []
    for job, done in results:
        if done.problem:
            failures.append(Failure(*job, done.problem))
        else:
            store.save_packed(run_key(study, *job), done.contents)
        claims.release(job)
        watcher.done(job)
        clock.note(job, done.seconds)
    return tuple(failures)
