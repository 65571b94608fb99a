"""A lab under random faults, in short; `benchmarks/soak.py --minutes 120` is the long form."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from tests.lab.labs import in_namespaces
from tests.network.fleet import ROOT

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
