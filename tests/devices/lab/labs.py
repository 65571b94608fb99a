"""Small labs for tests: what they run, and how to look at what is left of them."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedpace.devices.lab.lab import remains_of
from fedpace.studies.store import Store, StoredRun
from tests.cli.calling import Done, command, run

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
times = "uniform:0.03:0.1"

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
PATIENCE = 600.0

in_namespaces = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("tc") is None,
    reason="namespaces need root and iproute2",
)


def write_setup(folder: Path) -> Path:
    path = folder / "four.toml"
    path.write_text(SETUP, encoding="utf-8")
    return path


# A user's own data and model, for two devices.
OWN = """
import numpy as np
from fedpace.models.networks import Logistic

def make_clients():
    every = np.random.default_rng(0).normal(size=(2, 40, 500))
    return [(x, (x[:, 0] > 0).astype(int)) for x in every]

def make_model():
    return Logistic(500, 2)
"""


def write_own(folder: Path) -> Path:
    (folder / "mine.py").write_text(OWN, encoding="utf-8")
    data = 'data = "mine.py:make_clients"\nmodel = "mine.py:make_model"\n'
    parts = SETUP.partition("[devices]")
    text = f"{data}[devices]{parts[2]}".replace("k = 2", "k = 1")
    (folder / "mine.toml").write_text(text, encoding="utf-8")
    return folder / "mine.toml"


def lab_name(part: str) -> str:
    """Return a name that no other process of these tests uses."""
    return f"{part}-{os.getpid()}"


def lab(*args: object) -> Done:
    """Run `fedpace lab` in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "100")
        return run("lab", *args)


def begin(*args: object) -> subprocess.Popen[str]:
    """Start `fedpace lab` in a process of its own."""
    return subprocess.Popen(
        command("lab", *args),
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


def only_run(directory: Path) -> StoredRun:
    (run,) = Store(directory).runs()
    return run


def nothing_left(name: str, state: Path) -> bool:
    return not remains_of(name, state) and not (state / name).exists()


def rounds_done(directory: Path) -> int:
    """Return how many rounds the only checkpoint in a directory of runs holds."""
    with contextlib.suppress(ValueError, FileNotFoundError):  # none yet, or not any more
        (path,) = (directory / "checkpoints").glob("*.npz")
        with np.load(path) as file:
            return int(file["rows-round"][-1])
    return 0


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)
