"""Under `flwr run` in Flower's simulation: backend, strategy, and Flower's own strategies."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.flower.scripts import (
    APPS,
    EXAMPLES,
    check_wrapped,
    local_federation,
    rows_of,
    run_on,
)

pytestmark = pytest.mark.slow
ALL = ("FedAvg", "FedAdam", "FedYogi", "FedProx", "FedAvgM", "Own")


@pytest.fixture(scope="module")
def simulation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Return Flower's simulation of three clients."""
    pytest.importorskip("ray", reason="Flower's simulation needs flwr[simulation]")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[2] / "src"))
        folder = tmp_path_factory.mktemp("simulation")
        with local_federation.LocalFederation(folder / "federation", simulated=3) as federation:
            yield federation


def test_backend_and_strategy_work_in_flowers_simulation(simulation: Any, tmp_path: Path) -> None:
    history = tmp_path / "history.csv"
    text = run_on(simulation, APPS / "simulated", f"history={history}")
    assert "the app is over" in text, text[-3000:]
    table = rows_of(history)
    assert [row["phase"] for row in table] == ["warm-up"] * 4 + ["train"] * 3
    assert float(table[-1]["loss"]) < float(table[1]["loss"])
    steps = rows_of(tmp_path / "asynchronous.csv")
    assert [row["round"] for row in steps] == [str(step) for step in range(9)]
    assert all(len(row["clients"].split()) == 1 for row in steps[1:])
    known = [loss for loss in (float(row["loss"]) for row in steps) if not math.isnan(loss)]
    assert known[-1] < known[0]


def test_strategies_are_wrapped_and_two_lines_switch_a_quickstart_in_silence(
    simulation: Any, tmp_path: Path
) -> None:
    switched = shutil.copytree(EXAMPLES / "quickstart", tmp_path / "switched")
    server = switched / "quickstart_app" / "server_app.py"
    server.write_text(applied(server.read_text(), documented_switch()))
    federation = simulation
    before = federation.flwr("list", "here", "--format=json").count('"status": ')
    text = run_on(federation, APPS / "wrapped", f"out={tmp_path}", "nodes=3", "rounds=2")
    assert "the app is over" in text, text[-3000:]
    after = run_on(federation, switched)
    broken = run_on(federation, APPS / "wrapped", f"out={tmp_path}", "broken=true")
    statuses = re.findall(r'"status": "([^"]*)"', federation.flwr("list", "here", "--format=json"))
    check_wrapped(tmp_path, ALL, rounds=2)
    assert "fedpace: pace, K = 3, seed 0, server FedAdam of auto" in after
    assert "round 6: {'eval_loss':" in after, after[-3000:]
    assert "Traceback" not in after
    assert not re.findall(r"(?:WARNING|ERROR)\s*:.*fedpace", after)  # Flower and Ray have theirs
    assert "left out: 'error 2: " in broken
    assert "the latest: error 2: Exception ClientAppException occurred. Message: the disk" in broken
    # `flwr run` itself always exits with 0: the run's status tells.
    assert sorted(statuses) == ["finished:completed"] * (before + 2) + ["finished:failed"]


def documented_switch() -> list[tuple[str, str]]:
    """Return the lines that docs/flower.md takes out and puts in, for the quickstart."""
    page = (Path(__file__).parents[2] / "docs" / "flower.md").read_text()
    (block,) = re.findall(r"```diff\n([^`]*FedAdam\(fraction_train[^`]*)```", page)
    changed, taken = [], ""
    for line in block.splitlines():
        if line.startswith("-"):
            taken = line[1:]
        elif line.startswith("+"):
            changed.append((taken, line[1:]))
            taken = ""
        else:
            taken = ""
    assert len(changed) == 2  # two lines
    return changed


def applied(text: str, changes: list[tuple[str, str]]) -> str:
    """Return a file with some lines exchanged; what replaces none goes below Flower's imports."""
    for old, new in changes:
        anchor = old or "from flwr.serverapp.strategy import FedAdam\n"
        assert text.count(anchor) == 1
        text = text.replace(anchor, new if old else f"{anchor}{new}\n")
    return text
