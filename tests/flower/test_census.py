"""Nodes come and go; clients keep their numbers."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, Error, Message

from fedpace.errors import InputError, TooFewClientsError
from fedpace.flower.census import Census
from fedpace.flower.fleet import Fleet
from tests.flower.federation import DATA, client_app, steady
from tests.flower.memory_grid import MemoryGrid


def grid_of(*partitions: int, query: bool = True, first_id: int = 1000) -> MemoryGrid:
    return MemoryGrid(client_app(query=query), steady, partitions=partitions, first_id=first_id)


def test_numbers_follow_partitions_and_weights_sample_counts() -> None:
    census, grid = Census(4, 60), grid_of(2, 0, 3, 1)
    assert census.present(grid, grid.clock).all()
    assert census.fleet.names == [f"partition {i}" for i in range(4)]
    sizes = DATA.train.sizes[:4]
    np.testing.assert_allclose(census.fleet.weights, sizes / sizes.sum())


def test_only_one_node_is_asked_where_clients_answer_no_queries() -> None:
    census, grid = Census(4, 60), grid_of(2, 0, 3, 1, query=False)
    assert census.present(grid, grid.clock).all()
    assert [kind for kind, _ in grid.asked] == ["query"]
    assert census.fleet.nodes(range(4)) == sorted(grid.partitions)
    np.testing.assert_array_equal(census.fleet.weights, [0.25] * 4)
    census.present(grid, grid.clock)
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
    census = Census(4, 60)
    assert census.present(grid, grid.clock).all()
    names = ["partition 0", "partition 1", "partition 2", f"node {min(grid.partitions)}"]
    assert census.fleet.names == names


def test_two_clientapps_that_raise_are_enough_to_ask_nobody_else() -> None:
    app = client_app(query=False)

    @app.query()
    def query(message: Message, context: Context) -> Message:
        raise ValueError("no such thing")

    census, grid = Census(8, 60), MemoryGrid(app, steady, partitions=range(8))
    assert census.present(grid, grid.clock).all()
    assert [len(nodes) for _, nodes in grid.asked] == [1, 2]


def test_where_clients_told_partitions_before_all_are_asked_again(tmp_path: Path) -> None:
    before = Fleet()
    for partition in range(4):
        before.admit(partition, partition=partition)
    before.save(tmp_path / "clients.json")
    census = Census(4, 60)
    census.fleet.load(tmp_path / "clients.json")
    grid = Faulty(client_app(), steady, partitions=range(4))
    grid.error = Error(2, "No query function registered with name 'default'")
    assert census.present(grid, grid.clock).tolist() == [True, True, True, False, True]


def test_a_node_that_goes_is_absent_and_back_under_another_id_it_is_who_it_was() -> None:
    census, grid = Census(1, 60), grid_of(0, 1, 2)
    census.present(grid, grid.clock)
    there = dict(grid.partitions)
    del grid.partitions[999]  # partition 1
    np.testing.assert_array_equal(census.present(grid, grid.clock), [True, False, True])
    again = grid_of(1, first_id=5000)
    again.partitions.update({node: each for node, each in there.items() if each != 1})
    again._contexts.update(grid._contexts)
    assert census.present(again, again.clock).all()
    assert census.fleet.nodes([1]) == [4999]


def test_a_new_node_gets_the_next_number() -> None:
    census, grid = Census(1, 60), grid_of(1, 2)
    census.present(grid, grid.clock)
    more = grid_of(0, 1, 2)
    assert census.present(more, more.clock).tolist() == [True, True, True]
    assert census.fleet.names == ["partition 1", "partition 2", "partition 0"]


def test_two_nodes_of_one_partition_are_mentioned(caplog: pytest.LogCaptureFixture) -> None:
    census, grid = Census(2, 60), grid_of(0, 1)
    for context in grid._contexts.values():
        context.node_config["partition-id"] = 1
    assert census.present(grid, grid.clock).tolist() == [True]
    assert "several nodes are partition 1" in caplog.text


def test_too_few_are_waited_for_up_to_the_limit() -> None:
    census, grid = Census(3, 30), grid_of(0, 1)
    with pytest.raises(TooFewClientsError, match="2 of at least 3 clients are there after 30 s"):
        census.present(grid, grid.clock)
    assert 30 <= grid.time < 32


def test_the_first_round_waits_for_those_expected_and_later_ones_for_fewer() -> None:
    census, grid = Census(2, 30, expected=3), grid_of(0, 1)
    with pytest.raises(TooFewClientsError, match="2 of at least 3"):
        census.present(grid, grid.clock)
    more = grid_of(0, 1, 2)
    assert census.present(more, more.clock).size == 3
    assert census.present(grid, grid.clock).sum() == 2


def test_a_late_node_is_not_drawn_until_it_answers() -> None:
    census, grid = Census(2, 60), grid_of(0, 1)
    census.present(grid, grid.clock)
    (name,) = _pushed_to_slowest(grid)
    census.busy({name: census.fleet.nodes([1])[0]}, 40.0, grid.clock)
    assert census.present(grid, grid.clock).tolist() == [True, False]
    grid.time += 60
    assert census.present(grid, grid.clock).all()


def test_a_node_that_never_answers_is_drawn_again_after_three_deadlines() -> None:
    census, grid = Census(2, 60), grid_of(0, 1)
    census.present(grid, grid.clock)
    (name,) = _pushed_to_slowest(grid)
    census.busy({name: census.fleet.nodes([1])[0]}, 10.0, grid.clock)
    grid.time += 29
    assert census.present(grid, grid.clock).tolist() == [True, False]
    grid.time += 2
    assert census.present(grid, grid.clock).all()


def _pushed_to_slowest(grid: MemoryGrid) -> list[str]:
    from flwr.app import ConfigRecord, Message, MessageType, RecordDict

    grid.seconds = lambda *_: 50.0
    node = next(node for node, partition in grid.partitions.items() if partition == 1)
    content = RecordDict({"config": ConfigRecord()})
    return list(grid.push_messages([Message(content, node, MessageType.TRAIN)]))


def test_an_unknown_count_stands_for_an_average_one() -> None:
    fleet = Fleet()
    for node, samples in ((1, 10), (2, 30), (3, None)):
        fleet.admit(node, samples=samples)
    np.testing.assert_allclose(fleet.weights, [1 / 6, 3 / 6, 2 / 6])


def test_a_fleet_comes_back_from_its_file(tmp_path: Path) -> None:
    fleet, again = Fleet(), Fleet()
    fleet.admit(5, partition=3, samples=7)
    fleet.admit(6)
    fleet.save(tmp_path / "clients.json")
    again.load(tmp_path / "clients.json")
    assert again.names == ["partition 3", "node 6"]
    np.testing.assert_array_equal(again.weights, fleet.weights)
    assert again.among([5, 6]).tolist() == [False, True]  # 5 may be anyone until it tells
    assert again.admit(9, partition=3) == 0


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "clients.json"
    path.write_text("{")
    with pytest.raises(InputError, match="remove it"):
        Fleet().load(path)
