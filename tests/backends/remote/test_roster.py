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


@pytest.mark.parametrize(
    ("together", "most"), [(0.5, [0.24, 0.42, 0.48, 0.501]), (0.3, [0.23, 0.25, 0.27, 0.301])]
)
def test_colluders_do_not_multiply_the_bound(together: float, most: list[float]) -> None:
    for liars, share in zip((1, 2, 3, 5), most, strict=True):
        said = {f"honest-{i}": 100 for i in range(40 - liars)}
        said |= {f"liar-{i}": 2**52 - i for i in range(liars)}
        weights = Roster(samples=said, together=together).weights
        assert weights[40 - liars :].sum() <= share
        np.testing.assert_allclose(weights[: 40 - liars], weights[0])


def test_the_joint_bound_lowers_the_largest_to_one_level() -> None:
    counts = [*range(1, 17), 100, 200, 40]  # of 19, the largest two
    found = Roster(samples={str(i): each for i, each in enumerate(counts)}, together=0.5).counts
    assert [found[i] for i in range(16)] == counts[:16]
    assert (found[16], found[17], found[18]) == (88, 88, 40)
    loose = Roster(samples={str(i): each for i, each in enumerate(counts)}, together=0.9).counts
    assert [*loose.values()] == [loose[int(i)] for i in loose]
    assert loose[17] == min(200, 12 * (sum(counts) - 200) / 18)


def test_the_joint_bound_leaves_the_operators_counts_and_small_fleets_alone() -> None:
    said = {str(i): 10 for i in range(18)} | {"large": 500, "larger": 600}
    kept = Roster(samples=said, given={"large": 500, "larger": 600}).counts
    assert (kept[18], kept[19]) == (500, 600)
    small = Roster(samples={"a": 1, "b": 1, "c": 10}).counts
    assert small[2] == 10


@pytest.mark.parametrize("together", [0.2, 0.3, 0.5])
def test_the_joint_bound_holds_in_every_fleet_and_binds_no_more_than_it_must(
    together: float,
) -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        n = int(rng.integers(16, 60))
        counts = np.ceil(100 * rng.pareto(rng.uniform(0.3, 2.0), n) + 1).astype(int)
        said = {str(i): int(each) for i, each in enumerate(counts)}
        loose = np.array([*Roster(samples=said, together=1.0).counts.values()])
        found = np.array([*Roster(samples=said, together=together).counts.values()])
        share = np.sort(found)[-(n // 8) :].sum() / found.sum()
        level = found.max()
        np.testing.assert_allclose(np.sort(found), np.sort(np.minimum(loose, level)))
        assert share <= together + 1e-9
        assert share == pytest.approx(together) or level == loose.max()
