"""A lab under random faults, in short; `benchmarks/soak.py --minutes 120` is the long form."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

from tests.devices.fleet import ROOT, ended, until
from tests.devices.lab.labs import in_namespaces

needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="the clock that jumps needs cc")
KINDS = (
    "clock jumps", "device killed", "device stopped", "disk full", "link cut", "server killed -9",
)  # fmt: skip


@in_namespaces
@needs_cc
@pytest.mark.slow
def test_no_round_is_lost_and_nothing_hangs_under_random_faults() -> None:
    options = ("--devices", "4", "--minutes", "0.15", "--every", "1", "--rounds", "15")
    done = subprocess.run(
        [sys.executable, "benchmarks/soak.py", *options, "--seed", "3"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "problem" not in done.stdout
    assert all(kind in done.stdout for kind in KINDS)  # each came at least once


@pytest.fixture
def soak(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return __import__("soak")


@pytest.mark.parametrize(
    ("waited", "starved", "hangs"),
    [(30, 0, False), (121, 0, True), (330, 300, False), (421, 300, True), (1201, 1200, True)],
)
def test_rounds_that_come_late_because_there_is_no_core_do_not_hang(
    tmp_path: Path, soak: ModuleType, waited: float, starved: float, hangs: bool
) -> None:
    lab = soak.Soak(tmp_path, 4, mode="synchronous", rounds=10, seed=0)
    (tmp_path / "server.log").write_text("No space left on device\n")
    lab.progressed, lab.starved = time.monotonic() - waited, starved
    if not hangs:
        lab.look_at_rounds()
        return
    with pytest.raises(TimeoutError, match=f"{starved} s of them without a core; the server is do"):
        lab.look_at_rounds()


def test_counts_for_how_long_somebody_who_was_ready_had_no_core(
    tmp_path: Path, soak: ModuleType
) -> None:
    lab = soak.Soak(tmp_path, 4, mode="synchronous", rounds=10, seed=0)
    core = {min(os.sched_getaffinity(0))}
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        for process in busy:  # while one of them has it, the other has not
            os.sched_setaffinity(process.pid, core)
            lab.running[f"device-{process.pid}"] = process.pid
        until(lambda: lab.look_at_cores() or lab.starved > 0.2)
    finally:
        ended(busy)
    lab.go_on()
    lab.look_at_cores()
    assert lab.starved == 0.0
