"""Runs on a Dask cluster that is there already."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import CancelledError
from importlib import import_module
from typing import Any

from fedpace.errors import InputError, MissingExtraError
from fedpace.studies.processes import Answer, Job, Order, carried_out

# Seconds to wait for the scheduler, at the start and for a goodbye.
PATIENCE = 5


def run_on_cluster(
    order: Order, jobs: Iterator[Job], *, scheduler: str, warn: Callable[[str], None]
) -> Generator[tuple[Job, Answer], None, None]:
    """Send jobs to the cluster, and yield each with its answer as soon as it is there.

    Dask itself begins the runs of a lost worker again on another.
    """
    distributed = _distributed()
    client = _connected(distributed, scheduler, warn)
    pending: dict[Any, Job] = {}
    try:
        pending |= {client.submit(carried_out, order, job, pure=False): job for job in jobs}
        for future in distributed.as_completed(list(pending)):
            answer = _answer_of(future, scheduler)
            yield pending.pop(future), answer
    finally:
        _leave(client, list(pending))


def _distributed() -> Any:
    """Import Dask, which is not typed, and keep it quiet: we say what is to be said."""
    try:
        distributed = import_module("distributed")
    except ImportError:
        raise MissingExtraError(
            "--scheduler needs Dask; install it with: pip install 'fedpace[cluster]'"
        ) from None
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    return distributed


def _connected(distributed: Any, scheduler: str, warn: Callable[[str], None]) -> Any:
    try:
        client = distributed.Client(scheduler, timeout=PATIENCE, set_as_default=False)
    except (OSError, ValueError) as error:
        raise InputError(
            f"scheduler {scheduler} cannot be reached: {str(error) or type(error).__name__}; "
            "give the address that 'dask scheduler' prints"
        ) from error
    if not client.scheduler_info()["workers"]:
        warn(f"scheduler {scheduler} has no workers yet; waiting for the first")
    return client


def _answer_of(future: Any, scheduler: str) -> Answer:
    if future.cancelled():
        raise _lost(scheduler)
    try:
        answer = future.result(timeout=PATIENCE)
    except (CancelledError, TimeoutError, OSError):
        raise _lost(scheduler) from None
    except Exception as error:  # whatever Dask has to say of a run, a worker's death included
        return Answer(b"", f"{type(error).__name__}: {error}")
    assert isinstance(answer, Answer)
    return answer


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
