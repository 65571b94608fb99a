"""The examples' script, imported, and how to run apps by it."""

from __future__ import annotations

import csv
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from fedpace.report.setups import setups_of
from fedpace.studies.store import Store

EXAMPLES = Path(__file__).parents[2] / "examples" / "flower"


def loaded(path: Path) -> ModuleType:
    """Import a script."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


local_federation = loaded(EXAMPLES / "local_federation.py")
APPS = Path(__file__).parent


def rows_of(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file."""
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


def run_on(federation: Any, app: Path, *config: str) -> str:
    """Run an app, and return what it logged, without colours."""
    run = federation.submit(app, config)
    with run.stdout:
        text = run.stdout.read()
    run.wait()
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def check_wrapped(out: Path, names: tuple[str, ...], rounds: int) -> None:
    """Check that every strategy has trained, and that plain FedAvg is a row beside the last."""
    for name in names:
        found = [float(row["loss"]) for row in rows_of(out / f"{name}.csv")]
        assert len(found) == rounds + 1
        assert found[-1] < found[0], name
    (setup,) = setups_of(Store(out / names[-1]).runs())
    assert setup.schemes == ["pace", "FedAvg"]
    (plain,) = setup.of("FedAvg")
    assert [row.clients.size for row in plain.history.rows[1:]] == [3] * rounds
