"""On a real SuperLink with SuperNodes: TLS, node authentication, and what breaks down."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.flower.scripts import (
    APPS,
    EXAMPLES,
    check_wrapped,
    lines_until,
    local_federation,
    rows_of,
    run_on,
)

PATIENCE = 600.0
Third: TypeAlias = Callable[[float], Any]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def link(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Return a federation with two quick SuperNodes; tests add the third."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[2] / "src"))
        folder = tmp_path_factory.mktemp("superlink")
        with local_federation.LocalFederation(folder / "federation") as federation:
            for partition in range(2):
                federation.start_node(partition)
            yield federation


@pytest.fixture
def third(link: Any) -> Iterator[Third]:
    """Return a function that starts the third SuperNode, with a delay, and returns the link."""

    def start(delay: float) -> Any:
        link.start_node(2, delay=delay)
        return link

    yield start
    if 2 in link.nodes:  # a SuperNode that ends by itself can be started again at once
        node = link.nodes[2]
        started = local_federation.descendants(node.pid)
        node.terminate()
        node.wait(PATIENCE)
        link.end_node(2)
        for process in started:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.2)


def server_app(federation: Any) -> int:
    """Return the process of the running ServerApp."""
    for process in local_federation.descendants(federation.superlink.pid):
        command = Path(f"/proc/{process}/cmdline").read_bytes()
        if b"flwr-serverapp" in command:
            return int(process)
    raise AssertionError("no ServerApp runs")


def test_strategies_are_wrapped_on_a_superlink(third: Third, tmp_path: Path) -> None:
    names = ("FedAdam", "Own")
    federation = third(0.0)
    config = (f"out={tmp_path}", "nodes=3", "rounds=1", f"strategies={' '.join(names)}")
    text = run_on(federation, APPS / "wrapped", *config)
    assert "the app is over" in text, text[-3000:]
    check_wrapped(tmp_path, names, rounds=1)


def test_on_a_superlink_asynchronous_training_does_not_wait_for_the_slow(
    third: Third, tmp_path: Path
) -> None:
    checkpoint, history = tmp_path / "run.npz", tmp_path / "history.csv"
    config = [
        "rounds=12", "k=2", "scheme=uniform", "mode=asynchronous", "buffer=1", "nodes=3",
        "deadline=100.0", "evaluate-every=0", f"checkpoint={checkpoint}", f"history={history}",
    ]  # fmt: skip
    federation = third(25.0)
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
    table = rows_of(history)
    assert [row["round"] for row in table] == [str(step) for step in range(13)]
    assert all(len((row["clients"] + " " + row["missing"]).split()) == 1 for row in table[1:])
    fast = [row for row in table[1:] if row["clients"] in ("0", "1")]
    assert len(fast) >= 8  # the slow one has a slot, and the others go on


def test_a_supernode_is_killed_in_a_round_and_the_serverapp_is_killed_and_resumed(
    third: Third, tmp_path: Path
) -> None:
    checkpoint, history = tmp_path / "run.npz", tmp_path / "history.csv"
    config = [
        "rounds=4", "k=3", "scheme=full", "nodes=3", "deadline=25.0", "evaluate-every=0",
        f"checkpoint={checkpoint}", f"history={history}",
    ]  # fmt: skip
    federation = third(300.0)
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
    table = rows_of(history)
    assert [row["round"] for row in table] == ["0", "1", "2", "3", "4"]
    assert "2" in table[1]["missing"].split()
    assert not any("2" in row["clients"].split() for row in table)
    assert all(row["clients"] for row in table[1:]), table
