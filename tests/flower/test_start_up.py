"""The federation's start-up is learned from a node's first and second reply."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from flwr.serverapp.strategy import FedAvg

from fedpace.flower import AdaptiveSampling
from fedpace.flower.backend import StartUp
from tests.flower.federation import CLIENTS, START, TIMES, client_app, steady, strategy_on
from tests.flower.memory_grid import MemoryGrid

SECONDS = 28.0


def once(client: int, nth: int) -> float:
    """As in Flower's simulation: Ray starts in the first round."""
    return steady(client, nth) + (SECONDS if nth == 0 else 0.0)


def always(client: int, nth: int) -> float:
    """As on SuperNodes: every message starts a process."""
    return steady(client, nth) + SECONDS


def trained(seconds: Any, rounds: int = 4, **settings: Any) -> AdaptiveSampling:
    grid = MemoryGrid(client_app(), seconds, partitions=range(CLIENTS))
    strategy = strategy_on(grid, **{"count_start": False, "scheme": "full"} | settings)
    strategy.start(grid, START, num_rounds=rounds)
    return strategy


def test_a_start_up_that_does_not_recur_does_not_count() -> None:
    rows = trained(once).history.rows
    assert rows[1].client_seconds.max() < SECONDS
    # Of the first reply a tenth counts, as the clients report no computing time.
    assert rows[-1].seconds < 4 * TIMES.max() + 0.1 * (SECONDS + TIMES.min())


def test_a_start_up_that_recurs_counts_as_soon_as_a_second_reply_shows_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "flwr")
    rows = trained(always).history.rows
    actual = SECONDS + TIMES
    assert rows[1].seconds < SECONDS  # not known yet
    np.testing.assert_allclose(rows[2].seconds, 2 * actual.max())
    np.testing.assert_allclose(rows[-1].seconds, 4 * actual.max())
    mean = (rows[1].client_seconds + rows[2].client_seconds) / 2
    np.testing.assert_allclose(mean, actual)
    np.testing.assert_allclose(rows[3].client_seconds, actual)
    assert caplog.text.count("s of the start-up recur in every reply, and count") == 1


def test_asynchronously_all_that_were_sent_before_the_first_reply_were_cold() -> None:
    grid = MemoryGrid(client_app(), steady, partitions=range(CLIENTS))
    # By the clock, not by the round: several tasks of a client may come before the first step.
    grid.seconds = lambda client, nth: steady(client, nth) + max(SECONDS - grid.time, 0.0)
    settings: dict[str, Any] = {"mode": "asynchronous", "k": 3, "buffer": 2, "scheme": "weighted"}
    strategy = strategy_on(grid, count_start=False, **settings)
    strategy.start(grid, START, num_rounds=12)
    took = np.concatenate([row.client_seconds for row in strategy.history.rows[1:]])
    assert took.max() < TIMES.max() + 0.1 * (SECONDS + TIMES.min())


def test_computing_times_say_how_much_of_the_first_reply_is_start_up() -> None:
    def tell(reply: Message, client: int) -> None:
        reply.content.metric_records["metrics"]["computing-seconds"] = float(TIMES[client])

    grid = MemoryGrid(client_app(change=tell), once, partitions=range(CLIENTS))
    strategy = strategy_on(grid, count_start=False, scheme="full")
    strategy.start(grid, START, num_rounds=2)
    for row in strategy.history.rows[1:]:
        np.testing.assert_allclose(row.client_seconds, TIMES)


@pytest.mark.parametrize("cold", [False, True])
def test_after_a_resume_only_what_exceeds_the_usual_times_is_start_up(
    cold: bool, tmp_path: Path
) -> None:
    path = tmp_path / "run.npz"
    trained(steady, 2, checkpoint=path)

    def again(client: int, nth: int) -> float:
        return steady(client, nth) + (SECONDS if cold and nth == 2 else 0.0)

    rows = trained(again, 4, checkpoint=path).history.rows
    for row in rows[3:]:
        np.testing.assert_allclose(row.client_seconds, TIMES)
        assert row.round_seconds == pytest.approx(TIMES.max())


@pytest.mark.parametrize(("seconds", "recurs"), [(once, False), (always, True)])
def test_a_recorded_strategy_is_corrected_alike(seconds: Any, recurs: bool) -> None:
    done = [0]  # FedAvg's messages do not say their round

    def advance(server_round: int, arrays: Any) -> None:
        done[0] = server_round

    grid = MemoryGrid(
        client_app(), lambda client, _: seconds(client, done[0]), partitions=range(CLIENTS)
    )
    plain = strategy_on(grid, count_start=False).recorded(FedAvg(min_available_nodes=CLIENTS))
    plain.start(grid, START, num_rounds=3, evaluate_fn=advance)
    total = plain.history.rows[-1].seconds
    assert total == pytest.approx(3 * (SECONDS + TIMES.max())) if recurs else total < SECONDS


def test_if_the_start_up_counts_nothing_is_subtracted() -> None:
    assert StartUp(counted=True).correct({0: 30.0}, 30.0, at_work=[0]) == ({0: 30.0}, 30.0)
