"""Flower's own strategies around our draws, under `flwr run`: simulated, and on a SuperLink."""

from __future__ import annotations

import csv
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from fedpace.report.setups import setups_of
from fedpace.studies.store import Store
from tests.flower.scripts import EXAMPLES, local_federation

pytestmark = pytest.mark.slow
COMPOSED = Path(__file__).parent / "composed"
ALL = ("FedAvg", "FedAdam", "FedYogi", "FedProx", "FedAvgM", "Own")


@pytest.fixture(autouse=True)
def source(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the processes that Flower starts find this fedpace."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2] / "src"))


def run_on(federation: Any, app: Path, *config: str) -> str:
    """Run an app, and return what it logged, without colours."""
    run = federation.submit(app, config)
    with run.stdout:
        text = run.stdout.read()
    run.wait()
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def losses(path: Path) -> list[float]:
    with path.open() as file:
        return [float(row["loss"]) for row in csv.DictReader(file)]


def check(out: Path, names: tuple[str, ...], rounds: int) -> None:
    """Check that every strategy has trained, and that plain FedAvg is a row beside the last."""
    for name in names:
        found = losses(out / f"{name}.csv")
        assert len(found) == rounds + 1
        assert found[-1] < found[0], name
    (setup,) = setups_of(Store(out / names[-1]).runs())
    assert setup.schemes == ["pace", "FedAvg"]
    (plain,) = setup.of("FedAvg")
    assert [row.clients.size for row in plain.history.rows[1:]] == [3] * rounds


def test_strategies_compose_and_two_lines_switch_a_quickstart_in_silence(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Flower's simulation needs flwr[simulation]")
    switched = shutil.copytree(EXAMPLES / "quickstart", tmp_path / "switched")
    server = switched / "quickstart_app" / "server_app.py"
    server.write_text(applied(server.read_text(), documented_switch()))
    with local_federation.LocalFederation(tmp_path / "federation", simulated=3) as federation:
        text = run_on(federation, COMPOSED, f"out={tmp_path}", "nodes=3", "rounds=2")
        assert "the app is over" in text, text[-3000:]
        after = run_on(federation, switched)
        broken = run_on(federation, COMPOSED, f"out={tmp_path}", "broken=true")
        statuses = re.findall(
            r'"status": "([^"]*)"', federation.flwr("list", "here", "--format=json")
        )
    check(tmp_path, ALL, rounds=2)
    assert "fedpace: pace, K = 3, seed 0, server FedAdam of auto" in after
    assert "round 6: {'eval_loss':" in after, after[-3000:]
    assert "Traceback" not in after
    assert not re.findall(r"(?:WARNING|ERROR)\s*:.*fedpace", after)  # Flower and Ray have theirs
    assert "left out: 'error 2: " in broken
    assert "the latest: error 2: Exception ClientAppException occurred. Message: the disk" in broken
    # `flwr run` itself always exits with 0: the run's status tells.
    assert sorted(statuses) == ["finished:completed", "finished:completed", "finished:failed"]


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


def test_strategies_compose_on_a_superlink(tmp_path: Path) -> None:
    names = ("FedAdam", "Own")
    with local_federation.LocalFederation(tmp_path / "federation") as federation:
        for partition in range(3):
            federation.start_node(partition)
        config = (f"out={tmp_path}", "nodes=3", "rounds=1", f"strategies={' '.join(names)}")
        text = run_on(federation, COMPOSED, *config)
    assert "the app is over" in text, text[-3000:]
    check(tmp_path, names, rounds=1)
