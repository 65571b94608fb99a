"""The examples' apps, whole, in this process; test_deployment.py runs one of them on Flower."""

from __future__ import annotations

import csv
import importlib
import tomllib
from pathlib import Path

import pytest
from flwr.app import Context, RecordDict

from tests.flower.memory_grid import MemoryGrid
from tests.flower.scripts import EXAMPLES


@pytest.mark.parametrize("name", ["logistic", "lenet"])
def test_an_app_learns(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES / name)
    server, client = (
        importlib.import_module(f"{name}_app.{side}_app").app for side in ("server", "client")
    )
    text = (EXAMPLES / name / "pyproject.toml").read_text()
    settings = tomllib.loads(text)["tool"]["flwr"]["app"]["config"]
    history = tmp_path / "history.csv"
    settings |= {"rounds": 8, "warm-up": 4, "evaluate-every": 1, "history": str(history)}
    grid = MemoryGrid(client, lambda *_: 0.0, partitions=range(4))
    for context in grid._contexts.values():
        context.run_config.update(settings)
    server(grid, Context(1, 1, {}, RecordDict(), settings))
    with history.open() as file:
        rows = list(csv.DictReader(file))
    assert [row["phase"] for row in rows] == ["warm-up"] * 5 + ["train"] * 4
    assert float(rows[-1]["loss"]) < float(rows[1]["loss"])
    assert all(row["grad_norms"] for row in rows[1:])
