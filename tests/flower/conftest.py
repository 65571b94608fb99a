"""Flower's tests are left out, with the reason, where Flower is not installed."""

import importlib.util
import os
from pathlib import Path

import pytest

# Before Flower is imported: it reports how it is used otherwise.
os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

HERE = Path(__file__).parent
collect_ignore_glob: list[str] = []
if importlib.util.find_spec("flwr") is None:
    # All but test_missing.py, which says why.
    kept = {"conftest.py", "test_missing.py", "__init__.py"}
    collect_ignore_glob = ["simulated/*", "wrapped/*"]
    collect_ignore_glob += [each.name for each in HERE.glob("*.py") if each.name not in kept]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.flower)
