"""Run jobs in processes of this machine, or on an existing Dask cluster.

With `concurrent.futures` or loky a killed process breaks the pool, and all runs in progress are
lost. Here each process has its own pipe: its death affects one run only, rows arrive in order as
they are made, and a process ends at once with its parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError
from dataclasses import dataclass
from importlib import import_module
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, Self

import cloudpickle
import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

import fedpace
from fedpace.errors import InputError, MissingExtraError
from fedpace.lookup import provide_sources, read_sources, register_objects, registered_objects
from fedpace.studies.build import run_one
from fedpace.studies.store import Job, pack_run, rows_of
from fedpace.studies.study import Study
from fedpace.training.callbacks import Callback, RunInfo
from fedpace.training.history import Row

# Attempts at a run whose process is killed.
ATTEMPTS = 3
# Seconds.
IDLE = 60.0
# After this many deaths without a result in between, give up.
IN_A_ROW = 10


class JobResult(NamedTuple):
    """The packed run or what went wrong, and the seconds that the job took."""

    contents: bytes
    problem: str = ""
    seconds: float = 0.0
    died: bool = False


@dataclass(frozen=True, eq=False)
class Order:
    """What a worker needs: version, study as JSON, and the user's own code.

    `files` are texts of the user's files and `given` pickled objects of a script. With `save`,
    the trained parameters are returned; with `watched`, every row as soon as its round is over.
    """

    version: str
    study: str
    files: Mapping[str, str]
    given: bytes = b""
    save: bool = False
    watched: bool = False

    @classmethod
    def of(cls, study: Study, schemes: Iterable[str]) -> Self:
        """Return the order for runs of a study, with the present text of own files."""
        names = [*schemes, study.training.server, *study.own_names]
        # cloudpickle, because pickle cannot send what a script or a notebook defines.
        given = cloudpickle.dumps(objects) if (objects := registered_objects(names)) else b""
        written = json.dumps(study.model_dump(mode="json"))
        return cls(fedpace.__version__, written, read_sources(names), given)

    def open(self) -> Study:
        """Return the study, and make the user's own code available in this process."""
        provide_sources(self.files)
        if self.given and self.given is not _opened[0]:
            register_objects(cloudpickle.loads(self.given))
            _opened[0] = self.given
        return Study.model_validate_json(self.study)

    def changed_files(self) -> list[str]:
        """Return the user's files whose text differs from that of the order."""
        found = {file: Path(file) for file in self.files if Path(file).is_file()}
        return [file for file, path in found.items() if path.read_text() != self.files[file]]


# The objects that this process has unpacked: data may be large.
_opened = [b""]


def run_job(order: Order, job: Job, watch: Callable[[Row], object] | None = None) -> JobResult:
    """Run one job in this process; errors are returned, not raised. `watch` gets every row.

    Linear algebra uses one thread from here on: runs side by side would compete for the cores,
    and the number of threads would change the last bits of the result.
    """
    begin, contents, problem = time.perf_counter(), b"", ""
    try:
        if order.version != fedpace.__version__:
            versions = f"worker has fedpace {fedpace.__version__}, this is {order.version}"
            raise InputError(f"{versions}; install the same")
        threadpool_limits(1)
        study = order.open()
        # A run that overflows ends as diverged, which says more than a warning.
        with np.errstate(all="ignore"):
            outcome = run_one(study, *job, callbacks=[] if watch is None else [watch])
            contents = pack_run(study, *job, outcome, save=order.save)
    except InputError as error:
        problem = str(error)
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(frame.filename).name}:{frame.lineno}"
        problem = f"{type(error).__name__}: {error} ({place})"
    return JobResult(contents, problem, time.perf_counter() - begin)


