"""The examples' apps, whole, in this process; test_deployment.py runs one of them on Flower."""

from __future__ import annotations

import csv
import importlib
import tomllib
from pathlib import Path

import pytest
from flwr.app import Context, RecordDict

from fedpace.studies.store import Store
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


@pytest.mark.parametrize(
    ("scheme", "mode"), [("fedavg", "synchronous"), ("optimal-mean", "auto"), ("pace", "auto")]
)
def test_the_baseline_reaches_its_target_and_is_reported(
    scheme: str, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES / "baseline")
    server, client = (
        importlib.import_module(f"adaptive_sampling.{side}_app").app
        for side in ("server", "client")
    )
    text = (EXAMPLES / "baseline" / "pyproject.toml").read_text()
    settings = tomllib.loads(text)["tool"]["flwr"]["app"]["config"]
    settings |= {"scheme": scheme, "mode": mode, "nodes": 6, "k": 2, "time-scale": 0.0,
                 "target-loss": 1.5, "num-server-rounds": 20, "out": str(tmp_path)}  # fmt: skip
    grid = MemoryGrid(client, lambda *_: 0.0, partitions=range(6))
    for context in grid._contexts.values():
        context.run_config.update(settings)
    server(grid, Context(1, 1, {}, RecordDict(), settings))
    (run,) = Store(tmp_path).runs()
    assert run.scheme == ("FedAvg" if scheme == "fedavg" else scheme)
    assert run.ended == "target loss"
    assert run.history.rows[-1].loss <= 1.5
