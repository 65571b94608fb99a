"""Asynchronous training: every node has one task at a time, and none waits for another."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord

from fedpace.errors import InputError
from fedpace.flower import AdaptiveSampling, Pilots
from fedpace.flower.messages import Layout
from fedpace.studies.store import Store
from fedpace.training.history import Row
from tests.flower.federation import (
    CLIENTS,
    START,
    TIMES,
    client_app,
    grid_with,
    strategy_on,
)
from tests.flower.memory_grid import NEVER, MemoryGrid


def asynchronous(grid: Any, **more: Any) -> AdaptiveSampling:
    settings = {"k": 3, "scheme": "weighted", "mode": "asynchronous", "buffer": 2} | more
    return strategy_on(grid, **settings)


def started(strategy: AdaptiveSampling, grid: Any, rounds: int = 30, **more: Any) -> list[Row]:
    strategy.start(grid, START, num_rounds=rounds, **more)
    return list(strategy.history.rows[1:])


def test_a_node_has_one_task_at_a_time_and_all_slots_are_taken() -> None:
    grid = grid_with()
    rows = started(asynchronous(grid, evaluate_every=0), grid)
    assert [row.round for row in rows] == list(range(1, 31))
    assert all(row.clients.size == 2 for row in rows)
    began = np.concatenate([row.began for row in rows])
    took = np.concatenate([row.client_seconds for row in rows])
    clients = np.concatenate([row.clients for row in rows])
    np.testing.assert_allclose(took, TIMES[clients])
    for client in range(CLIENTS):
        mine = np.flatnonzero(clients == client)
        mine = mine[np.argsort(began[mine])]
        assert (began[mine][1:] >= (began + took)[mine][:-1] - 1e-9).all()
    busy = [((began <= at) & (at < began + took)).sum() for at in np.linspace(0, began.max(), 40)]
    assert max(busy) == 3
    assert np.mean(busy[:20]) > 2.5
    assert max(row.staleness.max() for row in rows) > 0


def test_training_makes_the_loss_fall_and_evaluations_are_of_steps() -> None:
    grid = grid_with()
    strategy = asynchronous(grid, evaluate_every=10, fraction_evaluate=1.0)
    result = strategy.start(grid, START, num_rounds=30)
    assert set(result.evaluate_metrics_clientapp) == {10, 20, 30}
    losses: list[Any] = [each["eval_loss"] for each in result.evaluate_metrics_clientapp.values()]
    assert losses[-1] < math.log(3)  # of the initial model
    assert strategy.outcome is not None
    assert list(result.arrays) == list(START)
    vector = Layout.of(START).vector(result.arrays)
    np.testing.assert_array_equal(vector, strategy.outcome.parameters)


def test_clients_are_asked_to_evaluate_after_as_many_updates_as_a_round_has() -> None:
    grid = grid_with()
    strategy = asynchronous(grid, evaluate_every=1, fraction_evaluate=1.0)
    result = strategy.start(grid, START, num_rounds=12)
    at_once, buffer = 3, 2
    every = math.ceil(at_once / buffer)
    assert set(result.evaluate_metrics_clientapp) == set(range(every, 13, every))


def test_pace_needs_no_setting_here_either() -> None:
    grid = grid_with()
    strategy = strategy_on(grid, k=3, scheme="pace", mode="asynchronous")
    rows = started(strategy, grid, 40)
    assert rows[-1].round == 40
    assert {row.phase for row in rows} == {"warm-up", "train"}


def late(partition: int, nth: int) -> float:
    return 9.0 if partition == 2 else 1.0 + 0.1 * partition


def test_who_is_late_frees_its_slot_and_counts_when_it_answers() -> None:
    grid = MemoryGrid(client_app(), late, partitions=range(CLIENTS))
    rows = started(asynchronous(grid, deadline=4.0, evaluate_every=0, refresh=1000), grid, 40)
    missed = [row for row in rows if 2 in row.missing]
    assert missed
    np.testing.assert_allclose(missed[0].missing_seconds[missed[0].missing.tolist().index(2)], 4.0)
    assert any(2 in row.clients for row in rows)
    counted = next(row for row in rows if 2 in row.clients)
    np.testing.assert_allclose(counted.client_seconds[counted.clients.tolist().index(2)], 9.0)
    assert all(row.clients.size + row.missing.size == 2 for row in rows)


def silent(partition: int, nth: int) -> float:
    return NEVER if partition == 2 else 1.0


def test_who_never_answers_is_missed_and_the_others_go_on() -> None:
    grid = MemoryGrid(client_app(), silent, partitions=range(CLIENTS))
    rows = started(asynchronous(grid, deadline=4.0, evaluate_every=0), grid, 40)
    assert any(2 in row.missing for row in rows)
    assert not any(2 in row.clients for row in rows)
    assert rows[-1].round == 40


def test_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    file = tmp_path / "run.npz"
    grid = grid_with()
    first = started(asynchronous(grid, checkpoint=file), grid, 10)
    grid = grid_with()
    strategy = asynchronous(grid, checkpoint=file)
    rows = started(strategy, grid, 20)
    assert [row.round for row in rows] == list(range(1, 21))
    assert [row.clients.tolist() for row in rows[:10]] == [row.clients.tolist() for row in first]
    grid = grid_with()
    rounds = strategy_on(grid, k=3, scheme="weighted", checkpoint=file)
    with pytest.raises(InputError, match="is the checkpoint of another run"):
        rounds.start(grid, START, num_rounds=20)


def test_the_run_is_stored_for_a_report(tmp_path: Path) -> None:
    grid = grid_with()
    started(asynchronous(grid, out=tmp_path), grid, 5)
    (run,) = Store(tmp_path).runs()
    assert run.study.training.asynchronous
    assert run.study.training.buffer == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mode": "async"}, "mode must be synchronous, asynchronous or auto, got 'async'"),
        ({"mode": "synchronous", "buffer": 2}, "buffer has no meaning in rounds, got 2"),
        ({"pilots": Pilots([1.0], 5)}, "pilots need rounds, got mode asynchronous"),
        ({"scheme": "optimal-tiers"}, "optimal-tiers needs rounds, got mode asynchronous"),
        ({"buffer": 0}, "buffer must be"),
    ],
)
def test_says_what_does_not_go_together(settings: dict[str, Any], message: str) -> None:
    usual: dict[str, Any] = {"k": 3, "scheme": "weighted", "mode": "asynchronous"}
    with pytest.raises(InputError, match=message):
        AdaptiveSampling(**usual | settings)


def test_another_loop_is_refused() -> None:
    grid = grid_with()
    with pytest.raises(InputError, match="mode asynchronous has no rounds for another loop"):
        asynchronous(grid).configure_train(1, START, ConfigRecord(), grid)


@pytest.mark.parametrize(("floor", "faster"), [(0.0, True), (500.0, False)])
def test_auto_continues_asynchronously_where_speeds_differ_and_says_why(
    floor: float, faster: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "flwr")
    grid = MemoryGrid(client_app(), lambda i, _: TIMES[i] + floor, partitions=range(CLIENTS))
    how: dict[str, Any] = {"scheme": "pace", "pilots": None, "mode": "auto", "out": tmp_path}
    strategy = strategy_on(grid, **how)
    rows = started(strategy, grid, 20)
    assert [row.phase for row in rows[:4]] == ["warm-up"] * 3 + ["train"]
    assert {bool(row.began.size) for row in rows[3:]} == {faster}
    assert sum(row.clients.size for row in rows) == pytest.approx(20 * 4, abs=4)  # as 20 rounds
    assert "asynchronous training is predicted" in caplog.text
    assert "predicted" in rows[3].why
    (run,) = Store(tmp_path).runs()
    assert run.history.rows[-1].round == rows[-1].round


def test_auto_goes_on_in_the_mode_that_it_chose(tmp_path: Path) -> None:
    how: dict[str, Any] = {"scheme": "pace", "pilots": None, "mode": "auto"}
    grid = grid_with()
    file = tmp_path / "run.npz"
    first = started(strategy_on(grid, **how, checkpoint=file), grid, 8)
    grid = grid_with()
    again = started(strategy_on(grid, **how, checkpoint=file), grid, 16)
    assert [row.round for row in again] == list(range(1, again[-1].round + 1))
    assert again[-1].round > first[-1].round > 8
    assert all(row.began.size for row in again[3:])
    assert sum(row.clients.size for row in again) == pytest.approx(16 * 4, abs=4)
    grid = grid_with()
    assert len(started(strategy_on(grid, **how, checkpoint=file), grid, 16)) == len(again)


def test_in_auto_others_stay_in_rounds_and_so_does_a_loop_of_ones_own() -> None:
    grid = grid_with()
    strategy = strategy_on(grid, scheme="uniform", mode="auto")
    assert not any(row.began.size for row in started(strategy, grid, 6))
    strategy = strategy_on(grid, scheme="pace", pilots=None, mode="auto")
    strategy.configure_train(1, START, ConfigRecord(), grid)
