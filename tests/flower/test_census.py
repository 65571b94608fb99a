"""Nodes come and go; clients keep their numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Error, Message, MessageType, RecordDict

from fedpace.errors import TooFewClientsError
from fedpace.flower.census import Census
from fedpace.flower.exchange import Mail
from fedpace.flower.nodes import Nodes
from fedpace.flower.settings import Settings
from fedpace.remote.roster import Roster
from tests.flower.federation import DATA, client_app, steady
from tests.flower.memory_grid import NEVER, MemoryGrid


def grid_of(*partitions: int, query: bool = True, first_id: int = 1000) -> MemoryGrid:
    return MemoryGrid(client_app(query=query), steady, partitions=partitions, first_id=first_id)


def census_of(
    grid: MemoryGrid, at_least: int, *, names: Iterable[str] = (), **settings: Any
) -> Census:
    known = Settings(**{"k": 1, "query": True, "min_available_nodes": at_least} | settings)
    return Census(Mail(grid, grid.clock), Nodes(Roster(names)), known)


def test_numbers_follow_partitions_and_weights_sample_counts() -> None:
    grid = grid_of(2, 0, 3, 1)
    census = census_of(grid, 4)
    assert census.present().all()
    assert census.nodes.roster.names == [f"partition {i}" for i in range(4)]
    sizes = DATA.train.sizes[:4]
    np.testing.assert_allclose(census.nodes.roster.weights, sizes / sizes.sum())


def test_only_one_node_is_asked_where_clients_answer_no_queries() -> None:
    grid = grid_of(2, 0, 3, 1, query=False)
    census = census_of(grid, 4)
    assert census.present().all()
    assert [kind for kind, _ in grid.asked] == ["query"]
    assert census.nodes.of(range(4)) == sorted(grid.partitions)
    np.testing.assert_array_equal(census.nodes.roster.weights, [0.25] * 4)
    census.present()
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
    census = census_of(grid, 4)
    assert census.present().all()
    names = ["partition 0", "partition 1", "partition 2", f"node {min(grid.partitions)}"]
    assert census.nodes.roster.names == names


def test_two_clientapps_that_raise_are_enough_to_ask_nobody_else() -> None:
    app = client_app(query=False)

    @app.query()
    def query(message: Message, context: Context) -> Message:
        raise ValueError("no such thing")

    grid = MemoryGrid(app, steady, partitions=range(8))
    census = census_of(grid, 8)
    assert census.present().all()
    assert [len(nodes) for _, nodes in grid.asked] == [1, 2]


def test_where_clients_told_partitions_before_all_are_asked_again() -> None:
    grid = Faulty(client_app(), steady, partitions=range(4))
    grid.error = Error(2, "No query function registered with name 'default'")
    census = census_of(grid, 4, names=[f"partition {i}" for i in range(4)])
    assert census.present().tolist() == [True, True, True, False, True]


def test_a_node_that_goes_is_absent_and_back_under_another_id_it_is_who_it_was() -> None:
    grid = grid_of(0, 1, 2)
    census = census_of(grid, 1)
    census.present()
    there = dict(grid.partitions)
    del grid.partitions[999]  # partition 1
    np.testing.assert_array_equal(census.present(), [True, False, True])
    again = grid_of(1, first_id=5000)
    again.partitions.update({node: each for node, each in there.items() if each != 1})
    again._contexts.update(grid._contexts)
    census.mail.grid = again
    assert census.present().all()
    assert census.nodes.of([1]) == [4999]


def test_a_new_node_gets_the_next_number() -> None:
    grid = grid_of(1, 2)
    census = census_of(grid, 1)
    census.present()
    more = grid_of(0, 1, 2)
    census.mail.grid = more
    assert census.present().tolist() == [True, True, True]
    assert census.nodes.roster.names == ["partition 1", "partition 2", "partition 0"]


def test_two_nodes_of_one_partition_are_mentioned(caplog: pytest.LogCaptureFixture) -> None:
    grid = grid_of(0, 1)
    census = census_of(grid, 2)
    for context in grid._contexts.values():
        context.node_config["partition-id"] = 1
    assert census.present().tolist() == [True]
    assert "several nodes are partition 1" in caplog.text


def test_too_few_are_waited_for_up_to_the_limit() -> None:
    grid = grid_of(0, 1)
    census = census_of(grid, 3, wait=30.0)
    said = "at least 3 clients must be there, got 2 with 0 busy after 30 s; start more SuperNodes"
    with pytest.raises(TooFewClientsError, match=said):
        census.present()
    assert 30 <= grid.time < 32


def test_the_first_round_waits_for_those_expected_and_later_ones_for_fewer() -> None:
    grid = grid_of(0, 1)
    census = census_of(grid, 2, wait=30.0, expected_nodes=3)
    with pytest.raises(TooFewClientsError, match="at least 3 clients must be there, got 2"):
        census.present()
    more = grid_of(0, 1, 2)
    census.mail.grid = more
    assert census.present().size == 3
    census.mail.grid = grid
    assert census.present().sum() == 2


def test_a_node_that_owes_a_reply_is_not_drawn_until_it_answers() -> None:
    grid = grid_of(0, 1)
    census = census_of(grid, 2)
    census.present()
    send_to_the_second(census, takes=50.0, deadline=40.0)
    for later in (0.0, 45.0):  # in time, and late
        grid.time += later
        assert census.present().tolist() == [True, False]
    grid.time += 10
    assert census.present().all()


def test_a_node_that_never_answers_is_drawn_again_after_three_more_deadlines() -> None:
    grid = grid_of(0, 1)
    census = census_of(grid, 2)
    census.present()
    send_to_the_second(census, takes=NEVER, deadline=10.0)
    grid.time += 39
    assert census.present().tolist() == [True, False]
    grid.time += 2
    assert census.present().all()


def send_to_the_second(census: Census, *, takes: float, deadline: float) -> None:
    assert isinstance(census.mail.grid, MemoryGrid)
    census.mail.grid.seconds = lambda *_: takes
    content = RecordDict({"config": ConfigRecord()})
    (node,) = census.nodes.of([1])
    census.mail.send([Message(content, node, MessageType.TRAIN)], deadline)


def test_if_everyone_owes_a_reply_the_first_to_answer_is_waited_for() -> None:
    grid = grid_of(0, 1)
    census = census_of(grid, 2)
    census.present()
    grid.seconds = lambda client, _: 5.0 + client
    content = RecordDict({"config": ConfigRecord()})
    messages = [Message(content, node, MessageType.TRAIN) for node in census.nodes.of([0, 1])]
    names = census.mail.send(messages, 60.0)
    assert census.present().tolist() == [True, False]
    assert 5 <= grid.time < 6
    assert len(census.mail.collect(names)) == 2  # what came meanwhile is not lost


def test_after_a_restart_an_id_is_who_it_was_and_a_partition_may_be_anyone() -> None:
    nodes = Nodes(Roster(["partition 3", "node 6"], {"partition 3": 7}))
    assert nodes.among([5, 6]).tolist() == [False, True]
    assert nodes.admit(9, partition=3) == 0
    assert nodes.among([9]).tolist() == [True, False]
