import numpy as np
import pytest

from fedpace.backends.remote.roster import Roster


def test_a_name_keeps_its_number_and_a_new_one_gets_the_next() -> None:
    roster = Roster(["a", "b"])
    assert [roster.number(name) for name in ("b", "c", "a", "c")] == [1, 2, 0, 2]
    assert (roster.names, len(roster)) == (["a", "b", "c"], 3)
    assert "c" in roster
    assert "d" not in roster


def test_counts_come_back_by_name_and_make_the_same_roster() -> None:
    roster = Roster("abc", {"c": 30, "a": 10})
    assert roster.samples == {"a": 10, "c": 30}
    assert (roster.count(0), roster.count(1)) == (10, None)
    np.testing.assert_array_equal(Roster("abc", roster.samples).weights, roster.weights)


def test_tells_whether_a_count_is_news() -> None:
    roster = Roster("a")
    assert [roster.learn(0, count) for count in (5, 5, 6)] == [True, False, True]


def test_weights_follow_the_counts_and_the_unknown_get_their_mean() -> None:
    np.testing.assert_array_equal(Roster("abcd").weights, np.full(4, 0.25))
    weights = Roster("abcd", {"a": 10, "d": 30}).weights
    np.testing.assert_allclose(weights, [1 / 8, 1 / 4, 1 / 4, 3 / 8])


def test_a_count_far_beyond_the_others_weighs_for_twelve_times_their_mean() -> None:
    honest = {f"device-{i}": 100 + i for i in range(5)}
    roster = Roster(samples=honest | {"liar": 2**52, "other liar": 2**50})
    counts = roster.counts
    assert counts[5] == pytest.approx(12 * (sum(honest.values()) + counts[6]) / 6)
    assert counts[6] == pytest.approx(12 * 102)
    assert roster.count(5) == 2**52  # what it said is kept, to see whether it stays with it


def test_counts_that_the_operator_gives_are_neither_bounded_nor_learned() -> None:
    given = {"hospital": 10**6}
    roster = Roster(["a", "b", "c"], {"a": 10, "b": 12, "c": 11}, given=given)
    hospital = roster.number("hospital")
    assert not roster.learn(hospital, 5)
    assert roster.counts[hospital] == 10**6
