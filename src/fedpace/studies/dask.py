"""Runs on an existing Dask cluster: whole runs on workers, or the clients of each round."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import CancelledError
from importlib import import_module
from typing import Any

from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from fedpace.errors import InputError, MissingExtraError
from fedpace.rounds.simulator import Simulator
from fedpace.rounds.spread import Spread
from fedpace.studies.experiment import run_with, simulator
from fedpace.studies.processes import Done, Job, Order, carried_out
from fedpace.studies.store import packed_run
from fedpace.studies.study import Study

# Seconds to wait for the scheduler, at the start and for a goodbye.
PATIENCE = 5


def run_on_cluster(
    order: Order, jobs: Iterator[Job], *, scheduler: str, warn: Callable[[str], None]
) -> Generator[tuple[Job, Done], None, None]:
    """Send jobs to the cluster, and yield each with its answer as soon as it is there.

    Dask itself begins the runs of a lost worker again on another.
    """
    distributed = _distributed()
    client = _connected(distributed, scheduler, warn)
    pending: dict[Any, Job] = {}
    try:
        pending |= {client.submit(carried_out, order, job, pure=False): job for job in jobs}
        for future in distributed.as_completed(list(pending), loop=client.loop):
            answer = _answer_of(future, client, scheduler)
            yield pending.pop(future), answer
    finally:
        _leave(client, list(pending))


def run_spread(
    order: Order, jobs: Iterator[Job], *, scheduler: str, warn: Callable[[str], None]
) -> Generator[tuple[Job, Done], None, None]:
    """Do one run after another here, with the clients of each round spread over the cluster.

    For a simulation that outgrows one machine; the numbers are those of one process.
    """
    distributed = _distributed()
    client = _connected(distributed, scheduler, warn)
    study = Study.model_validate_json(order.study)
    try:
        for job in jobs:
            begin = time.perf_counter()
            try:
                backend = Spread(client, _simulator, order.study, job.seed)
                contents = packed_run(study, *job, run_with(backend, study, *job))
            except Exception as error:  # a worker's too: the next run may go better
                if _is_loss(error, client):
                    raise _lost(scheduler) from None
                yield job, Done(b"", _described(error), time.perf_counter() - begin)
                continue
            yield job, Done(contents, "", time.perf_counter() - begin)
    finally:
        _leave(client, [])


def _simulator(study: str, seed: int) -> Simulator:
    """Build the simulator on a worker; linear algebra keeps to one thread there, as everywhere."""
    threadpool_limits(1)
    return simulator(Study.model_validate_json(study), seed)


def _distributed() -> Any:
    """Import Dask, which is not typed, and keep it quiet: we say what is to be said."""
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


def _connected(distributed: Any, scheduler: str, warn: Callable[[str], None]) -> Any:
    """Connect to the scheduler, or say in one line why not.

    We knock first: `Client` leaves threads and complaints behind where no scheduler answers.
    """
    try:
        answer = asyncio.run(_identity(distributed, scheduler))
        if answer["type"] != "Scheduler":
            raise ValueError(f"it is a {answer['type'].lower()}")
    except (OSError, ValueError) as error:
        raise _unreachable(scheduler, str(error) or "no answer") from None
    except Exception:  # another server's answer, taken for Dask's, may end in anything
        raise _unreachable(scheduler, "what answers there is not Dask") from None
    if not answer["workers"]:
        warn(f"scheduler {scheduler} has no workers yet; waiting for the first")
    return distributed.Client(scheduler, timeout=PATIENCE, set_as_default=False)


async def _identity(distributed: Any, scheduler: str) -> dict[str, Any]:
    secrets = distributed.Security().get_connection_args("client")
    async with distributed.rpc(scheduler, timeout=PATIENCE, connection_args=secrets) as remote:
        identity: dict[str, Any] = await asyncio.wait_for(remote.identity(), PATIENCE)
        return identity


def _answer_of(future: Any, client: Any, scheduler: str) -> Done:
    if future.cancelled():
        raise _lost(scheduler)
    try:
        # No time limit: a result that was lost with its worker is computed again first.
        answer = future.result()
    except Exception as error:  # whatever Dask has to say of a run, a worker's death included
        if _is_loss(error, client):
            raise _lost(scheduler) from None
        return Done(b"", _described(error))
    assert isinstance(answer, Done)
    return answer


def _is_loss(error: Exception, client: Any) -> bool:
    """Tell whether an error means that the scheduler is gone, rather than that a run failed."""
    closed = import_module("distributed.comm").CommClosedError
    return isinstance(error, (CancelledError, closed)) or client.status != "running"


def _described(error: Exception) -> str:
    return str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"


def _unreachable(scheduler: str, reason: str) -> InputError:
    return InputError(
        f"scheduler {scheduler} cannot be reached: {reason}; "
        "give the address that 'dask scheduler' prints"
    )


def _lost(scheduler: str) -> InputError:
    return InputError(
        f"scheduler {scheduler} was lost; what had come back is stored, and the same command "
        "goes on from there"
    )


def _leave(client: Any, pending: list[Any]) -> None:
    """Withdraw what is not needed any more, and do not insist if nobody is there."""
    with contextlib.suppress(Exception):
        client.cancel(pending, force=True)
    with contextlib.suppress(Exception):
        client.close(timeout=PATIENCE)
