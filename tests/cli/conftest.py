"""Working directories with a clients file."""

from pathlib import Path

import pytest

from tests.cli.calling import GOOD, run


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with nothing but a good clients.csv in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)
    (tmp_path / "clients.csv").write_text(GOOD)
    return tmp_path


@pytest.fixture
def fleet(folder: Path) -> Path:
    """A working directory with a realistic clients.csv."""
    assert run("example", "clients.csv", "--force", "--clients", 60).returncode == 0
    return folder
