"""The rows of a run, to look at."""

import csv
import importlib
import importlib.util
import math
from pathlib import Path

import numpy as np
import pytest

from fedpace.errors import InputError
from fedpace.training.history import LISTS, NUMBERS, History

from .fakes import row

LOSSES = [2.0, 1.0, 1.5, 0.1 + 0.2]
COLUMNS = [*NUMBERS, *LISTS]
TEXTS = {"phase", "ended", "why"}


def history() -> History:
    rows = []
    for r, loss in enumerate(LOSSES):
        values = np.arange(r, dtype=np.float64)
        rows.append(
            row(
                range(r),
                round=r,
                seconds=r * 1.25,
                loss=loss,
                accuracy=r / 3,
                weights=values / 7,
                client_seconds=values + 0.1,
                grad_norms=values + 0.5,
                missing=[9] * (r % 2),
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
    rows = [each._replace(loss=math.nan) for each in history().rows]
    assert History(rows).time_to(loss=100) == math.inf


def test_a_sustained_loss_is_reached_when_the_mean_of_the_last_is() -> None:
    means = [math.nan, math.nan, 1.2, 0.9]
    rows = [
        each._replace(sustained_loss=mean) for each, mean in zip(history().rows, means, strict=True)
    ]
    assert History(rows).time_to(loss=1.0) == 1.25
    assert History(rows).time_to(loss=1.0, sustained=True) == 3.75
    assert History(rows).rounds_to(loss=1.2, sustained=True) == 2
    assert History(rows).time_to(loss=0.8, sustained=True) == math.inf
    # An accuracy counts when it is reached, as ever.
    assert History(rows).time_to(loss=0.8, accuracy=0.5, sustained=True) == 2.5


def test_a_sustained_time_without_a_loss_is_refused() -> None:
    with pytest.raises(InputError, match="sustained must come with a loss"):
        history().time_to(accuracy=0.5, sustained=True)


def test_an_empty_history_reaches_nothing() -> None:
    assert History([]).time_to(loss=100) == math.inf


def test_every_column_has_an_entry_per_row() -> None:
    columns = history().columns()
    assert list(columns) == COLUMNS
    assert {len(values) for values in columns.values()} == {len(LOSSES)}
    assert columns["loss"] == LOSSES
    assert columns["clients"] == [[], [0], [0, 1], [0, 1, 2]]
    assert columns["missing"] == [[], [9], [], [9]]
    assert columns["grad_spread"][1:] == [1, 3, 5]


@pytest.mark.skipif(importlib.util.find_spec("pandas") is None, reason="pandas is not installed")
def test_columns_open_in_pandas() -> None:
    frame = importlib.import_module("pandas").DataFrame(history().columns())
    assert frame.shape == (len(LOSSES), len(COLUMNS))
    assert frame["loss"].tolist() == LOSSES


def test_csv_reads_back_to_the_last_digit(tmp_path: Path) -> None:
    path = tmp_path / "history.csv"
    history().write_csv(path)
    with path.open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    columns = history().columns()
    assert list(lines[0]) == COLUMNS
    for name in TEXTS:
        assert [line[name] for line in lines] == columns[name]
    for name in set(NUMBERS) - TEXTS:
        np.testing.assert_array_equal([float(line[name]) for line in lines], columns[name])
    for name in LISTS:
        assert [[float(part) for part in line[name].split()] for line in lines] == columns[name]
