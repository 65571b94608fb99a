"""Round times from what was measured."""

import numpy as np
import pytest

from fedpace.estimation.times import LATEST, estimated_times
from fedpace.rounds.rows import Row


def row(clients: list[int], seconds: list[float], missing: list[int] | None = None) -> Row:
    m = len(clients)
    return Row(
        "train", 1, 0.0, 1.0, 0.5, 1.0, 9.0, np.array(clients, dtype=np.int64), np.ones(m),
        np.array(seconds), np.ones(m), missing=np.array(missing or [], dtype=np.int64),
    )  # fmt: skip


def test_the_first_few_count_alike() -> None:
    rows = [row([0], [1.0]), row([0], [2.0]), row([0], [6.0])]
    assert estimated_times(rows, 1)[0] == pytest.approx(3.0)


def test_follows_a_client_that_becomes_slow() -> None:
    rows = [row([0], [1.0])] * 50
    assert estimated_times(rows, 1)[0] == pytest.approx(1.0)
    assert estimated_times([*rows, row([0], [2.0])], 1)[0] == pytest.approx(1 + LATEST)
    assert estimated_times([*rows, *[row([0], [2.0])] * 30], 1)[0] == pytest.approx(2.0, rel=0.01)


def test_a_reply_that_never_came_counts_as_the_round_that_was_waited() -> None:
    rows = [row([0], [1.0], missing=[1])]
    np.testing.assert_allclose(estimated_times(rows, 2), [1.0, 9.0])


def test_a_client_never_drawn_counts_as_one_of_the_faster() -> None:
    rows = [row(list(range(11)), [float(i) for i in range(1, 12)])]
    assert estimated_times(rows, 12)[11] == pytest.approx(2.0)


def test_all_count_alike_while_nothing_was_measured() -> None:
    np.testing.assert_array_equal(estimated_times([row([], [])], 3), np.ones(3))
