"""How long a round waits."""

import numpy as np
import pytest

from fedpace.backends.remote.roster import Deadlines
from fedpace.errors import InputError


def measured(times: list[float]) -> Deadlines:
    deadlines = Deadlines(len(times))
    for client, seconds in enumerate(times):
        if not np.isnan(seconds):
            deadlines.observe(client, seconds)
    return deadlines


def test_waits_as_long_as_it_is_told() -> None:
    assert Deadlines(3, given=7.0).wait(np.arange(3)) == 7.0
    with pytest.raises(InputError, match="deadline must be positive, got 0"):
        Deadlines(3, given=0.0)


def test_waits_three_times_the_slowest_of_the_drawn() -> None:
    deadlines = measured([1.0, 2.0, 4.0, 8.0])
    assert deadlines.wait(np.array([0, 2])) == 12.0
    assert deadlines.wait(np.array([3])) == 24.0


def test_waits_for_a_moment_at_least() -> None:
    assert measured([0.001, 0.002]).wait(np.arange(2)) == 2.0


def test_waits_longer_for_someone_who_was_never_measured() -> None:
    assert Deadlines(2).wait(np.arange(2)) == 60.0
    assert measured([1.0, np.nan]).wait(np.arange(2)) == 10.0
    assert measured([30.0, np.nan]).wait(np.arange(2)) == 300.0


def test_is_not_stretched_without_end_by_one_who_answers_ever_later() -> None:
    deadlines = measured([1.0] * 9 + [1.0])
    for _ in range(50):
        wait = deadlines.wait(np.array([9]))
        deadlines.observe(9, 0.99 * wait)
    assert wait == 30.0


def test_is_not_stretched_without_end_for_one_who_was_never_measured() -> None:
    # One answered after an hour: that says nothing about the one who never answered.
    assert measured([1.0] * 8 + [3600.0, np.nan]).wait(np.array([9])) == 60.0
    assert measured([5.0] * 8 + [3600.0, np.nan]).wait(np.array([9])) == 150.0


def test_follows_a_device_that_has_become_slower_or_faster() -> None:
    deadlines = measured([10.0])
    for _ in range(5):
        deadlines.observe(0, 1.0)
    assert deadlines.estimates[0] == 1.0
