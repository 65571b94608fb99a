"""Every reply is stamped when it comes; nobody is waited for beyond the deadline."""

from __future__ import annotations

import pytest
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp

from fedpace.flower.messages import Mailbox
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
    mailbox = Mailbox(grid, grid.clock)
    arrivals = mailbox.exchange(sent_to(grid), 10)
    seconds = {grid.partitions[node]: seconds for node, _, seconds in arrivals}
    assert seconds == pytest.approx({0: 0.33, 1: 0.66, 2: 0.99})
    assert grid.time == pytest.approx(0.99)
    assert not mailbox.busy


def test_stops_at_the_deadline_and_says_who_is_late() -> None:
    grid = MemoryGrid(echo(), lambda client, _: 10.0**client, partitions=range(3))
    mailbox = Mailbox(grid, grid.clock)
    arrivals = mailbox.exchange(sent_to(grid), 2.5)
    assert [grid.partitions[node] for node, _, _ in arrivals] == [0]
    assert grid.time == pytest.approx(2.5)
    assert {grid.partitions[node] for node in mailbox.busy} == {1, 2}


def test_a_message_that_could_not_be_sent_is_not_waited_for() -> None:
    class Leaky(MemoryGrid):
        def push_messages(self, messages):  # type: ignore[no-untyped-def]
            names = list(super().push_messages(messages))
            return [None, *names[1:]]

    grid = Leaky(echo(), lambda *_: 1.0, partitions=range(2))
    mailbox = Mailbox(grid, grid.clock)
    assert len(mailbox.exchange(sent_to(grid), 60)) == 1
    assert not mailbox.busy


def test_a_grid_that_leaves_out_what_could_not_be_sent_is_understood() -> None:
    class Silent(MemoryGrid):
        def push_messages(self, messages):  # type: ignore[no-untyped-def]
            return list(super().push_messages(messages))[1:]

    grid = Silent(echo(), lambda *_: 1.0, partitions=range(3))
    first, *rest = grid.get_node_ids()
    mailbox = Mailbox(grid, grid.clock)
    assert sorted(arrival.node for arrival in mailbox.exchange(sent_to(grid), 60)) == sorted(rest)
    assert first not in mailbox.busy


def test_nothing_sent_takes_no_time() -> None:
    grid = MemoryGrid(echo(), lambda *_: 1.0, partitions=range(2))
    assert Mailbox(grid, grid.clock).exchange([], 60) == []
    assert grid.time == 0


def test_a_few_are_collected_as_they_come_and_whoever_is_late_counts() -> None:
    waits = {0: 3.0, 1: 1.0, 2: 50.0, 3: 2.0}
    grid = MemoryGrid(echo(), lambda client, _: waits[client], partitions=range(4))
    mailbox = Mailbox(grid, grid.clock)
    names = mailbox.send(sent_to(grid), 10)
    came = []
    for count in (1, 2, 1):
        arrivals = mailbox.collect(names, count)
        names -= set(arrivals)
        came.append([grid.partitions[each.node] for each in arrivals.values()])
    assert came == [[1], [3, 0], []]
    assert grid.time == pytest.approx(10)
    assert {grid.partitions[node] for node in mailbox.busy} == {2}
