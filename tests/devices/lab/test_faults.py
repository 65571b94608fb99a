"""A network that fails: the run goes on."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import pytest

from fedpace.devices.lab.launch import ip_batch
from fedpace.devices.lab.register import Names
from tests.devices.lab.conftest import Up
from tests.devices.lab.labs import begin, finished, in_namespaces, only_run, rounds_done, wait_until

CUT = 4.0
LOSSY = """
table inet lossy {
  chain input { type filter hook input priority 0; numgen random mod 5 == 0 drop; }
  chain output { type filter hook output priority 0; numgen random mod 5 == 0 drop; }
}
"""
needs_nft = pytest.mark.skipif(shutil.which("nft") is None, reason="packet loss needs nftables")


def run(four: Up, out: Path, rounds: int) -> subprocess.Popen[str]:
    more = ("--set", f"stop.rounds={rounds}", "--deadline", 2, "--evaluate-every", 0)
    return begin("run", four.setup, "--schemes", "uniform", *four.options, *more, "--out", out)


@in_namespaces
@pytest.mark.slow
def test_goes_on_through_a_cut_of_the_network(four: Up, tmp_path: Path) -> None:
    bridge = Names(four.name).bridge
    process = run(four, tmp_path, rounds=20)
    try:
        wait_until(lambda: rounds_done(tmp_path) >= 3)
        ip_batch([f"link set {bridge} down"])
        time.sleep(CUT)
    finally:
        ip_batch([f"link set {bridge} up"])
    done = finished(process)
    assert done.returncode == 0, done.stderr
    rows = only_run(tmp_path).history.rows
    assert [row.round for row in rows] == list(range(21))
    missed = [row.round for row in rows if row.missing.size]
    assert missed
    assert missed[-1] < 20, "after the cut all answer again"


@in_namespaces
@needs_nft
@pytest.mark.slow
def test_goes_on_with_a_fifth_of_the_packets_lost(four: Up, tmp_path: Path) -> None:
    spaces = [Names(four.name).namespace(device) for device in range(4)]
    for space in spaces:
        _nft(space, "-f", "-", text=LOSSY)
    try:
        done = finished(run(four, tmp_path, rounds=3))
    finally:
        for space in spaces:
            _nft(space, "delete", "table", "inet", "lossy")
    assert done.returncode == 0, done.stderr
    rows = only_run(tmp_path).history.rows
    assert [row.round for row in rows] == list(range(4))
    assert any(row.clients.size for row in rows)


def _nft(space: str, *arguments: str, text: str = "") -> None:
    command = ["ip", "netns", "exec", space, "nft", *arguments]
    subprocess.run(command, input=text, text=True, check=True, capture_output=True)
