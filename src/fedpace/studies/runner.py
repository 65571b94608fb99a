"""Scheme × seed over cores or a cluster; every finished run is stored at once."""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Literal, NamedTuple

from fedpace.checks import positive_count
from fedpace.errors import InputError
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
    included. A damaged file is removed and its run repeated. The numbers depend on study, scheme
    and seed alone, not on where and in what order runs are done.

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
    if others := store.others_at_work():
        say(
            f"{directory}: process {others[0]} is at work here too; what either of them begins is "
            "done by both: end one of them"
        )
    todo = [job for job in jobs if not is_stored(store, study, job, say, save=save)]
    clock = _Progress(len(jobs), todo, show)
    wanted = _still_wanted(store, study, todo, clock, say)
    order = Order.of(study, schemes, save=save, watched=watcher is not None)
    seen = watcher or Watchers()
    if scheduler is None or not todo:
        results = run_in_processes(
            order, wanted, processes=min(count, len(todo)), warn=say, watcher=seen
        )
    else:
        run = run_on_cluster if spread == "runs" else run_spread
        results = run(order, wanted, scheduler=scheduler, warn=say, watcher=seen)
    with closing(results), store.at_work():
        failures = _stored(store, study, results, clock, seen)
    return Finished(len(jobs) - len(failures), failures)


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


def _still_wanted(
    store: Store, study: Study, todo: Iterable[Job], clock: _Progress, warn: Warn
) -> Iterator[Job]:
    """Yield the jobs that no other process has stored in the meantime."""
    for job in todo:
        if is_stored(store, study, job, warn):
            clock.note(job, 0.0)
        else:
            yield job


def _stored(
    store: Store,
    study: Study,
    results: Iterator[tuple[Job, Done]],
    clock: _Progress,
    watcher: Watcher,
) -> tuple[Failure, ...]:
    """Store what comes back, and return what went wrong."""
    failures: list[Failure] = []
    for job, done in results:
        if done.problem:
            failures.append(Failure(*job, done.problem))
        else:
            store.save_packed(run_key(study, *job), done.contents)
        watcher.done(job)
        clock.note(job, done.seconds)
    return tuple(sorted(failures))
