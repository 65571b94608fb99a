"""The same runs through a real Dask scheduler and worker processes on loopback."""

import os
import signal
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedpace
from fedpace.models.numpy_model import NumpyModel
from fedpace.studies.runner import run_study
from fedpace.studies.store import Store

from .clusters import Cluster, cluster
from .test_grid import GRID
from .tiny import (
    LONG,
    PATIENCE,
    begin,
    files,
    run_here,
    stored,
    tiny_study,
    wait_until,
    write_setup,
)

pytest.importorskip("distributed")
needs_files = pytest.mark.skipif(
    not os.environ.get("FEDPACE_DATA"), reason="FEDPACE_DATA names no folder with the images"
)
RUNS = ("--schemes", "uniform,optimal-mean", "--seeds", "4", "--set", LONG[0], "--set", LONG[1])
COUNT = 8


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("reference")
    assert run_here(write_setup(folder), "--out", folder / "out", *RUNS).returncode == 0
    return files(folder / "out")


def test_a_cluster_that_loses_a_worker_gives_the_bytes_of_this_machine(
    tmp_path: Path, reference: dict[str, bytes]
) -> None:
    out = tmp_path / "out"
    with cluster(tmp_path, workers=2) as there:
        process = begin(write_setup(tmp_path), "--out", out, "--scheduler", there.address, *RUNS)
        wait_until(lambda: stored(out) >= COUNT // 4)
        os.kill(there.workers[0].pid, signal.SIGKILL)
        left = COUNT - len(files(out))
        printed, said = process.communicate(timeout=PATIENCE)
    assert left > 0, "the worker was killed too late"
    assert process.returncode == 0, said
    assert "Traceback" not in said
    assert "Next: fedpace report" in printed
    assert files(out) == reference


def test_an_own_model_goes_to_workers_that_do_not_have_it(
    two_workers: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    power = 3  # functions of this one alone, and what they close over

    def losses(w: Any, x: Any, y: Any) -> Any:
        return np.abs(x @ w - y) ** power

    def gradient(w: Any, x: Any, y: Any) -> Any:
        off = x @ w - y
        return x.T @ (power * np.abs(off) ** (power - 1) * np.sign(off)) / len(y)

    rng = np.random.default_rng(0)
    clients = [(x := rng.normal(size=(20, 3)), x[:, 0]) for _ in range(4)]

    def compared(out: str, scheduler: str | None) -> list[float]:
        result = fedpace.compare(
            model=NumpyModel(np.zeros(3), gradient, losses), clients=clients, schemes="uniform",
            times=np.arange(1.0, 5.0), seeds=1, k=2, rounds=3, local_steps=3, processes=1,
            out=tmp_path / out, scheduler=scheduler,
        )  # fmt: skip
        return [row.loss for run in result.runs for row in run.history.rows]

    found = compared("there", two_workers.address)
    assert found == compared("here", None)
    assert found[-1] < found[0]
    capsys.readouterr()


def test_a_grid_runs_on_a_cluster_and_goes_on(tmp_path: Path, two_workers: Cluster) -> None:
    path, out = tmp_path / "grid.toml", tmp_path / "out"
    path.write_text(GRID, encoding="utf-8")
    schemes = "fedbuff,pisces,weighted"
    more = ("--schemes", schemes, "--seeds", "1", "--set", "training.mode=asynchronous")
    for _ in range(2):
        done = run_here(path, "--out", out, "--scheduler", two_workers.address, *more)
        assert done.returncode == 0, done.stderr
        assert len(list(Store(out).runs())) == 2 * 3
    here = tmp_path / "here"
    assert run_here(path, "--out", here, *more).returncode == 0
    assert files(out) == files(here)


@pytest.mark.slow
@needs_files
def test_the_field_cut_short_runs_on_a_cluster_and_goes_on(
    tmp_path: Path, two_workers: Cluster
) -> None:
    short = (
        "stop.rounds=2", "training.k=2", "training.local_steps=2", "devices.correlation=1.0",
        "devices.availability=daily:0.5:288",
    )  # fmt: skip
    sets = [word for each in short for word in ("--set", each)]

    def command(schemes: str, out: str, *more: str) -> int:
        args = ("field", "--schemes", schemes, "--seeds", "1", "--out", tmp_path / out, *more)
        return run_here(*args, *sets).returncode

    there = ("--scheduler", two_workers.address)
    assert command("uniform", "there", *there) == 0
    first = files(tmp_path / "there")
    tasks = {run.study.name for run in Store(tmp_path / "there").runs()}
    assert tasks == {"simulation-1", "prototype-simulated", "small-cnn"}
    assert command("uniform,pace,tifl", "there", *there) == 0
    found = files(tmp_path / "there")
    assert len(found) == 9
    assert found.items() >= first.items()
    assert command("uniform,pace,tifl", "here", "--processes", "1") == 0
    assert found == files(tmp_path / "here")


OWN = """
from fedpace import Average, WithReplacement

def squared(profile, k, *, max_weight=None):
    q = profile.weights ** 2
    return WithReplacement(q / q.sum(), k, profile.weights)

class Halving(Average):
    def apply(self, state, parameters, draw, reply):
        return parameters + draw.weights @ reply.updates / 2, state
"""


def test_workers_that_do_not_have_a_users_file_give_the_bytes_of_this_machine(
    two_workers: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own.py").write_text(OWN, encoding="utf-8")
    monkeypatch.chdir(tmp_path)  # the workers are elsewhere
    study = tiny_study(tmp_path, "training.server=own.py:Halving")
    schemes = ["own.py:squared", "uniform"]
    assert run_study(study, schemes, [0], tmp_path / "here") == (2, ())
    done = run_study(study, schemes, [0], tmp_path / "there", scheduler=two_workers.address)
    assert done == (2, ())
    assert files(tmp_path / "there") == files(tmp_path / "here")


def test_a_changed_file_is_another_scheme_to_the_same_workers(
    two_workers: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    study = tiny_study(tmp_path)
    for power in ("2", "3"):
        (tmp_path / "own.py").write_text(OWN.replace("** 2", f"** {power}"), encoding="utf-8")
        done = run_study(
            study, ["own.py:squared"], [0], tmp_path / "out", scheduler=two_workers.address
        )
        assert done == (1, ())
    one, other = Store(tmp_path / "out").runs()
    assert one.q is not None
    assert other.q is not None
    assert (one.q != other.q).any()


def test_a_lost_scheduler_is_one_line_and_the_same_command_goes_on(
    tmp_path: Path, reference: dict[str, bytes]
) -> None:
    out, setup = tmp_path / "out", write_setup(tmp_path)
    with cluster(tmp_path, workers=1) as there:
        process = begin(setup, "--out", out, "--scheduler", there.address, *RUNS)
        wait_until(lambda: stored(out) >= 2)
        there.scheduler.kill()
        _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 2, said
    assert "was lost; finished runs are stored" in said.splitlines()[-1]
    assert "Traceback" not in said
    assert 2 <= len(files(out)) < COUNT
    assert run_here(setup, "--out", out, *RUNS).returncode == 0
    assert files(out) == reference


def test_ctrl_c_leaves_the_cluster_at_once(two_workers: Cluster, tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = begin(write_setup(tmp_path), "--out", out, "--scheduler", two_workers.address, *RUNS)
    wait_until(lambda: stored(out) >= 1)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=PATIENCE)
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


def test_an_address_without_a_scheduler_is_one_line(tmp_path: Path) -> None:
    assert "missing port number" in refused(tmp_path, "localhost")
    assert "cannot be reached: " in refused(tmp_path, "tcp://127.0.0.1:1")
    with web_server() as address:
        assert "what answers there is not Dask" in refused(tmp_path, address)


def test_without_dask_the_extra_is_named(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['distributed'] = None; from fedpace.__main__ import main;"
        f"sys.argv = ['fedpace', 'run', {str(write_setup(tmp_path))!r}, '--out', "
        f"{str(tmp_path / 'out')!r}, '--scheduler', 'tcp://127.0.0.1:1']; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "pip install 'fedpace[cluster]'" in done.stderr.splitlines()[-1]
