"""Nodes come and go; clients keep their numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

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
    census.late[name] = census.fleet.nodes([1])[0]
    assert census.present(grid, grid.clock).tolist() == [True, False]
    grid.time += 100
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
    assert fleet.counted == 2


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
