"""What the script makes of its arguments; test_deployment.py runs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.flower.scripts import local_federation


@pytest.mark.parametrize(
    ("setting", "written"),
    [
        ("rounds=10", "rounds=10"),
        ("learning-rate=1e-3", "learning-rate=0.001"),
        ("deadline=.5", "deadline=0.5"),
        ("seed=-1", "seed=-1"),
        ("verbose=true", "verbose=true"),
        ("scheme=optimal-mean", 'scheme="optimal-mean"'),
        ("history=/tmp/1.2.csv", 'history="/tmp/1.2.csv"'),
    ],
)
def test_numbers_are_numbers_and_words_are_quoted(setting: str, written: str) -> None:
    assert local_federation._quoted(setting) == written


def test_files_are_where_the_caller_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert local_federation._from_here("history=a.csv") == f"history={tmp_path}/a.csv"
    assert local_federation._from_here("checkpoint=/x/y.npz") == "checkpoint=/x/y.npz"
    assert local_federation._from_here("checkpoint=") == "checkpoint="
    assert local_federation._from_here("scheme=full") == "scheme=full"
