"""One row per round."""

import csv
import importlib
import importlib.util
import math
from pathlib import Path

import numpy as np
import pytest

from fedpace.rounds.history import LISTS, SCALARS, History, Row

LOSSES = [2.0, 1.0, 1.5, 0.1 + 0.2]


def history() -> History:
    rows = []
    for r, loss in enumerate(LOSSES):
        clients = np.arange(r)
        values = clients.astype(np.float64)
        rows.append(
            Row(
                phase="train",
                round=r,
                seconds=r * 1.25,
                loss=loss,
                accuracy=r / 3,
                expected_round_seconds=1.1,
                round_seconds=1.25,
                clients=clients,
                weights=values / 7,
                client_seconds=values + 0.1,
                grad_norms=values + 0.5,
            )
        )
    return History(rows)


@pytest.mark.parametrize(
    ("loss", "seconds", "rounds"),
    [(2.0, 0.0, 0.0), (1.0, 1.25, 1.0), (0.9, 3.75, 3.0), (0.2, math.inf, math.inf)],
)
def test_time_and_rounds_to_a_loss_count_until_it_is_first_reached(
    loss: float, seconds: float, rounds: float
) -> None:
    assert history().time_to(loss=loss) == seconds
    assert history().rounds_to(loss=loss) == rounds


def test_time_and_rounds_to_an_accuracy_count_until_it_is_first_reached() -> None:
    assert history().time_to(accuracy=0.5) == 2.5
    assert history().rounds_to(accuracy=0.5) == 2
    assert history().time_to(accuracy=1.01) == math.inf


def test_a_loss_that_is_not_a_number_reaches_nothing() -> None:
    rows = [row._replace(loss=math.nan) for row in history().rows]
    assert History(rows).time_to(loss=100) == math.inf


def test_an_empty_history_reaches_nothing() -> None:
    assert History([]).time_to(loss=100) == math.inf


def test_every_column_has_an_entry_per_row() -> None:
    columns = history().columns()
    assert list(columns) == [*SCALARS, *LISTS]
    assert {len(values) for values in columns.values()} == {len(LOSSES)}
    assert columns["loss"] == LOSSES
    assert columns["clients"] == [[], [0], [0, 1], [0, 1, 2]]


@pytest.mark.skipif(importlib.util.find_spec("pandas") is None, reason="pandas is not installed")
def test_columns_open_in_pandas() -> None:
    frame = importlib.import_module("pandas").DataFrame(history().columns())
    assert frame.shape == (len(LOSSES), len(SCALARS) + len(LISTS))
    assert frame["loss"].tolist() == LOSSES


def test_the_spread_is_the_largest_over_the_smallest_norm_and_nan_without_clients() -> None:
    rows = history().rows
    assert math.isnan(rows[0].grad_spread)
    assert rows[1].grad_spread == 1
    assert rows[3].grad_spread == 5
    assert math.isnan(rows[3]._replace(grad_norms=np.array([0.0, 1.0])).grad_spread)


def test_csv_reads_back_to_the_last_digit(tmp_path: Path) -> None:
    path = tmp_path / "history.csv"
    history().write_csv(path)
    with path.open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    columns = history().columns()
    assert list(lines[0]) == [*SCALARS, *LISTS]
    assert [line["phase"] for line in lines] == columns["phase"]
    for name in SCALARS[1:]:
        np.testing.assert_array_equal([float(line[name]) for line in lines], columns[name])
    for name in LISTS:
        assert [[float(part) for part in line[name].split()] for line in lines] == columns[name]
