"""Every reply is stamped when it comes; nobody is waited for beyond the deadline."""

from __future__ import annotations

import pytest
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp

from fedpace.flower.exchange import exchanged
from tests.flower.memory_grid import MemoryGrid


def echo() -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: object) -> Message:
        return Message(message.content, reply_to=message)

    return app


def sent_to(grid: MemoryGrid) -> list[Message]:
    content = RecordDict({"config": ConfigRecord()})
    return [Message(content, node, MessageType.TRAIN) for node in grid.get_node_ids()]


def test_stamps_each_reply_and_lasts_as_long_as_the_slowest() -> None:
    grid = MemoryGrid(echo(), lambda client, _: 0.33 * (client + 1), partitions=range(3))
    arrivals, waited, late = exchanged(grid, sent_to(grid), deadline=10, clock=grid.clock)
    seconds = {grid.partitions[node]: seconds for node, _, seconds in arrivals}
    assert seconds == pytest.approx({0: 0.33, 1: 0.66, 2: 0.99})
    assert waited == pytest.approx(0.99)
    assert not late


def test_stops_at_the_deadline_and_says_who_is_late() -> None:
    grid = MemoryGrid(echo(), lambda client, _: 10.0**client, partitions=range(3))
    arrivals, waited, late = exchanged(grid, sent_to(grid), deadline=2.5, clock=grid.clock)
    assert [grid.partitions[node] for node, _, _ in arrivals] == [0]
    assert waited == pytest.approx(2.5)
    assert {grid.partitions[node] for node in late.values()} == {1, 2}


def test_a_message_that_could_not_be_sent_is_not_waited_for() -> None:
    class Leaky(MemoryGrid):
        def push_messages(self, messages):  # type: ignore[no-untyped-def]
            names = list(super().push_messages(messages))
            return [None, *names[1:]]

    grid = Leaky(echo(), lambda *_: 1.0, partitions=range(2))
    arrivals, _, late = exchanged(grid, sent_to(grid), deadline=60, clock=grid.clock)
    assert len(arrivals) == 1
    assert not late


def test_a_grid_that_leaves_out_what_could_not_be_sent_is_understood() -> None:
    class Silent(MemoryGrid):
        def push_messages(self, messages):  # type: ignore[no-untyped-def]
            return list(super().push_messages(messages))[1:]

    grid = Silent(echo(), lambda *_: 1.0, partitions=range(3))
    first, *rest = grid.get_node_ids()
    arrivals, _, late = exchanged(grid, sent_to(grid), deadline=60, clock=grid.clock)
    assert sorted(arrival.node for arrival in arrivals) == sorted(rest)
    assert first not in late.values()


def test_nothing_sent_takes_no_time() -> None:
    grid = MemoryGrid(echo(), lambda *_: 1.0, partitions=range(2))
    assert exchanged(grid, [], deadline=60, clock=grid.clock) == ([], 0.0, {})
