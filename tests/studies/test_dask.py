"""The same runs through a real Dask scheduler and worker processes on loopback."""

import json
import os
import signal
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from fedpace.studies import dask as study_dask

from .tiny import LONG, begin, files, run_here, stored, wait_until, write_setup

pytest.importorskip("distributed")
RUNS = ("--schemes", "uniform,optimal-mean", "--seeds", "8", "--set", LONG[0], "--set", LONG[1])
COUNT = 16


class Cluster(NamedTuple):
    address: str
    scheduler: subprocess.Popen[bytes]
    workers: list[subprocess.Popen[bytes]]


def dask(folder: Path, *args: str) -> subprocess.Popen[bytes]:
    with (folder / f"{args[0]}.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "dask", *args, "--no-dashboard"],
            cwd=folder,
            stdout=log,
            stderr=log,
        )


@contextmanager
def cluster(folder: Path, workers: int) -> Iterator[Cluster]:
    about = folder / "scheduler.json"
    place = ("--host", "127.0.0.1", "--scheduler-file", str(about))
    processes = [dask(folder, "scheduler", "--port", "0", *place)]
    try:
        wait_until(lambda: about.exists() and about.read_text().endswith("}"))
        address = json.loads(about.read_text())["address"]
        for _ in range(workers):
            processes.append(dask(folder, "worker", address, "--no-nanny", "--nthreads", "1"))
        yield Cluster(address, processes[0], processes[1:])
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Start a cluster for the tests that leave it as it is."""
    with cluster(tmp_path_factory.mktemp("standing"), workers=2) as dask_cluster:
        yield dask_cluster


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("reference")
    assert run_here(write_setup(folder), "--out", folder / "out", *RUNS).returncode == 0
    return files(folder / "out")


def test_a_cluster_that_loses_a_worker_gives_the_bytes_of_this_machine(
    tmp_path: Path, reference: dict[str, bytes]
) -> None:
    out = tmp_path / "out"
    with cluster(tmp_path, workers=2) as dask_cluster:
        process = begin(
            write_setup(tmp_path), "--out", out, "--scheduler", dask_cluster.address, *RUNS
        )
        wait_until(lambda: stored(out) >= COUNT // 4)
        os.kill(dask_cluster.workers[0].pid, signal.SIGKILL)
        left = COUNT - len(files(out))
        printed, said = process.communicate(timeout=60)
    assert left > 0, "the worker was killed too late"
    assert process.returncode == 0, said
    assert "Traceback" not in said
    assert "Next: fedpace report" in printed
    assert files(out) == reference


def test_clients_spread_over_a_cluster_give_the_bytes_of_this_machine(
    tmp_path: Path, standing: Cluster
) -> None:
    setup = write_setup(tmp_path)
    few = ("--schemes", "uniform,optimal-mean", "--seeds", "1")
    assert run_here(setup, "--out", tmp_path / "here", *few).returncode == 0
    there = ("--scheduler", standing.address, "--spread", "clients")
    done = run_here(setup, "--out", tmp_path / "there", *there, *few)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert files(tmp_path / "there") == files(tmp_path / "here")


def test_spreading_clients_wants_a_scheduler(tmp_path: Path) -> None:
    done = run_here(write_setup(tmp_path), "--out", tmp_path / "out", "--spread", "clients")
    assert done.returncode == 2
    assert "--spread must be runs, or clients with a --scheduler" in done.stderr


def test_a_lost_scheduler_is_one_line_and_the_same_command_goes_on(
    tmp_path: Path, reference: dict[str, bytes]
) -> None:
    out, setup = tmp_path / "out", write_setup(tmp_path)
    with cluster(tmp_path, workers=1) as dask_cluster:
        process = begin(setup, "--out", out, "--scheduler", dask_cluster.address, *RUNS)
        wait_until(lambda: stored(out) >= 2)
        dask_cluster.scheduler.kill()
        _, said = process.communicate(timeout=60)
    assert process.returncode == 2, said
    assert "was lost; what had come back is stored" in said.splitlines()[-1]
    assert "Traceback" not in said
    assert 2 <= len(files(out)) < COUNT
    assert run_here(setup, "--out", out, *RUNS).returncode == 0
    assert files(out) == reference


def test_ctrl_c_leaves_the_cluster_at_once(tmp_path: Path, standing: Cluster) -> None:
    out = tmp_path / "out"
    process = begin(write_setup(tmp_path), "--out", out, "--scheduler", standing.address, *RUNS)
    wait_until(lambda: stored(out) >= 2)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert f"of {COUNT} runs are stored" in said.splitlines()[-1]
    assert "Traceback" not in said


class _Deaf(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        self.request.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 10)


@contextmanager
def web_server() -> Iterator[str]:
    with socketserver.TCPServer(("127.0.0.1", 0), _Deaf) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"tcp://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def refused(tmp_path: Path, address: str) -> str:
    """Return the one line about a scheduler that is none."""
    done = run_here(write_setup(tmp_path), "--out", tmp_path / "out", "--scheduler", address, *RUNS)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    return done.stderr.splitlines()[-1]


def test_an_address_without_a_scheduler_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study_dask, "PATIENCE", 1)  # Dask knocks until it is over
    assert "missing port number" in refused(tmp_path, "localhost")
    assert "cannot be reached: " in refused(tmp_path, "tcp://127.0.0.1:1")
    with web_server() as address:
        assert "what answers there is not Dask" in refused(tmp_path, address)


def test_without_dask_the_extra_is_named(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['distributed'] = None; from fedpace.cli import main;"
        f"sys.argv = ['fedpace', 'run', {str(write_setup(tmp_path))!r}, '--out', "
        f"{str(tmp_path / 'out')!r}, '--scheduler', 'tcp://127.0.0.1:1']; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "pip install 'fedpace[cluster]'" in done.stderr.splitlines()[-1]
