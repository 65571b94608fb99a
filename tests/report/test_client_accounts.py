"""What the page says of each client of a measured run."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpace import Profile
from fedpace.report.clients import accounts, html_accounts
from fedpace.studies.store import StoredRun
from fedpace.training.history import History, Row

from .made import made_run, small_study

ROUNDS: tuple[tuple[list[Any], ...], ...] = (
    # clients, weights, agreement, missing, refused
    ([0, 2], [0.5, 0.7], [0.5, -0.5], [1], [1]),
    ([0], [0.3], [math.nan], [], []),
    ([0, 1], [0.4, 0.6], [1.0, 1.0], [], []),
    ([], [], [], [2], []),
)


def measured(folder: Path, *overrides: str) -> StoredRun:
    rows = [Row("train", 0, 0.0, 2.0, 1.0, 0.0, 0.0)]
    for index, (clients, weights, agreement, missing, refused) in enumerate(ROUNDS, start=1):
        ones = np.ones(len(clients))
        rows.append(
            Row(
                "train", index, 1.0 * index, 1.9, 0.5, 1.0, 1.0,
                np.array(clients, dtype=np.int64), np.array(weights), ones, ones,
                agreement=np.array(agreement), missing=np.array(missing, dtype=np.int64),
                refused=np.array(refused, dtype=np.int64),
            )
        )  # fmt: skip
    run = made_run(small_study(folder, *overrides), "uniform", 0, [])
    profile = Profile([0.5, 0.3, 0.2], np.ones(3), np.ones(3))
    return replace(run, history=History(rows), profile=profile)


def test_every_client_has_an_account(tmp_path: Path) -> None:
    run = measured(tmp_path)
    found = accounts(run)
    expected = [(0, 0.5, 3, 0.75, 0, 0, 0.4, 0.75), (1, 0.3, 2, 0.5, 1, 1, 0.6, 1.0)]
    assert found[0] == pytest.approx(expected[0])
    assert found[1] == pytest.approx(expected[1])
    assert found[2] == pytest.approx((2, 0.2, 2, 0.5, 1, 0, 0.7, -0.5))


def test_the_page_shows_it_for_measured_runs_only(tmp_path: Path) -> None:
    assert html_accounts(measured(tmp_path)) == ""
    text = html_accounts(measured(tmp_path, "network.how=devices"))
    assert "Each client of uniform, seed 0" in text
    line = (
        "<td>0</td><td>50.0 %</td><td>3</td><td>75.0 %</td>"
        "<td>0</td><td>0</td><td>0.400</td><td>+0.75</td>"
    )
    assert line in text
    assert text.count("<tr>") == 4
