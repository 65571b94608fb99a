import math
from typing import Any

import numpy as np
import pytest

from fedpace.backends.remote.replies import Accepted, ArrayLayout, as_reply


def accepted(client: int, **changes: Any) -> Accepted:
    said = Accepted(client, np.full(2, float(client)), 1.0, 2.0, 3.0, 0.5, 10, 20)
    return said._replace(**changes)


def test_replies_are_in_the_order_of_clients() -> None:
    reply = as_reply([accepted(5), accepted(1)], length=2, refused=[4, 3], waited=7.0)
    assert reply.clients.tolist() == [1, 5]
    np.testing.assert_array_equal(reply.updates, [[1.0, 1.0], [5.0, 5.0]])
    assert reply.refused.tolist() == [3, 4]
    assert reply.lasted == 7.0


def test_losses_and_computing_seconds_count_only_if_all_have_them() -> None:
    reply = as_reply([accepted(0), accepted(1, loss=math.nan)], length=2)
    assert reply.losses.size == 0
    assert reply.computing_seconds.tolist() == [0.5, 0.5]
    reply = as_reply([accepted(0, computing_seconds=math.nan), accepted(1)], length=2)
    assert reply.losses.tolist() == [3.0, 3.0]
    assert reply.computing_seconds.size == 0


def test_a_reply_of_nobody_has_the_shape_of_none() -> None:
    reply = as_reply([], length=3, waited=2.0)
    assert reply.updates.shape == (0, 3)
    assert reply.lasted == 2.0


def test_the_rows_of_one_matrix_are_not_copied_and_others_are() -> None:
    rows = np.array([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]])
    every = as_reply([accepted(i, update=rows[i]) for i in (2, 0, 1)], length=2)
    assert every.updates is rows
    for places in ([0, 2], [1, 0, 2]):
        clients = [accepted(i, update=rows[place]) for i, place in enumerate(places)]
        some = as_reply(clients, length=2)
        np.testing.assert_array_equal(some.updates, rows[places])
        assert not np.shares_memory(some.updates, rows)


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_updates_keep_the_precision_of_the_model_and_are_measured(kind: Any) -> None:
    before = {
        "w": np.array([[1.0, 2.0]], kind),
        "bn.running_mean": np.array([0.5], kind),
        "count": np.array([3], np.uint8),
        "flag": np.array([True]),
    }
    after = before | {"w": np.array([[4.0, 6.0]], kind), "count": np.array([1], np.uint8)}
    after |= {"bn.running_mean": np.array([12.5], kind), "flag": np.array([False])}
    layout = ArrayLayout.of_arrays(before)
    assert layout.precision == (np.float64 if kind is np.float64 else np.float32)

    def opened(_: str, array: Any, size: int) -> Any:
        assert array.size == size
        return array

    row = np.empty(layout.size, layout.precision)
    sent, came = layout.parts_of(before, opened), layout.parts_of(after, opened)
    update = layout.subtract(came, sent, row)
    assert update.values.tolist() == [3.0, 4.0, 12.0, -2.0, -1.0]
    assert (update.length, update.trained) == (13.0, 5.0)
    update = layout.subtract(came, None, row)
    assert update.values.tolist() == [4.0, 6.0, 12.5, 1.0, 0.0]
    came[0] = np.array([np.nan, 0.0], kind)
    assert math.isnan(layout.subtract(came, sent, row).length)
