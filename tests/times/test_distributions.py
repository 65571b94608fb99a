"""Usual round times from a text."""

from pathlib import Path

import numpy as np
import pytest

from fedpace.checks import FloatArray
from fedpace.errors import InputError
from fedpace.times.distributions import usual_times

COUNT = 20_000
SIZES = np.arange(1, COUNT + 1)


def times(spec: str, sizes: np.ndarray = SIZES, seed: int = 0) -> FloatArray:
    return usual_times(spec, sizes, np.random.default_rng(seed))


def assert_mean(values: FloatArray, expected: float) -> None:
    assert abs(values.mean() - expected) < 5 * values.std(ddof=1) / np.sqrt(values.size)


def test_constant_times_are_constant() -> None:
    assert set(times("constant:2.5").tolist()) == {2.5}


def test_uniform_times_lie_between_the_ends_and_average_to_the_middle() -> None:
    drawn = times("uniform:0.187:7.159")
    assert drawn.min() >= 0.187
    assert drawn.max() <= 7.159
    assert_mean(drawn, (0.187 + 7.159) / 2)


def test_exponential_times_average_to_the_mean_and_spread_as_much() -> None:
    drawn = times("exponential:3")
    assert_mean(drawn, 3)
    assert_mean((drawn - 3) ** 2, 9)


def test_lognormal_times_have_the_median_and_the_sigma() -> None:
    logs = np.log(times("lognormal:2:0.5"))
    assert_mean(logs, np.log(2))
    assert_mean((logs - np.log(2)) ** 2, 0.25)


@pytest.mark.parametrize(
    "spec", ["uniform:1:2", "exponential:1", "lognormal:1:1", "correlated:exponential:1"]
)
def test_the_same_generator_gives_the_same_times(spec: str) -> None:
    np.testing.assert_array_equal(times(spec), times(spec))
    assert (times(spec) != times(spec, seed=1)).any()


@pytest.mark.parametrize("spec", ["uniform:1:2", "exponential:1", "lognormal:1:1"])
def test_correlated_times_are_the_same_times_in_the_order_of_the_sizes(spec: str) -> None:
    sizes = np.random.default_rng(1).permutation(200)
    drawn = times(f"correlated:{spec}", sizes)
    np.testing.assert_array_equal(np.argsort(drawn), np.argsort(sizes))
    np.testing.assert_array_equal(np.sort(drawn), np.sort(times(spec, sizes)))


def test_times_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "times.txt"
    path.write_text("1.5\n# a comment\n0.25\n3\n")
    assert times(f"file:{path}", np.ones(3)).tolist() == [1.5, 0.25, 3]


def test_a_file_can_be_sorted_by_size_too(tmp_path: Path) -> None:
    path = tmp_path / "times.txt"
    path.write_text("1.5\n0.25\n3\n")
    assert times(f"correlated:file:{path}", np.array([9, 5, 7])).tolist() == [3, 0.25, 1.5]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1\n2\n", r"holds 2 times for 3 clients; give one"),
        ("1\ntwo\n3\n", r"cannot be read as times: .*; one number a line"),
        ("1 2\n3 4\n5 6\n", r"holds 6 times for 3 clients; give one"),
        ("1\n0\n3\n", r"must be positive, got 0 for client 1; "),
        ("1\nnan\n3\n", r"must be finite, got nan for client 1; "),
    ],
)
def test_refuses_files_that_do_not_hold_a_time_per_client(
    tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "times.txt"
    path.write_text(text)
    with pytest.raises(InputError, match=message) as raised:
        times(f"file:{path}", np.ones(3))
    assert str(path) in str(raised.value)


def test_an_empty_file_is_refused_without_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "times.txt"
    path.write_text("")
    with pytest.raises(InputError, match="times"):
        times(f"file:{path}", np.ones(3))


def test_refuses_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.txt: cannot be read as times: .*; one number"):
        times(f"file:{tmp_path / 'none.txt'}")


@pytest.mark.parametrize(
    "spec",
    [
        "constant", "constant:", "constant:0", "constant:-1", "constant:nan", "constant:inf",
        "constant:1:2", "uniform:1", "uniform:2:1", "uniform:0:1", "exponential:x",
        "exponential:", "lognormal:1", "lognormal:1:0", "correlated:uniform:2:1",
    ],
)  # fmt: skip
def test_refuses_parameters_that_are_not_positive_numbers_of_the_right_count(spec: str) -> None:
    with pytest.raises(InputError, match=r"times must give positive numbers .* got '.*'; write"):
        times(spec)


@pytest.mark.parametrize("spec", ["exponental:1", "correlated:exponental:1"])
def test_an_unknown_distribution_is_refused_with_the_nearest(spec: str) -> None:
    with pytest.raises(InputError, match=r"got 'exponental:1'; did you mean 'exponential'\?"):
        times(spec)
