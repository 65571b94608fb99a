"""Small labs for tests: what they run, and how to look at what is left of them."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fedpace.cli import main
from fedpace.lab.down import left_of
from fedpace.studies.store import Run, Store

# Twenty kilobytes of model: enough packets for a link to be shaped.
SETUP = """
name = "four"
title = "Four clients"

[data]
kind = "synthetic"
sizes = "power-law"
clients = 4
samples = 400
smallest = 20
features = 500
seed = 1

[devices]
times = "uniform:0.05:0.1"

[training]
k = 2
local_steps = 3
batch = 4
schedule = "inverse:0.001"

[pilots]
thresholds = [2.0, 1.8]
rounds = 3

[stop]
rounds = 6
"""
# The same with two devices, where their number does not matter: half the processes to start.
TWO = ("--set", "data.clients=2")
PATIENCE = 90.0

in_namespaces = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("tc") is None,
    reason="namespaces need root and iproute2",
)


def write_setup(folder: Path) -> Path:
    path = folder / "four.toml"
    path.write_text(SETUP, encoding="utf-8")
    return path


def lab_name(part: str) -> str:
    """Return a name that no other process of these tests uses."""
    return f"{part}-{os.getpid()}"


def lab(*args: object) -> subprocess.CompletedProcess[str]:
    """Run `fedpace lab` in this process."""
    out, err = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        patch.setattr(sys, "argv", ["fedpace", "lab", *map(str, args)])
        patch.setenv("COLUMNS", "100")
        with pytest.raises(SystemExit) as ended:
            main()
    assert isinstance(ended.value.code, int)
    return subprocess.CompletedProcess((), ended.value.code, out.getvalue(), err.getvalue())


def begin(*args: object) -> subprocess.Popen[str]:
    """Start `fedpace lab` in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "fedpace", "lab", *map(str, args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finished(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    try:
        out, err = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
    return subprocess.CompletedProcess((), process.returncode, out, err)


def only_run(directory: Path) -> Run:
    (run,) = Store(directory).runs()
    return run


def nothing_left(name: str, state: Path) -> bool:
    return not left_of(name, state) and not (state / name).exists()


def rounds_done(directory: Path) -> int:
    """Return how many rounds the only checkpoint in a directory of runs holds."""
    from fedpace.rounds.checkpoint import Checkpoint

    for path in (directory / "checkpoints").glob("*.npz"):
        with contextlib.suppress(Exception):
            import json

            import numpy as np

            with np.load(path) as file:
                about = json.loads(str(file["about"]))["about"]
            found = Checkpoint(path, about).resume("train")
            return 0 if found is None else found.state.round
    return 0


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)