def run_in_processes(
    order: Order,
    jobs: Iterator[Job],
    *,
    processes: int,
    callback: Callback,
    idle: Callable[[], object] = lambda: None,
) -> Generator[tuple[Job, JobResult], None, None]:
    """Distribute jobs over processes; yield each with its result when it arrives.

    A job is taken from `jobs` when a process is free for it. `idle` is called after every minute
    in which nothing arrives.
    """
    workers = [_Worker(order) for _ in range(processes)]
    deaths = _Deaths(callback.on_warning)

    def take(worker: _Worker, job: Job | None) -> None:
        if job is not None:
            callback.on_start(RunInfo(*job), ())
        worker.take(job)

    try:
        for worker in workers:
            take(worker, next(jobs, None))
        while busy := [(worker, worker.job) for worker in workers if worker.job]:
            answered = wait([worker.pipe for worker, _ in busy], IDLE)
            if not answered:
                idle()
            for worker, job in busy:
                if worker.pipe not in answered:
                    continue
                came = worker.receive()
                if isinstance(came, Row):
                    callback.on_row(RunInfo(*job), came)
                elif result := deaths.judge(job, came):
                    take(worker, None if deaths.hopeless else next(jobs, None))
                    yield job, result
                else:
                    callback.on_end(RunInfo(*job))
                    take(worker, job)
        for job in jobs:  # none are left unless it is hopeless
            yield job, JobResult(b"", "not begun, because processes keep dying")
    finally:
        for worker in workers:
            worker.end()


class _Worker:
    """A process that does one job after another; it is started with its first job."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._process: SpawnProcess | None = None
        self.job: Job | None = None

    def take(self, job: Job | None) -> None:
        """Begin a job; None leaves the process idle."""
        self.job = job
        if job is None:
            return
        with contextlib.suppress(OSError):  # the death of the process is noticed by `receive`
            if self._process is None:
                self._start()
            self.pipe.send(job)

    def receive(self) -> JobResult | Row:
        """Return a row, the result of the job, or how the process died."""
        try:
            answer: JobResult | Row = self.pipe.recv()
        except (EOFError, OSError):
            answer = JobResult(b"", f"its process {self.end(patience=1.0)}", died=True)
        return answer

    def end(self, patience: float = 0.0) -> str:
        """Make sure that the process is gone, and return how it ended."""
        process, self._process = self._process, None
        if process is None:
            return "is gone"
        self.pipe.close()
        if process.pid is None:
            return "could not be started"
        process.join(patience)
        process.kill()
        process.join()
        status = process.exitcode or 0
        return f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, other_end = context.Pipe()
        self._process = context.Process(target=_serve, args=(other_end,), daemon=True)
        try:
            with _without_interrupts(), _without_main():
                self._process.start()
        finally:
            other_end.close()
        self.pipe.send(self._order)  # once: it may hold data


class _Deaths:
    """Count the deaths of processes, and decide which runs to repeat."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._of: Counter[Job] = Counter()
        self._in_a_row = 0

    @property
    def hopeless(self) -> bool:
        """Whether no process survives here."""
        return self._in_a_row >= IN_A_ROW

    def judge(self, job: Job, result: JobResult) -> JobResult | None:
        """Return the final result, or None if the job has to be repeated."""
        if not result.died:
            self._in_a_row = 0
            return result
        self._in_a_row += 1
        self._of[job] += 1
        if self.hopeless or self._of[job] == ATTEMPTS:
            times = f"{result.problem}, {self._of[job]} times in all"
            return result._replace(problem=f"{times}; is there enough memory?")
        self._warn(f"{job}: {result.problem}; it begins again")
        return None


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    """Let processes started here ignore Ctrl-C: this process handles it and ends them.

    A signal that another thread receives is also handled in the main thread, so it is delayed
    until the process has started: a process that is half started prints a traceback.
    """
    if os.name == "nt":
        yield
        return
    resource_tracker.ensure_running()  # starting it inside would unblock interrupts
    in_main = threading.current_thread() is threading.main_thread()
    delayed: list[int] = []
    if in_main:
        handler = signal.signal(signal.SIGINT, lambda number, _: delayed.append(number))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if in_main:
            signal.signal(signal.SIGINT, handler)
        if delayed:
            signal.raise_signal(signal.SIGINT)


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Keep processes started here from running this process's script again; it needs no guard."""
    before, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = before


