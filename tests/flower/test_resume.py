"""A run goes on where it was ended: after a kill, under other node ids, to more rounds."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ArrayRecord, MetricRecord

from fedpace import Row
from fedpace.checks import FloatArray
from fedpace.errors import InputError, TooFewClientsError
from fedpace.flower import Pilots, WarmUp
from tests.flower import federation
from tests.flower.federation import (
    CLIENTS,
    START,
    as_vector,
    client_app,
    grid_with,
    steady,
    strategy_on,
)
from tests.flower.memory_grid import MemoryGrid


def test_too_few_nodes_end_the_run_with_what_was_done_saved(tmp_path: Path) -> None:
    grid = grid_with()
    path = tmp_path / "run.npz"
    settings = {"scheme": "weighted", "checkpoint": path, "wait": 20.0}

    models = []

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        models.append(arrays)
        if server_round == 4:
            grid.partitions.clear()
        return MetricRecord({"loss": 1.0})

    strategy = strategy_on(grid, **settings)
    with pytest.raises(TooFewClientsError, match="start more SuperNodes") as caught:
        strategy.start(grid, START, num_rounds=8, evaluate_fn=evaluate)
    np.testing.assert_array_equal(as_vector(caught.value.result.arrays), as_vector(models[-1]))
    assert [row.round for row in strategy.history.rows] == [0, 1, 2, 3, 4]
    again = grid_with()
    resumed = strategy_on(again, **settings)
    resumed.start(again, START, num_rounds=8)
    assert [row.round for row in resumed.history.rows] == list(range(9))
    assert len([kind for kind, _ in again.asked if kind == "train"]) == 4


class Killed(BaseException):
    """As good as a power cut."""


def trained(
    grid: MemoryGrid, pilots: WarmUp | Pilots, checkpoint: Path | None, kill_after: int = 1000
) -> tuple[Sequence[Row], FloatArray]:
    """Train, and be killed in the evaluation after the given number of them."""
    evaluations = count(1)

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        if next(evaluations) > kill_after:
            raise Killed
        return MetricRecord({"loss": federation.evaluated(as_vector(arrays)).loss})

    strategy = strategy_on(grid, pilots=pilots, checkpoint=checkpoint, refresh=5)
    result = strategy.start(grid, START, num_rounds=25, evaluate_fn=evaluate)
    return strategy.history.rows, as_vector(result.arrays)


@cache
def never_killed(pilots: WarmUp | Pilots) -> tuple[Sequence[Row], FloatArray]:
    return trained(grid_with(), pilots, None)


@pytest.mark.parametrize(
    ("pilots", "after"),
    [(WarmUp(5), after) for after in (1, 4, 6, 13, 21)]
    + [(Pilots((0.5,), rounds=4), after) for after in (1, 5, 7, 9, 16)],
)
def test_a_run_that_was_killed_ends_with_the_model_of_one_that_was_not(
    pilots: WarmUp | Pilots, after: int, tmp_path: Path
) -> None:
    with pytest.raises(Killed):
        trained(grid_with(), pilots, tmp_path / "run.npz", kill_after=after)
    # Other ids, as after a restart of the SuperNodes; partitions tell who is who.
    again = MemoryGrid(client_app(), steady, partitions=range(CLIENTS), first_id=70)
    rows, model = trained(again, pilots, tmp_path / "run.npz")
    whole, expected = never_killed(pilots)
    np.testing.assert_allclose(model, expected, atol=1e-9)
    assert [(row.phase, row.round) for row in rows] == [(row.phase, row.round) for row in whole]


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.npz"
    grid = grid_with()
    strategy_on(grid, checkpoint=path).start(grid, START, num_rounds=2)
    with pytest.raises(InputError, match="another run"):
        strategy_on(grid, checkpoint=path, seed=1).start(grid, START, num_rounds=2)


def test_a_finished_run_goes_on_to_more_rounds(tmp_path: Path) -> None:
    path = tmp_path / "run.npz"
    for rounds in (6, 9):
        grid = grid_with()
        strategy = strategy_on(grid, checkpoint=path)
        strategy.start(grid, START, num_rounds=rounds)
        assert strategy.history.rows[-1].round == rounds


def test_of_two_servers_with_one_checkpoint_the_second_is_told_who_has_it(tmp_path: Path) -> None:
    settings = {"scheme": "weighted", "checkpoint": tmp_path / "run.npz"}
    grid, other = grid_with(), grid_with()

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        with pytest.raises(InputError, match=r"checkpoint .*run.npz must not be in use, got one"):
            strategy_on(other, **settings).start(other, START, num_rounds=1)
        return MetricRecord({"loss": 1.0})

    strategy_on(grid, **settings).start(grid, START, num_rounds=2, evaluate_fn=evaluate)
    strategy_on(other, **settings).start(other, START, num_rounds=3)  # now it is free
