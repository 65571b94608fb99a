"""Runs on an existing Dask cluster: whole runs on workers, or the clients of each round."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import CancelledError
from functools import partial
from importlib import import_module
from typing import Any

from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from fedpace.errors import InputError, MissingExtraError
from fedpace.rounds.simulator import Simulator
from fedpace.rounds.spread import Spread
from fedpace.studies.experiment import run_with, simulator
from fedpace.studies.processes import Done, Job, Order, carried_out
from fedpace.studies.store import packed_run, rows_of
from fedpace.studies.study import Study
from fedpace.studies.watching import Watcher

# Seconds to wait for the scheduler, at the start and for a goodbye.
PATIENCE = 5


def run_on_cluster(
    order: Order,
    jobs: Iterator[Job],
    *,
    scheduler: str,
    warn: Callable[[str], None],
    watcher: Watcher,
) -> Generator[tuple[Job, Done], None, None]:
    """Send jobs to the cluster; yield each with its answer when that arrives.

    Dask itself begins the runs of a lost worker again on another.
    """
    distributed = _distributed()
    pending: dict[Any, Job] = {}
    with _connected(distributed, scheduler, warn, pending) as client:
        # Data go to every worker once, not with every run.
        sent = client.scatter(order, broadcast=True) if order.given else order
        pending |= {client.submit(carried_out, sent, job, pure=False): job for job in jobs}
        for future in distributed.as_completed(list(pending), loop=client.loop):
            try:
                # No time limit: a result that was lost with its worker is computed again first.
                answer = future.result()
            except Exception as error:  # whatever Dask has to say, of a worker's death too
                answer = _failed(error, client, scheduler)
            job = pending.pop(future)
            for row in rows_of(answer.contents) if order.watched and answer.contents else ():
                watcher.row(job, row)
            yield job, answer


def run_spread(
    order: Order,
    jobs: Iterator[Job],
    *,
    scheduler: str,
    warn: Callable[[str], None],
    watcher: Watcher,
) -> Generator[tuple[Job, Done], None, None]:
    """Do one run after another here, with the clients of each round spread over the cluster.

    For a simulation that outgrows one machine; the numbers are those of one process.
    """
    with _connected(_distributed(), scheduler, warn, {}) as client:
        study = Study.model_validate_json(order.study)  # files are read here, not from the order
        for job in jobs:
            begin = time.perf_counter()
            try:
                backend = Spread(client, _simulator, order, job.seed)
                outcome = run_with(backend, study, *job, watch=partial(watcher.row, job))
                done = Done(packed_run(study, *job, outcome, save=order.save))
            except Exception as error:  # a worker's too: the next run may go better
                done = _failed(error, client, scheduler)
            yield job, done._replace(seconds=time.perf_counter() - begin)


def _simulator(order: Order, seed: int) -> Simulator:
    """Build the simulator on a worker; linear algebra keeps to one thread there, as everywhere."""
    threadpool_limits(1)
    return simulator(order.opened(), seed)


def _distributed() -> Any:
    """Import Dask and silence its logs: our messages say what matters."""
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
def _connected(
    distributed: Any, scheduler: str, warn: Callable[[str], None], pending: dict[Any, Job]
) -> Iterator[Any]:
    """Connect to the scheduler, or say in one line why not; at the end withdraw what is pending.

    We knock first: `Client` leaves threads and complaints behind where no scheduler answers.
    """
    try:
        answer = asyncio.run(_identity(distributed, scheduler))
        if answer["type"] != "Scheduler":
            raise ValueError(f"it is a {answer['type'].lower()}")
    except Exception as error:  # another server's answer, taken for Dask's, may end in anything
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
            client.close(timeout=PATIENCE)


async def _identity(distributed: Any, scheduler: str) -> dict[str, Any]:
    secrets = distributed.Security().get_connection_args("client")
    async with distributed.rpc(scheduler, timeout=PATIENCE, connection_args=secrets) as remote:
        identity: dict[str, Any] = await asyncio.wait_for(remote.identity(), PATIENCE)
        return identity


def _failed(error: Exception, client: Any, scheduler: str) -> Done:
    """Return the answer for a failed run; raise if the scheduler is gone."""
    closed = import_module("distributed.comm").CommClosedError
    if isinstance(error, (CancelledError, closed)) or client.status != "running":
        raise InputError(
            f"scheduler {scheduler} was lost; what had come back is stored, and the same command "
            "goes on from there"
        ) from None
    known = isinstance(error, InputError)
    return Done(b"", str(error) if known else f"{type(error).__name__}: {error}")
