"""Flower's own loop, or a user's, drives the same run as `start` does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp.strategy import Strategy

from fedpace import Pilots, WarmUp
from fedpace.errors import InputError
from fedpace.flower import AdaptiveSampling
from fedpace.training.stopping import inverse
from tests.flower.federation import START, as_vector, grid_with, strategy_on
from tests.flower.memory_grid import MemoryGrid

PILOTS = Pilots((0.9, 0.8), rounds=6)
LOOPS: dict[str, dict[str, Any]] = {
    "uniform": {"scheme": "uniform"},
    "weighted": {"scheme": "weighted"},
    "warm-up": {"scheme": "optimal-mean", "pilots": WarmUp(4), "refresh": 3},
    "pilots, nobody evaluates": {"scheme": "optimal-mean", "pilots": PILOTS},
    "pilots, clients evaluate": {
        "scheme": "optimal-mean", "pilots": PILOTS, "fraction_evaluate": 1.0, "evaluate_every": 2,
    },
    "pilots, losses are estimated": {"scheme": "optimal-mean", "pilots": PILOTS, "losses": True},
    "adam": {"scheme": "uniform", "server": "adam:0.1"},
}  # fmt: skip


def with_loss(reply: Message, _: int) -> None:
    metrics = reply.content.metric_records["metrics"]
    metrics["initial-loss"] = metrics["train_loss"]


def by_hand(
    strategy: AdaptiveSampling, grid: MemoryGrid, arrays: ArrayRecord, rounds: int
) -> ArrayRecord:
    """Drive a strategy by its two hooks alone."""
    for server_round in range(1, rounds + 1):
        messages = strategy.configure_train(server_round, arrays, ConfigRecord(), grid)
        replies = grid.send_and_receive(messages)
        found, metrics = strategy.aggregate_train(server_round, replies)
        assert found is not None
        assert metrics is not None
        arrays = found
    return arrays


@pytest.mark.parametrize(
    ("hooks", "floats"), [(False, np.float64), (True, np.float32)], ids=["Flower's loop", "hooks"]
)
@pytest.mark.parametrize("name", LOOPS)
def test_the_same_draws_phases_and_model(name: str, hooks: bool, floats: type) -> None:
    settings: dict[str, Any] = dict(LOOPS[name])
    options = {"change": with_loss} if settings.pop("losses", False) else {}
    start = ArrayRecord([each.astype(floats) for each in START.to_numpy_ndarrays()])
    grid = grid_with(**options)
    ours = strategy_on(grid, **settings)
    model = ours.start(grid, start, num_rounds=15).arrays
    rows = ours.history.rows

    other = grid_with(**options)
    theirs = strategy_on(other, **settings)
    rounds = len(rows) - 1
    if hooks:
        last = by_hand(theirs, other, start, rounds)
    else:
        last = Strategy.start(theirs, other, start, num_rounds=rounds).arrays
    np.testing.assert_array_equal(as_vector(model), as_vector(last))
    for mine, each in zip(theirs.history.rows, rows, strict=True):
        assert (mine.phase, mine.round) == (each.phase, each.round)
        np.testing.assert_array_equal(mine.clients, each.clients)
        np.testing.assert_array_equal(mine.weights, each.weights)
        np.testing.assert_allclose(mine.client_seconds, each.client_seconds, rtol=1e-12)
        np.testing.assert_allclose(mine.seconds, each.seconds, rtol=1e-12)
    # Theirs does not know which round is the last, in which clients evaluate.
    np.testing.assert_array_equal(
        [row.loss for row in theirs.history.rows[:-1]], [row.loss for row in rows[:-1]]
    )


def test_a_pilot_ends_with_the_model_that_the_next_phase_begins_with() -> None:
    grid = grid_with()
    strategy = strategy_on(grid, pilots=Pilots((0.1,), rounds=2))
    models = [START]
    for server_round in range(1, 6):
        models.append(by_hand(strategy, grid, models[-1], 1))
        assert len(strategy.history.rows) == server_round + 1
    phases = [row.phase for row in strategy.history.rows]
    assert phases == ["pilot-uniform"] * 3 + ["pilot-weighted"] * 2 + ["train"]
    np.testing.assert_array_equal(as_vector(models[2]), as_vector(START))
    assert not np.array_equal(as_vector(models[4]), as_vector(models[3]))  # the first pilot's end


def test_flowers_loop_evaluates_after_every_round() -> None:
    grid = grid_with()
    strategy = strategy_on(grid, fraction_evaluate=1.0, refresh=4)
    result = Strategy.start(strategy, grid, START, num_rounds=12)
    losses = [result.evaluate_metrics_clientapp[i]["eval_loss"] for i in range(1, 13)]
    assert losses[-1] < losses[0]  # type: ignore[operator]
    assert [row.round for row in strategy.history.rows] == list(range(13))


def test_the_schedule_reaches_the_clients_too() -> None:
    seen: list[float] = []
    grid = grid_with()
    strategy = strategy_on(grid, scheme="uniform", schedule=inverse(0.1))
    config = ConfigRecord()
    for server_round in (1, 2, 3):
        messages = strategy.configure_train(server_round, START, config, grid)
        seen.append(float(config["lr"]))  # type: ignore[arg-type]
        strategy.aggregate_train(server_round, grid.send_and_receive(messages))
    assert seen == pytest.approx([0.1, 0.05, 0.1 / 3])


def test_a_model_that_a_user_changed_is_the_one_that_training_goes_on_with() -> None:
    grid = grid_with()
    strategy = strategy_on(grid, scheme="full")
    arrays = by_hand(strategy, grid, START, 1)
    moved = ArrayRecord([each + 1 for each in arrays.to_numpy_ndarrays()])
    messages = list(strategy.configure_train(2, moved, ConfigRecord(), grid))
    found, _ = strategy.aggregate_train(2, [])  # nobody answers
    assert found is not None
    assert len(messages) == 12
    np.testing.assert_array_equal(as_vector(found), as_vector(moved))


def test_a_reply_of_somebody_who_was_not_asked_is_not_heard() -> None:
    grid = grid_with()
    strategy = strategy_on(grid, scheme="weighted")
    messages = list(strategy.configure_train(1, START, ConfigRecord(), grid))
    asked = {message.metadata.dst_node_id for message in messages}
    stranger = next(node for node in grid.get_node_ids() if node not in asked)
    extra = Message(messages[0].content, stranger, "train", group_id="1")
    replies = list(grid.send_and_receive([*messages, extra]))
    assert len(replies) == len(messages) + 1
    strategy.aggregate_train(1, replies)
    assert strategy.history.rows[1].clients.size == len(messages)


def test_a_client_whose_clock_is_wrong_counts_as_the_whole_wait() -> None:
    grid = grid_with()
    strategy = strategy_on(grid, scheme="full")
    replies = list(grid.send_and_receive(strategy.configure_train(1, START, ConfigRecord(), grid)))
    for wrong, reply in zip((-1e9, 1e9), replies, strict=False):
        reply.metadata.created_at += wrong
    strategy.aggregate_train(1, replies)
    row = strategy.history.rows[1]
    assert (row.client_seconds == row.round_seconds).sum() == 3  # two, and the slowest


@pytest.mark.parametrize("rounds", [0, 1])
def test_aggregating_what_was_not_configured_is_refused(rounds: int) -> None:
    grid = grid_with()
    strategy = strategy_on(grid)
    by_hand(strategy, grid, START, rounds)
    with pytest.raises(InputError, match="configure_train must come before"):
        strategy.aggregate_train(1, [])


def test_after_start_a_loop_of_ones_own_begins_anew() -> None:
    grid = grid_with()
    strategy = strategy_on(grid, scheme="uniform")
    strategy.start(grid, START, num_rounds=3)
    by_hand(strategy, grid, START, 2)
    assert [row.round for row in strategy.history.rows] == [0, 1, 2]
