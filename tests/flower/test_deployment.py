"""On a real SuperLink with SuperNodes: TLS, node authentication, and what breaks down."""

from __future__ import annotations

import csv
import math
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.flower.scripts import EXAMPLES, local_federation

PATIENCE = 240.0

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def source(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the processes that Flower starts find this fedpace."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2] / "src"))


def rows(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def lines_until(lines: Iterator[str], text: str) -> list[str]:
    """Read a log up to the line with a text."""
    seen = []
    for line in lines:
        seen.append(line)
        if text in line:
            return seen
    raise AssertionError(f"the log ended without '{text}':\n{''.join(seen[-40:])}")


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.2)


def server_app(federation: ModuleType) -> int:
    """Return the process of the running ServerApp."""
    for process in local_federation.descendants(federation.superlink.pid):
        command = Path(f"/proc/{process}/cmdline").read_bytes()
        if b"flwr-serverapp" in command:
            return int(process)
    raise AssertionError("no ServerApp runs")


def test_a_supernode_is_killed_in_a_round_and_the_serverapp_is_killed_and_resumed(
    tmp_path: Path,
) -> None:
    checkpoint, history = tmp_path / "run.npz", tmp_path / "history.csv"
    config = [
        "rounds=4", "k=3", "scheme=full", "nodes=3", "deadline=25.0", "evaluate-every=0",
        f"checkpoint={checkpoint}", f"history={history}",
    ]  # fmt: skip
    with local_federation.LocalFederation(tmp_path / "federation") as federation:
        for partition, delay in enumerate((0.0, 0.0, 300.0)):
            federation.start_node(partition, delay=delay)
        first = federation.submit(EXAMPLES / "logistic", config)
        assert first.stdout is not None
        lines_until(iter(first.stdout), "fedpace: full, K = 3")
        wait_for(checkpoint.exists)  # the queries are answered, the first round begins
        begun = federation.log("node-2").count("flwr-clientapp")
        wait_for(lambda: federation.log("node-2").count("flwr-clientapp") > begun)
        federation.end_node(2)
        lines_until(iter(first.stdout), "[ROUND 2/4]")
        os.kill(server_app(federation), signal.SIGKILL)
        local_federation.end(first)
        assert checkpoint.exists()
        assert not history.exists()

        second = federation.submit(EXAMPLES / "logistic", config)
        assert second.stdout is not None
        seen = lines_until(iter(second.stdout), "ended after round 4")
        local_federation.end(second)
    assert not any("[ROUND 1/4]" in line for line in seen)
    table = rows(history)
    assert [row["round"] for row in table] == ["0", "1", "2", "3", "4"]
    assert "2" in table[1]["missing"].split()
    assert not any("2" in row["clients"].split() for row in table)
    assert all(row["clients"] for row in table[1:]), table


def test_backend_and_strategy_work_in_flowers_simulation(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Flower's simulation needs flwr[simulation]")
    history = tmp_path / "history.csv"
    with local_federation.LocalFederation(tmp_path / "federation", simulated=3) as federation:
        run = federation.submit(Path(__file__).parent / "simulated", [f"history={history}"])
        lines_until(iter(run.stdout), "the app is over")
        local_federation.end(run)
    table = rows(history)
    assert [row["phase"] for row in table] == ["warm-up"] * 4 + ["train"] * 3
    assert float(table[-1]["loss"]) < float(table[1]["loss"])
    steps = rows(tmp_path / "stream.csv")
    assert [row["round"] for row in steps] == [str(step) for step in range(9)]
    assert all(len(row["clients"].split()) == 1 for row in steps[1:])
    known = [loss for loss in (float(row["loss"]) for row in steps) if not math.isnan(loss)]
    assert known[-1] < known[0]


def test_on_a_superlink_nobody_waits_for_the_slow_without_a_barrier(tmp_path: Path) -> None:
    checkpoint, history = tmp_path / "run.npz", tmp_path / "history.csv"
    config = [
        "rounds=12", "k=2", "scheme=uniform", "mode=asynchronous", "buffer=1", "nodes=3",
        "deadline=100.0", "evaluate-every=0", f"checkpoint={checkpoint}", f"history={history}",
    ]  # fmt: skip
    with local_federation.LocalFederation(tmp_path / "federation") as federation:
        for partition, delay in enumerate((0.0, 0.0, 25.0)):
            federation.start_node(partition, delay=delay)
        first = federation.submit(EXAMPLES / "logistic", config)
        assert first.stdout is not None
        lines_until(iter(first.stdout), "[ROUND 4/12]")
        os.kill(server_app(federation), signal.SIGKILL)
        local_federation.end(first)
        second = federation.submit(EXAMPLES / "logistic", config)
        assert second.stdout is not None
        seen = lines_until(iter(second.stdout), "ended after round 12")
        local_federation.end(second)
    assert not any("[ROUND 1/12]" in line for line in seen)
    table = rows(history)
    assert [row["round"] for row in table] == [str(step) for step in range(13)]
    assert all(len((row["clients"] + " " + row["missing"]).split()) == 1 for row in table[1:])
    fast = [row for row in table[1:] if row["clients"] in ("0", "1")]
    assert len(fast) >= 8  # the slow one has a slot, and the others go on