def _serve(pipe: Connection) -> None:
    """Do jobs until the other end is closed."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with contextlib.suppress(EOFError, OSError):
        order = pipe.recv()
        watch = pipe.send if order.watched else None
        while True:
            pipe.send(run_job(order, pipe.recv(), watch))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


# Seconds to wait for the scheduler, at the start and at the end, and for workers that are busy.
PATIENCE, GOODBYE, BUSY = 10, 5, 300


def run_on_cluster(
    order: Order, jobs: Iterator[Job], *, scheduler: str, callback: Callback
) -> Generator[tuple[Job, JobResult], None, None]:
    """Send jobs to the cluster; yield each with its result when it arrives.

    Dask repeats the runs of a lost worker on another.
    """
    distributed = _import_dask()
    pending: dict[Any, Job] = {}
    with _connect(distributed, scheduler, callback.on_warning, pending) as client:
        sent = order
        if order.given:  # data go to every worker once, not with every run
            client.wait_for_workers(1)
            sent = client.scatter(order, broadcast=True, timeout=BUSY)
        pending |= {client.submit(run_job, sent, job, pure=False): job for job in jobs}
        for future in distributed.as_completed(list(pending), loop=client.loop):
            try:
                # No time limit: a result that was lost with its worker is computed again first.
                answer = future.result()
            except Exception as error:  # of Dask, also of a worker's death
                answer = _failure_of(error, client, scheduler)
            job = pending.pop(future)
            callback.on_start(RunInfo(*job), ())
            for row in rows_of(answer.contents) if order.watched and answer.contents else ():
                callback.on_row(RunInfo(*job), row)
            yield job, answer


def _import_dask() -> Any:
    """Import Dask and silence its logs, which repeat our messages."""
    try:
        distributed = import_module("distributed")
    except ImportError:
        raise MissingExtraError(
            "--scheduler needs Dask; install it with: pip install 'fedpace[cluster]'"
        ) from None
    for name in list(logging.root.manager.loggerDict):
        if name.partition(".")[0] in ("distributed", "tornado"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
    return distributed


@contextlib.contextmanager
def _connect(
    distributed: Any, scheduler: str, warn: Callable[[str], None], pending: dict[Any, Job]
) -> Iterator[Any]:
    """Connect to the scheduler, or explain in one line; at the end cancel what is pending.

    Its identity is asked for first: `Client` leaves threads and logs behind if it gets no answer.
    """
    try:
        answer = asyncio.run(_identity(distributed, scheduler))
        if answer["type"] != "Scheduler":
            raise ValueError(f"it is a {answer['type'].lower()}")
    except Exception as error:  # another server's answer may raise anything
        ours = isinstance(error, (OSError, ValueError))
        reason = (str(error) or "no answer") if ours else "what answers there is not Dask"
        remedy = "give the address that 'dask scheduler' prints"
        raise InputError(f"scheduler {scheduler} cannot be reached: {reason}; {remedy}") from None
    if not answer["workers"]:
        warn(f"scheduler {scheduler} has no workers yet; waiting for the first")
    client = distributed.Client(scheduler, timeout=PATIENCE, set_as_default=False)
    try:
        yield client
    finally:  # the scheduler may be gone
        with contextlib.suppress(Exception):
            client.cancel(list(pending), force=True)
        with contextlib.suppress(Exception):
            client.close(timeout=GOODBYE)


async def _identity(distributed: Any, scheduler: str) -> dict[str, Any]:
    secrets = distributed.Security().get_connection_args("client")
    async with distributed.rpc(scheduler, timeout=PATIENCE, connection_args=secrets) as remote:
        identity: dict[str, Any] = await asyncio.wait_for(remote.identity(), PATIENCE)
        return identity


def _failure_of(error: Exception, client: Any, scheduler: str) -> JobResult:
    """Return the answer for a failed run; raise if the scheduler is gone."""
    closed = import_module("distributed.comm").CommClosedError
    if isinstance(error, (CancelledError, closed)) or client.status != "running":
        raise InputError(
            f"scheduler {scheduler} was lost; finished runs are stored, and the same command "
            "continues from there"
        ) from None
    known = isinstance(error, InputError)
    return JobResult(b"", str(error) if known else f"{type(error).__name__}: {error}")
