import math
from typing import Any

import numpy as np

from fedpace.backends.remote.replies import Accepted, as_reply


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
