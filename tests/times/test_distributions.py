"""Usual round times from a text."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr

from fedpace.checks import FloatArray
from fedpace.errors import InputError
from fedpace.times.distributions import ORDERS, device_times
from fedpace.times.links import trace_seconds

COUNT = 20_000
SIZES = np.arange(1, COUNT + 1)


def times(
    spec: str, sizes: np.ndarray = SIZES, seed: int = 0, *, correlation: float = 0.0
) -> FloatArray:
    return device_times(spec, sizes, np.random.default_rng(seed), correlation=correlation).seconds


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
    "spec",
    [
        "uniform:1:2", "exponential:1", "lognormal:1:1", "correlated:exponential:1",
        "anticorrelated:exponential:1", "trace:fedscale", "correlated:trace:fedscale",
    ],
)  # fmt: skip
def test_the_same_generator_gives_the_same_times(spec: str) -> None:
    np.testing.assert_array_equal(times(spec), times(spec))
    assert (times(spec) != times(spec, seed=1)).any()


@pytest.mark.parametrize("spec", ["uniform:1:2", "exponential:1", "lognormal:1:1"])
def test_correlated_times_are_the_same_times_in_the_order_of_the_sizes(spec: str) -> None:
    sizes = np.random.default_rng(1).permutation(200)
    drawn = times(f"correlated:{spec}", sizes)
    np.testing.assert_array_equal(np.argsort(drawn), np.argsort(sizes))
    np.testing.assert_array_equal(np.sort(drawn), np.sort(times(spec, sizes)))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("spec", ["uniform:1:2", "exponential:1", "trace:fedscale"])
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 3)), min_size=1, max_size=40))
def test_an_order_hands_out_the_same_times_by_what_clients_hold(
    order: str, spec: str, clients: list[tuple[int, int]]
) -> None:
    sizes, labels = np.array(clients).T
    ordered = device_times(
        f"{order}:{spec}", sizes, np.random.default_rng(0), labels=labels
    ).seconds
    np.testing.assert_array_equal(np.sort(ordered), np.sort(times(spec, sizes)))
    key = {"correlated": sizes, "anticorrelated": -sizes, "by-label": labels}[order]
    fastest_first = sorted(range(len(clients)), key=lambda i: (key[i], i))
    assert (np.diff(ordered[fastest_first]) >= 0).all()


def test_by_label_slow_clients_share_a_label() -> None:
    labels = np.array([2, 0, 1, 2, 0, 1])
    ordered = device_times(
        "by-label:exponential:1", np.ones(6, np.int64), np.random.default_rng(0), labels=labels
    ).seconds
    assert np.argsort(ordered).tolist() == [1, 4, 2, 5, 0, 3]


@pytest.mark.parametrize(("labels", "got"), [(None, "none"), (np.zeros(2, np.int64), "2")])
def test_by_label_without_a_label_per_client_is_refused(
    labels: np.ndarray | None, got: str
) -> None:
    message = rf"labels must have one entry per client .*, got {got} for 3 clients; give .*label"
    with pytest.raises(InputError, match=message):
        device_times("by-label:constant:1", SIZES[:3], np.random.default_rng(0), labels=labels)


def test_a_trace_gives_the_times_of_its_devices() -> None:
    expected = np.add(
        *trace_seconds("fedscale", 50, np.random.default_rng(0), samples=10, megabits=2)
    )
    drawn = device_times(
        "trace:fedscale", SIZES[:50], np.random.default_rng(0), samples=10, megabits=2
    ).seconds
    np.testing.assert_array_equal(drawn, expected)


@pytest.mark.parametrize("order", ORDERS)
def test_the_work_of_a_round_counts_in_every_order(order: str) -> None:
    def total(megabits: float) -> float:
        rng, zeros = np.random.default_rng(0), np.zeros(50, np.int64)
        work = {"samples": 1e-9, "megabits": megabits}
        ordered = device_times(f"{order}:trace:fedscale", zeros, rng, labels=zeros, **work).seconds
        return float(ordered.sum())

    assert total(6.0) == pytest.approx(3 * total(2.0))


def test_an_unknown_trace_is_refused() -> None:
    with pytest.raises(InputError, match=r"times must name a known trace, got 'trace:flesh'; did"):
        times("trace:flesh")


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


def test_one_number_says_how_far_times_go_with_sizes() -> None:
    sizes = np.random.default_rng(1).integers(10, 1000, 400)
    plain = times("exponential:1", sizes)
    found = {c: times("exponential:1", sizes, correlation=c) for c in (-1.0, -0.5, 0.0, 0.5, 1.0)}
    for each in found.values():
        np.testing.assert_array_equal(np.sort(each), np.sort(plain))
    np.testing.assert_array_equal(found[0.0], plain)
    np.testing.assert_array_equal(found[1.0], times("correlated:exponential:1", sizes))
    np.testing.assert_array_equal(found[-1.0], times("anticorrelated:exponential:1", sizes))
    ranks = {c: spearmanr(sizes, each).statistic for c, each in found.items()}
    # Of normal scores with correlation c, ranks correlate by 6/π arcsin(c/2): 0.48 for 0.5.
    assert ranks[0.5] == pytest.approx(0.48, abs=5 / 20)
    assert ranks[-1.0] < ranks[-0.5] < -0.2 < 0.2 < ranks[0.5] < ranks[1.0]


def test_a_correlation_beyond_one_is_refused() -> None:
    with pytest.raises(InputError, match="correlation must be from -1 to 1, got"):
        times("exponential:1", np.array([1, 2]), correlation=1.5)
