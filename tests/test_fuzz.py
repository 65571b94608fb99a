"""Damaged and crafted input is refused with the errors that callers expect, in short."""

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def fuzz(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    pytest.importorskip("grpc")
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return __import__("fuzz")


def test_every_decoder_raises_only_what_it_says(tmp_path: Path, fuzz: ModuleType) -> None:
    names = []
    for name, target in fuzz.targets(tmp_path):
        most = 10 if name in ("run", "checkpoint") else 100
        tried, refused, found = fuzz.fuzz(target, np.inf, np.random.default_rng(1), most)
        assert (name, found) == (name, [])
        assert 0 < refused <= tried == most, name
        names.append(name)
    assert len(names) == 10
