"""Nodes come and go; clients keep their numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Error, Message, MessageType, RecordDict

from fedpace.backends.remote.roster import Roster
from fedpace.errors import TooFewClientsError
from fedpace.flower.client import answer_query
from fedpace.flower.messages import Mailbox
from fedpace.flower.nodes import Node, NodeMap, Nodes
from tests.flower.federation import DATA, client_app, steady
from tests.flower.memory_grid import NEVER, MemoryGrid


def grid_of(*partitions: int, query: bool = True, first_id: int = 1000) -> MemoryGrid:
    return MemoryGrid(client_app(query=query), steady, partitions=partitions, first_id=first_id)


def nodes_of(
    grid: MemoryGrid, at_least: int, *, names: Iterable[str] = (), **settings: Any
) -> Nodes:
    node_map = NodeMap(Roster(names))
    return Nodes(Mailbox(grid, grid.clock), node_map, at_least=at_least, query=True, **settings)


def test_numbers_follow_partitions_and_weights_sample_counts() -> None:
    grid = grid_of(2, 0, 3, 1)
    nodes = nodes_of(grid, 4)
    assert nodes.wait_for_idle().all()
    assert nodes.node_map.roster.names == [f"partition {i}" for i in range(4)]
    sizes = DATA.train.sizes[:4]
    np.testing.assert_allclose(nodes.node_map.roster.weights, sizes / sizes.sum())


def test_only_one_node_is_asked_where_clients_answer_no_queries() -> None:
    grid = grid_of(2, 0, 3, 1, query=False)
    nodes = nodes_of(grid, 4)
    assert nodes.wait_for_idle().all()
    assert [kind for kind, _ in grid.asked] == ["query"]
    assert nodes.node_map.of(range(4)) == sorted(grid.partitions)
    np.testing.assert_array_equal(nodes.node_map.roster.weights, [0.25] * 4)
    nodes.wait_for_idle()
    assert len(grid.asked) == 1


class Faulty(MemoryGrid):
    """The node with the lowest id, which is asked first, is silent or fails in its own way."""

    error: Error | None = None

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        first = f"to {min(self.partitions)}"
        names = list(message_ids)
        if self.error is None:
            names = [name for name in names if not name.endswith(first)]
        return super().pull_messages(names)

    def _reply(self, message: Message, node: int) -> Message:
        if node == min(self.partitions) and self.error is not None:
            return Message(self.error, reply_to=message)
        return super()._reply(message, node)


@pytest.mark.parametrize(
    "error",
    [None, Error(5, "node unavailable"), Error(2, "the disk of this node is broken")],
    ids=["silent", "unavailable", "raises"],
)
def test_one_node_that_fails_does_not_hide_the_others(error: Error | None) -> None:
    grid = Faulty(client_app(), steady, partitions=range(4))
    grid.error = error
    nodes = nodes_of(grid, 4)
    assert nodes.wait_for_idle().all()
    names = ["partition 0", "partition 1", "partition 2", f"node {min(grid.partitions)}"]
    assert nodes.node_map.roster.names == names


def test_two_clientapps_that_raise_are_enough_to_ask_nobody_else() -> None:
    app = client_app(query=False)

    @app.query()
    def query(message: Message, context: Context) -> Message:
        raise ValueError("no such thing")

    grid = MemoryGrid(app, steady, partitions=range(8))
    nodes = nodes_of(grid, 8)
    assert nodes.wait_for_idle().all()
    assert [len(nodes) for _, nodes in grid.asked] == [1, 2]


def test_where_clients_told_partitions_before_all_are_asked_again() -> None:
    grid = Faulty(client_app(), steady, partitions=range(4))
    grid.error = Error(2, "No query function registered with name 'default'")
    nodes = nodes_of(grid, 4, names=[f"partition {i}" for i in range(4)])
    assert nodes.wait_for_idle().tolist() == [True, True, True, False, True]


def test_a_node_that_goes_is_absent_and_back_under_another_id_it_is_who_it_was() -> None:
    grid = grid_of(0, 1, 2)
    nodes = nodes_of(grid, 1)
    nodes.wait_for_idle()
    there = dict(grid.partitions)
    del grid.partitions[999]  # partition 1
    np.testing.assert_array_equal(nodes.wait_for_idle(), [True, False, True])
    again = grid_of(1, first_id=5000)
    again.partitions.update({node: each for node, each in there.items() if each != 1})
    again._contexts.update(grid._contexts)
    nodes.mailbox.grid = again
    assert nodes.wait_for_idle().all()
    assert nodes.node_map.of([1]) == [4999]


def test_a_new_node_gets_the_next_number() -> None:
    grid = grid_of(1, 2)
    nodes = nodes_of(grid, 1)
    nodes.wait_for_idle()
    more = grid_of(0, 1, 2)
    nodes.mailbox.grid = more
    assert nodes.wait_for_idle().tolist() == [True, True, True]
    assert nodes.node_map.roster.names == ["partition 1", "partition 2", "partition 0"]


def test_two_nodes_of_one_partition_are_mentioned(caplog: pytest.LogCaptureFixture) -> None:
    grid = grid_of(0, 1)
    nodes = nodes_of(grid, 2)
    for context in grid._contexts.values():
        context.node_config["partition-id"] = 1
    assert nodes.wait_for_idle().tolist() == [True]
    assert "several nodes are partition 1" in caplog.text


def test_too_few_are_waited_for_up_to_the_limit() -> None:
    grid = grid_of(0, 1)
    nodes = nodes_of(grid, 3, wait=30.0)
    said = "at least 3 clients must be there, got 2 with 0 busy after 30 s; start more SuperNodes"
    with pytest.raises(TooFewClientsError, match=said):
        nodes.wait_for_idle()
    assert 30 <= grid.time < 32


def test_the_first_round_waits_for_those_expected_and_later_ones_for_fewer() -> None:
    grid = grid_of(0, 1)
    nodes = nodes_of(grid, 2, wait=30.0, expected=3)
    with pytest.raises(TooFewClientsError, match="at least 3 clients must be there, got 2"):
        nodes.wait_for_idle()
    more = grid_of(0, 1, 2)
    nodes.mailbox.grid = more
    assert nodes.wait_for_idle().size == 3
    nodes.mailbox.grid = grid
    assert nodes.wait_for_idle().sum() == 2


def test_a_node_that_owes_a_reply_is_not_drawn_until_it_answers() -> None:
    grid = grid_of(0, 1)
    nodes = nodes_of(grid, 2)
    nodes.wait_for_idle()
    send_to_the_second(nodes, takes=50.0, deadline=40.0)
    for later in (0.0, 45.0):  # in time, and late
        grid.time += later
        assert nodes.wait_for_idle().tolist() == [True, False]
    grid.time += 10
    assert nodes.wait_for_idle().all()


def test_a_node_that_never_answers_is_drawn_again_after_three_more_deadlines() -> None:
    grid = grid_of(0, 1)
    nodes = nodes_of(grid, 2)
    nodes.wait_for_idle()
    send_to_the_second(nodes, takes=NEVER, deadline=10.0)
    grid.time += 39
    assert nodes.wait_for_idle().tolist() == [True, False]
    grid.time += 2
    assert nodes.wait_for_idle().all()


def send_to_the_second(nodes: Nodes, *, takes: float, deadline: float) -> None:
    assert isinstance(nodes.mailbox.grid, MemoryGrid)
    nodes.mailbox.grid.seconds = lambda *_: takes
    content = RecordDict({"config": ConfigRecord()})
    (node,) = nodes.node_map.of([1])
    nodes.mailbox.send([Message(content, node, MessageType.TRAIN)], deadline)


def test_if_everyone_owes_a_reply_the_first_to_answer_is_waited_for() -> None:
    grid = grid_of(0, 1)
    nodes = nodes_of(grid, 2)
    nodes.wait_for_idle()
    grid.seconds = lambda client, _: 5.0 + client
    content = RecordDict({"config": ConfigRecord()})
    messages = [Message(content, node, MessageType.TRAIN) for node in nodes.node_map.of([0, 1])]
    names = nodes.mailbox.send(messages, 60.0)
    assert nodes.wait_for_idle().tolist() == [True, False]
    assert 5 <= grid.time < 6
    assert len(nodes.mailbox.collect(names)) == 2  # what came meanwhile is not lost


def test_after_a_restart_an_id_is_who_it_was_and_a_partition_may_be_anyone() -> None:
    nodes = NodeMap(Roster(["partition 3", "node 6"], {"partition 3": 7}))
    assert nodes.among([5, 6]).tolist() == [False, True]
    assert nodes.admit(9, partition=3) == 0
    assert nodes.among([9]).tolist() == [True, False]


def test_nodes_that_are_not_eligible_are_no_clients() -> None:
    nodes = nodes_of(grid_of(2, 0, 3, 1), 2, eligible=[1, 3])
    assert nodes.wait_for_idle().tolist() == [True, True]
    assert nodes.node_map.roster.names == ["partition 1", "partition 3"]
    by_id = nodes_of(grid_of(0, 1, first_id=1000), 1, eligible=[999])
    assert by_id.wait_for_idle().tolist() == [True]
    assert by_id.node_map.roster.names == ["partition 1"]


def test_a_function_sees_what_clients_say_of_themselves() -> None:
    app = client_app(query=False)

    @app.query()
    def answer(message: Message, context: Context) -> Message:
        charging = context.node_config["partition-id"] != 2
        return answer_query(message, context, samples=7, charging=charging, model="phone")

    grid = MemoryGrid(app, steady, partitions=range(4))
    seen: list[Node] = []

    def charging(node: Node) -> bool:
        seen.append(node)
        return bool(node.properties["charging"])

    nodes = nodes_of(grid, 3, eligible=charging)
    assert nodes.wait_for_idle().tolist() == [True] * 3
    assert [(each.partition, each.samples) for each in seen] == [(i, 7) for i in range(4)]
    assert seen[0].properties == {"charging": True, "model": "phone"}
    assert "partition 2" not in nodes.node_map.roster.names
    nodes.refresh()
    assert len(seen) == 4  # asked once
    few = nodes_of(grid, 4, eligible=charging, wait=3.0)
    with pytest.raises(TooFewClientsError, match="got 3 with 0 busy and 1 more not eligible"):
        few.wait_for_idle()
