"""Run jobs on an existing Dask cluster."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import CancelledError
from importlib import import_module
from typing import Any

from fedpace.errors import InputError, MissingExtraError
from fedpace.studies.processes import JobResult, Order, run_job
from fedpace.studies.store import Job, rows_of
from fedpace.training.callbacks import Callback, RunInfo

# Seconds to wait for the scheduler, at the start and at the end.
PATIENCE, GOODBYE = 10, 5


def run_on_cluster(
    order: Order, jobs: Iterator[Job], *, scheduler: str, callback: Callback
) -> Generator[tuple[Job, JobResult], None, None]:
    """Send jobs to the cluster; yield each with its result when it arrives.

    Dask repeats the runs of a lost worker on another.
    """
    distributed = _distributed()
    pending: dict[Any, Job] = {}
    with _connected(distributed, scheduler, callback.on_warning, pending) as client:
        sent = order
        if order.given:  # data go to every worker once, not with every run
            client.wait_for_workers(1)
            sent = client.scatter(order, broadcast=True)
        pending |= {client.submit(run_job, sent, job, pure=False): job for job in jobs}
        for future in distributed.as_completed(list(pending), loop=client.loop):
            try:
                # No time limit: a result that was lost with its worker is computed again first.
                answer = future.result()
            except Exception as error:  # of Dask, also of a worker's death
                answer = _failed(error, client, scheduler)
            job = pending.pop(future)
            callback.on_start(RunInfo(*job), ())
            for row in rows_of(answer.contents) if order.watched and answer.contents else ():
                callback.on_row(RunInfo(*job), row)
            yield job, answer


def _distributed() -> Any:
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
def _connected(
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


def _failed(error: Exception, client: Any, scheduler: str) -> JobResult:
    """Return the answer for a failed run; raise if the scheduler is gone."""
    closed = import_module("distributed.comm").CommClosedError
    if isinstance(error, (CancelledError, closed)) or client.status != "running":
        raise InputError(
            f"scheduler {scheduler} was lost; finished runs are stored, and the same command "
            "continues from there"
        ) from None
    known = isinstance(error, InputError)
    return JobResult(b"", str(error) if known else f"{type(error).__name__}: {error}")
