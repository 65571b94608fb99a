"""A Dask cluster of real processes on loopback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from .tiny import wait_until

ROOT = Path(__file__).parents[2]


class Cluster(NamedTuple):
    address: str
    scheduler: subprocess.Popen[bytes]
    workers: list[subprocess.Popen[bytes]]


@contextmanager
def cluster(folder: Path, workers: int) -> Iterator[Cluster]:
    """Start a scheduler and workers that live in `folder`; they can import the tests."""
    about = folder / "scheduler.json"
    place = ("--host", "127.0.0.1", "--scheduler-file", str(about))
    processes = [_dask(folder, "scheduler", "--port", "0", *place)]
    try:
        wait_until(lambda: about.exists() and about.read_text().endswith("}"))
        address = json.loads(about.read_text())["address"]
        single = ("--no-nanny", "--nthreads", "1", "--local-directory", str(folder))
        processes += [_dask(folder, "worker", address, *single) for _ in range(workers)]
        yield Cluster(address, processes[0], processes[1:])
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()


def _dask(folder: Path, *args: str) -> subprocess.Popen[bytes]:
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    with (folder / f"{args[0]}.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "dask", *args, "--no-dashboard"],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": paths},
            stdout=log,
            stderr=log,
        )
