"""Runs in processes of this machine, one run at a time in each."""

import contextlib
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import ModuleType
from typing import NamedTuple, Self

import cloudpickle
import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

import fedpace
from fedpace.errors import InputError
from fedpace.lookup import give, given_among, provide, sources
from fedpace.rounds.rows import Row
from fedpace.studies.experiment import run_one
from fedpace.studies.store import packed_run
from fedpace.studies.study import Study
from fedpace.studies.watching import Watcher

# How often a run is begun again after its process was killed.
ATTEMPTS = 3
# After this many deaths without a single answer in between, processes cannot live here at all.
IN_A_ROW = 10


class Job(NamedTuple):
    """A run to be done."""

    scheme: str
    seed: int

    def __str__(self) -> str:
        return f"{self.scheme}, seed {self.seed}"


class Done(NamedTuple):
    """What became of a job: the packed run, or what went wrong, and the seconds it took."""

    contents: bytes
    problem: str = ""
    seconds: float = 0.0
    died: bool = False


@dataclass(frozen=True, eq=False)
class Order:
    """What crosses to another process: version, study as JSON, and what is the users' own.

    That is the text of their files, and pickled objects that a script gave; with `save`, the
    trained parameters come back; with `watched`, every row as soon as its round is over.
    """

    version: str
    study: str
    files: Mapping[str, str]
    given: bytes = b""
    save: bool = False
    watched: bool = False

    @classmethod
    def of(
        cls, study: Study, schemes: Iterable[str], *, save: bool = False, watched: bool = False
    ) -> Self:
        """Write a study down for another process."""
        names = [*schemes, study.training.server, *study.own_names]
        # Not pickle's own, which could not send what a script or a notebook defines.
        given = cloudpickle.dumps(objects) if (objects := given_among(names)) else b""
        written = json.dumps(study.model_dump(mode="json"))
        return cls(fedpace.__version__, written, sources(names), given, save, watched)

    def opened(self) -> Study:
        """Return the study, and let what is the users' own be found here."""
        provide(self.files)
        if self.given and self.given is not _opened[0]:
            give(cloudpickle.loads(self.given))
            _opened[0] = self.given
        return Study.model_validate_json(self.study)


# The objects that this process has unpacked: data may be large.
_opened = [b""]


def carried_out(order: Order, job: Job, watch: Callable[[Row], object] | None = None) -> Done:
    """Run one job in this process; errors are returned, not raised. `watch` sees every row.

    Linear algebra keeps to one thread from here on. Runs side by side would otherwise fight for
    the cores, and the number of threads would change the last bits of the result.
    """
    begin, contents, problem = time.perf_counter(), b"", ""
    try:
        if order.version != fedpace.__version__:
            versions = f"worker has fedpace {fedpace.__version__}, this is {order.version}"
            raise InputError(f"{versions}; install the same")
        threadpool_limits(1)
        study = order.opened()
        # What overflows ends the run as diverged, which says it better than a warning.
        with np.errstate(all="ignore"):
            outcome = run_one(study, *job, watch=watch)
            contents = packed_run(study, *job, outcome, save=order.save)
    except InputError as error:
        problem = str(error)
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(frame.filename).name}:{frame.lineno}"
        problem = f"{type(error).__name__}: {error} ({place})"
    return Done(contents, problem, time.perf_counter() - begin)


def run_in_processes(
    order: Order,
    jobs: Iterator[Job],
    *,
    processes: int,
    warn: Callable[[str], None],
    watcher: Watcher,
) -> Generator[tuple[Job, Done], None, None]:
    """Spread jobs over processes; yield each with its answer when that arrives.

    A job is taken from `jobs` when a process is free for it. Each process has a pipe of its own,
    rather than a place in a pool: its death says which run it was, and leaves the others alone.
    """
    lanes = [_Lane(order) for _ in range(processes)]
    deaths = _Deaths(warn)
    try:
        for lane in lanes:
            lane.take(next(jobs, None))
        while busy := [(lane, lane.job) for lane in lanes if lane.job]:
            answered = wait([lane.calls for lane, _ in busy])
            for lane, job in busy:
                if lane.calls not in answered:
                    continue
                came = lane.answer()
                if isinstance(came, Row):
                    watcher.row(job, came)
                elif answer := deaths.verdict(job, came):
                    lane.take(None if deaths.hopeless else next(jobs, None))
                    yield job, answer
                else:
                    watcher.done(job)
                    lane.take(job)
        for job in jobs:  # none are left unless it is hopeless
            yield job, Done(b"", "not begun, because processes keep dying")
    finally:
        for lane in lanes:
            lane.end()


class _Lane:
    """A process that does one job after another; it is started when it is first needed."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._process: SpawnProcess | None = None
        self.job: Job | None = None

    def take(self, job: Job | None) -> None:
        """Begin a job; None leaves the process idle."""
        self.job = job
        if job is None:
            return
        # A process that dies at any point of this is noticed where its answer is awaited.
        with contextlib.suppress(OSError):
            if self._process is None:
                self._start()
            self.calls.send(job)

    def answer(self) -> Done | Row:
        """Return what came back, or an answer that tells how the process died."""
        try:
            answer: Done | Row = self.calls.recv()
        except (EOFError, OSError):
            answer = Done(b"", f"its process {self.end(patience=1.0)}", died=True)
        return answer

    def end(self, patience: float = 0.0) -> str:
        """Make sure that the process is gone, and say how it went."""
        process, self._process = self._process, None
        if process is None:
            return "is gone"
        self.calls.close()
        if process.pid is None:
            return "could not be started"
        process.join(patience)
        process.kill()
        process.join()
        status = process.exitcode or 0
        return f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.calls, other_end = context.Pipe()
        self._process = context.Process(target=_serve, args=(other_end,), daemon=True)
        try:
            with _interrupts_held(), _main_hidden():
                self._process.start()
        finally:
            other_end.close()
        self.calls.send(self._order)  # once: it may hold data


class _Deaths:
    """Count how often processes died, and decide which runs to begin again."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._of: Counter[Job] = Counter()
        self._in_a_row = 0

    @property
    def hopeless(self) -> bool:
        """Whether processes cannot live here at all."""
        return self._in_a_row >= IN_A_ROW

    def verdict(self, job: Job, answer: Done) -> Done | None:
        """Return the answer that stands, or None if the job is to begin again."""
        if not answer.died:
            self._in_a_row = 0
            return answer
        self._in_a_row += 1
        self._of[job] += 1
        if self.hopeless or self._of[job] == ATTEMPTS:
            times = f"{answer.problem}, {self._of[job]} times in all"
            return answer._replace(problem=f"{times}; is there enough memory?")
        self._warn(f"{job}: {answer.problem}; it begins again")
        return None


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Let a process started here never see Ctrl-C: this process decides, and ends the others."""
    if os.name == "nt":
        yield
        return
    resource_tracker.ensure_running()  # starting it inside would let interrupts in again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _main_hidden() -> Iterator[None]:
    """Let a process started here not run the script again that this one runs: it needs no guard."""
    before, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = before


def _serve(calls: Connection) -> None:
    """Do jobs until the other end is closed."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with contextlib.suppress(EOFError, OSError):
        order = calls.recv()
        watch = calls.send if order.watched else None
        while True:
            calls.send(carried_out(order, calls.recv(), watch))


def _end_with_parent() -> None:
    """End this process when its parent is killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
