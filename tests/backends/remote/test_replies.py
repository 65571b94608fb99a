import math
from typing import Any

import numpy as np
import pytest

from fedpace.backends.remote import replies
from fedpace.backends.remote.replies import Accepted, ArrayLayout, as_reply
from fedpace.training.backend import Difference, Differences


def accepted(client: int, **changes: Any) -> Accepted:
    update = np.full(2, float(client))
    said = Accepted(client, Difference([update], None, update.dtype), 1.0, 2.0, 3.0, 0.5, 10, 20)
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


def test_updates_of_large_models_stay_as_they_came() -> None:
    size = replies.SMALL // 2
    rows = np.random.default_rng(0).normal(size=(3, size)).astype(np.float32)
    every = [Difference([row], None, row.dtype) for row in rows]
    for count, kept in ((2, False), (3, True)):
        came = [accepted(i, update=every[i]) for i in reversed(range(count))]
        updates = as_reply(came, length=size).updates
        assert isinstance(updates, Differences if kept else np.ndarray)
        np.testing.assert_array_equal(updates, rows[:count])


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

    sent, came = layout.parts_of(before, opened), layout.parts_of(after, opened)
    update = layout.difference(came, sent)
    assert Differences([update.values], layout.size).tolist() == [[3.0, 4.0, 12.0, -2.0, -1.0]]
    assert (update.length, update.trained) == (13.0, 5.0)
    assert update.values.square == 13.0**2 + 5.0
    update = layout.difference(came, None)
    assert Differences([update.values], layout.size).tolist() == [[4.0, 6.0, 12.5, 1.0, 0.0]]
    came[0] = np.array([np.nan, 0.0], kind)
    assert math.isnan(layout.difference(came, sent).length)
