"""The app of docs/start/flower.md trains, and does what the page says of it."""

import csv
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict

from fedpace.flower import AdaptiveSampling
from tests.flower.memory_grid import MemoryGrid
from tests.pages import ROOT, blocks


@pytest.mark.flower
def test_the_slow_clients_of_the_start_page_come_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "docs" / "start" / "flower.md").read_text(encoding="utf-8")
    (app,) = (block.text for block in blocks(page) if block.file == "app.py")
    names: dict[str, Any] = {"__name__": "app"}
    exec(compile(app.replace("time.sleep(", "float("), "app.py", "exec"), names)
    monkeypatch.chdir(tmp_path)
    grid = MemoryGrid(names["client"], lambda me, _: 0.5 if me >= 4 else 0.05, partitions=range(6))
    names["AdaptiveSampling"] = partial(AdaptiveSampling, clock=grid.clock)
    names["server"](grid, Context(1, 0, {}, RecordDict(), {}))
    rows = list(csv.DictReader((tmp_path / "history.csv").read_text().splitlines()))
    assert len(rows) == 1 + 12  # the start, and every round
    drawn = [asked for kind, asked in grid.asked if kind.startswith("train")]
    assert [4, 5] in drawn[3:]
    assert not [each for each in drawn[4:] if len({client >= 4 for client in each}) == 2]
