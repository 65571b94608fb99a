"""What runs cost, from rows made by hand; and the tables that show it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpace.report.setups import setups_of
from fedpace.report.study_tables import cost_columns, csv_text, html_costs, markdown
from fedpace.report.summary import summarise
from fedpace.report.time_to_target import costs_of
from fedpace.studies.build import run_one
from fedpace.studies.store import Store, StoredRun
from fedpace.training.history import History, Row

from .made import START, made_run, small_study


def line(phase: str, index: int, seconds: float, loss: float, **more: Any) -> Row:
    return Row(phase, index, seconds, loss, 0.5, 0.0, 0.0)._replace(**more)


def run_of(folder: Path, *rows: Row, scheme: str = "uniform", seed: int = 0) -> StoredRun:
    run = made_run(small_study(folder), scheme, seed, [START])
    return replace(run, history=History([*run.history.rows, *rows]))


def test_everything_up_to_the_target_counts_and_nothing_after(tmp_path: Path) -> None:
    worked: dict[str, Any] = {
        "clients": np.array([0, 1]), "client_seconds": np.array([1.0, 3.0]), "device_seconds": 8.0,
        "wasted_seconds": 4.0, "traffic_down": 2_000_000, "traffic_up": 1_000_000,
    }  # fmt: skip
    rows = (
        line("train", 1, 4.0, 1.9, **worked),
        line("train", 2, 8.0, 1.7, **worked, slow_accuracy=0.2),  # reached: the target is 1.75
        line("train", 3, 12.0, 1.6, **worked, slow_accuracy=0.3),
    )
    found = costs_of([run_of(tmp_path, *rows)])
    values = {name: each.value for name, each in found._asdict().items()}
    assert values == pytest.approx(
        {
            "device_seconds": 16.0, "updates": 4.0, "wasted": 0.5, "down": 4.0, "up": 2.0,
            "busiest": 0.75, "staleness": math.nan, "accuracy": 0.5, "slow_accuracy": 0.3,
        },
        nan_ok=True,
    )  # fmt: skip


def test_the_pilot_that_was_not_gone_on_with_is_thrown_away(tmp_path: Path) -> None:
    found = costs_of(
        [
            run_of(
                tmp_path,
                line("pilot-uniform", 1, 1.0, 1.95, device_seconds=5.0),
                line("pilot-weighted", 1, 2.0, 1.9, device_seconds=7.0, wasted_seconds=1.0),
                line("train", 2, 3.0, 1.7, device_seconds=8.0),
            )
        ]
    )
    assert found.wasted.value == pytest.approx((5.0 + 1.0) / 20.0)  # training has the better model


def test_runs_that_counted_nothing_have_no_table(tmp_path: Path) -> None:
    runs = [made_run(small_study(tmp_path), "uniform", 0, [START, ("train", 1, 4.0, 1.7, 0.5)])]
    summary = summarise(setups_of(runs)[0])
    assert math.isnan(summary.rows[0].costs.device_seconds.value)
    assert cost_columns(summary) == []
    assert html_costs(summary) == ""
    assert "device-seconds" not in markdown([summary])


def test_real_runs_are_counted_in_markdown_html_and_csv(tmp_path: Path) -> None:
    study = small_study(tmp_path)
    for scheme in ("uniform", "pow-d", "ocs"):
        Store(tmp_path).save(study, scheme, 0, run_one(study, scheme, 0))
    summary = summarise(setups_of(Store(tmp_path).runs())[0])
    uniform, candidates, everyone = summary.rows
    assert (uniform.scheme, candidates.scheme, everyone.scheme) == ("uniform", "pow-d", "ocs")
    assert uniform.costs.wasted.value == 0
    assert 0 < candidates.costs.wasted.value < 1
    assert everyone.costs.down.value > everyone.costs.up.value
    assert 0 <= uniform.costs.slow_accuracy.value <= 1
    text = markdown([summary])
    assert "| pow-d (biased) |" in text
    assert "of the slowest fifth" in text
    assert "does not weight updates so that their mean is that of full" in text
    assert "pow-d (biased)" in html_costs(summary)
    header = csv_text([summary]).splitlines()[0]
    assert "device_seconds_low" in header
    assert "slow_accuracy" in header


def test_the_interval_of_a_share_stays_a_share(tmp_path: Path) -> None:
    runs = [
        run_of(
            tmp_path,
            line(
                "train", 1, 4.0, 1.7, device_seconds=8.0, wasted_seconds=wasted, slow_accuracy=slow
            ),
            seed=seed,
        )
        for seed, (wasted, slow) in enumerate([(0.0, 0.9), (4.0, 0.2)])
    ]
    found = costs_of(runs)
    assert (found.wasted.low, found.wasted.high) == (0.0, 1.0)
    assert (found.slow_accuracy.low, found.slow_accuracy.high) == (0.0, 1.0)
    assert found.device_seconds.high == pytest.approx(8.0)
