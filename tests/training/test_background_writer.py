"""Work in the background: the newest is done, and errors are told."""

import threading

import pytest

from fedpace.training.checkpoint import BackgroundWriter


def test_what_was_submitted_while_it_was_busy_is_passed_over_but_for_the_newest() -> None:
    go, begun, done = threading.Event(), threading.Event(), []

    def work(item: int) -> None:
        begun.set()
        assert go.wait(600)
        done.append(item)

    behind = BackgroundWriter(work)
    behind.submit(0)
    assert begun.wait(600)
    for item in range(1, 10):
        behind.submit(item)  # does not wait
    assert done == []
    go.set()
    behind.wait()
    assert done == [0, 9]
    behind.submit(10)
    behind.wait()
    assert done == [0, 9, 10]


def test_an_error_is_raised_once_and_the_next_item_is_tried() -> None:
    done = []

    def work(item: int) -> None:
        if item == 1:
            raise ValueError("one")
        done.append(item)

    behind = BackgroundWriter(work)
    behind.submit(1)
    with pytest.raises(ValueError, match="one"):
        behind.wait()
    behind.submit(2)
    behind.wait()
    behind.wait()
    assert done == [2]
