"""A study that takes a moment, and what the tests do with its files."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fedpace.__main__ import main
from fedpace.studies.study import Study, load_study

SETUP = """
name = "tiny"
title = "A dozen clients"

[data]
kind = "synthetic"
sizes = "power-law"
clients = 12
samples = 600
smallest = 10

[training]
k = 3
local_steps = 3
batch = 4

[pilots]
thresholds = [2.0, 1.8]
rounds = 4

[stop]
loss = 1.3
rounds = 10
"""
# Makes a run last a few tenths of a second, so that it can be interrupted.
LONG = ("stop.loss=none", "stop.rounds=40", "training.local_steps=40")
# Seconds, to end a hang only.
PATIENCE = 600.0


def write_setup(folder: Path) -> Path:
    path = folder / "tiny.toml"
    path.write_text(SETUP, encoding="utf-8")
    return path


def tiny_study(folder: Path, *overrides: str) -> Study:
    return load_study(str(write_setup(folder)), overrides)


def files(directory: Path) -> dict[str, bytes]:
    """Return everything in the store, hidden files too: a run's bytes are all of its arrays."""
    folder = directory / "runs"
    contents = {}
    for path in folder.iterdir() if folder.is_dir() else ():
        with contextlib.suppress(FileNotFoundError):  # moved while we look
            contents[path.name] = path.read_bytes()
    return contents


def stored(directory: Path) -> int:
    """Return how many runs are stored."""
    return sum(name.endswith(".npz") for name in files(directory))


def command(*args: object) -> list[str]:
    return [sys.executable, "-m", "fedpace", "run", *map(str, args)]


def begin(*args: object) -> subprocess.Popen[str]:
    """Start `fedpace run` in a session of its own, as a terminal would."""
    return subprocess.Popen(
        command(*args),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(*args: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*args), capture_output=True, text=True, timeout=PATIENCE, check=False
    )


def run_here(*args: object) -> subprocess.CompletedProcess[str]:
    """Run `fedpace run` in this process, which saves the start of another."""
    out, err = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        patch.setattr(sys, "argv", ["fedpace", "run", *map(str, args)])
        with pytest.raises(SystemExit) as ended:
            main()
    assert isinstance(ended.value.code, int)
    return subprocess.CompletedProcess((), ended.value.code, out.getvalue(), err.getvalue())


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def session_is_empty(session: int) -> bool:
    """Tell whether no process of a session is left."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                if os.getsid(int(folder.name)) == session:
                    return False
            except ProcessLookupError:
                continue
    return True
