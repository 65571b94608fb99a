"""Who holds how much, and of what."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedpace.data.partition import (
    classes_per_client,
    dirichlet,
    power_law_sizes,
)
from fedpace.errors import InputError

Parts = list[NDArray[np.int64]]
LABELS = np.repeat(np.arange(5), 40)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def kinds(part: NDArray[np.int64]) -> int:
    return len(set(LABELS[part].tolist()))


def partitions(seed: int) -> dict[str, Parts]:
    return {
        "dirichlet": dirichlet(LABELS, 7, rng(seed), concentration=0.5),
        "classes": classes_per_client(LABELS, [20] * 7, rng(seed), fewest=1, most=3),
    }


@given(
    n=st.integers(1, 50),
    spare=st.integers(0, 10_000),
    smallest=st.integers(1, 20),
    exponent=st.floats(0.2, 10),
    seed=st.integers(0, 100),
)
def test_power_law_sizes_sum_exactly_and_none_is_too_small(
    n: int, spare: int, smallest: int, exponent: float, seed: int
) -> None:
    total = n * smallest + spare
    sizes = power_law_sizes(n, total, rng(seed), exponent=exponent, smallest=smallest)
    assert sizes.size == n
    assert sizes.sum() == total
    assert sizes.min() >= smallest


def test_a_smaller_exponent_gives_sizes_that_differ_more() -> None:
    shares = [power_law_sizes(200, 10**6, rng(), exponent=e).max() for e in (0.7, 1.5, 5.0)]
    assert shares == sorted(shares, reverse=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n": 0}, r"n must be at least 1, got 0; give"),
        ({"total": 9}, r"total must be at least n × smallest = 10, got 9; give more"),
        ({"smallest": 0}, r"smallest must be at least 1, got 0; every client needs a sample"),
        ({"exponent": 0.0}, r"exponent must be positive .* got 0\.0; 1\.5"),
        ({"exponent": float("nan")}, r"exponent must be positive .* got nan; 1\.5"),
        ({"exponent": 1e-5}, r"exponent must be positive .* got 1e-05; 1\.5"),
        ({"exponent": float("inf")}, r"exponent must be positive .* got inf; 1\.5"),
    ],
)
def test_power_law_sizes_refuses_and_says_why(change: dict[str, float], message: str) -> None:
    arguments = {"n": 5, "total": 100, "smallest": 2, "exponent": 1.5} | change
    with pytest.raises(InputError, match=message):
        power_law_sizes(
            int(arguments["n"]),
            int(arguments["total"]),
            rng(),
            exponent=arguments["exponent"],
            smallest=int(arguments["smallest"]),
        )


@pytest.mark.parametrize("name", ["dirichlet", "classes"])
def test_the_same_generator_gives_the_same_parts(name: str) -> None:
    one, other, another = partitions(3)[name], partitions(3)[name], partitions(4)[name]
    assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(one, another, strict=True))


@given(
    labels=st.lists(st.integers(-3, 4), min_size=1, max_size=60),
    seed=st.integers(0, 100),
    concentration=st.sampled_from([1e-6, 1e-2, 0.5, 1.0, 1e6]),
    data=st.data(),
)
def test_dirichlet_uses_every_sample_once_and_divides_equally(
    labels: list[int], seed: int, concentration: float, data: st.DataObject
) -> None:
    n = data.draw(st.integers(1, len(labels)))
    parts = dirichlet(labels, n, rng(seed), concentration=concentration)
    sizes = [part.size for part in parts]
    assert len(parts) == n
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= 1
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))


@given(
    labels=st.lists(st.integers(0, 3), min_size=4, max_size=60),
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=8),
    seed=st.integers(0, 100),
    data=st.data(),
)
def test_classes_per_client_gives_exact_sizes_and_reuses_no_sample_without_need(
    labels: list[int], sizes: list[int], seed: int, data: st.DataObject
) -> None:
    classes = len(set(labels))
    fewest = data.draw(st.integers(1, min(classes, *sizes)))
    most = data.draw(st.integers(fewest, classes))
    parts = classes_per_client(labels, sizes, rng(seed), fewest=fewest, most=most)
    assert [part.size for part in parts] == sizes
    uses = np.bincount(np.concatenate(parts), minlength=len(labels))
    assert uses.sum() == sum(sizes)
    assert uses.max() - uses.min() <= 1 or uses.max() == 1
    assert uses.max() == -(-sum(sizes) // len(labels))


@given(seed=st.integers(0, 200), fewest=st.integers(1, 3), more=st.integers(0, 2))
def test_with_enough_samples_every_client_has_as_many_classes_as_allowed(
    seed: int, fewest: int, more: int
) -> None:
    most = fewest + more
    parts = classes_per_client(LABELS, [6, 3, 5, 4], rng(seed), fewest=fewest, most=most)
    for part in parts:
        assert fewest <= kinds(part) <= min(most, part.size)
        counts = np.unique(LABELS[part], return_counts=True)[1]
        assert counts.max() - counts.min() <= 1


def test_all_numbers_of_classes_occur_for_small_and_for_large_clients() -> None:
    seen: dict[int, set[int]] = {4: set(), 12: set()}
    for seed in range(60):
        for part in classes_per_client(LABELS, [4, 12], rng(seed), fewest=1, most=4):
            seen[part.size].add(kinds(part))
    assert seen == {4: {1, 2, 3, 4}, 12: {1, 2, 3, 4}}


def test_a_class_that_runs_out_is_replaced_by_another() -> None:
    labels = np.array([0, 1, 1, 1, 1, 1])
    for seed in range(20):
        parts = classes_per_client(labels, [3, 3], rng(seed), fewest=1, most=1)
        assert sorted(np.concatenate(parts).tolist()) == list(range(6))


@given(
    counts=st.lists(st.integers(1, 40), min_size=2, max_size=8),
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=8),
    seed=st.integers(0, 100),
    data=st.data(),
)
def test_rare_classes_give_no_client_more_classes_than_allowed(
    counts: list[int], sizes: list[int], seed: int, data: st.DataObject
) -> None:
    labels = np.repeat(np.arange(len(counts)), counts)
    most = data.draw(st.integers(1, len(counts)))
    # So much that `most` classes have room for the largest client when all others have theirs.
    assume(max(sizes) * len(counts) <= most * (len(labels) - sum(sizes)))
    parts = classes_per_client(labels, sizes, rng(seed), fewest=1, most=most)
    assert [part.size for part in parts] == sizes
    assert len(set(np.concatenate(parts).tolist())) == sum(sizes)
    assert max(len(set(labels[part].tolist())) for part in parts) <= most


def test_a_class_that_runs_out_is_exchanged_and_the_number_of_classes_stays() -> None:
    labels = np.repeat(np.arange(6), [5, 5, 5, 100, 100, 100])
    for seed in range(30):
        parts = classes_per_client(labels, [40, 30, 20, 10], rng(seed), fewest=2, most=2)
        for part in parts:
            counts = np.unique(labels[part], return_counts=True)[1]
            assert counts.tolist() == [part.size // 2] * 2


def test_a_client_too_large_for_equal_shares_takes_what_there_is() -> None:
    labels = np.repeat(np.arange(4), [50, 30, 10, 10])
    (part,) = classes_per_client(labels, [85], rng(), fewest=1, most=3)
    assert np.bincount(labels[part], minlength=4).tolist() == [45, 30, 10, 0]


def test_a_small_concentration_gives_few_classes_and_a_large_one_all() -> None:
    # 40 of each class for each of 5 clients: each could have one class to itself.
    def mean_kinds(concentration: float) -> float:
        return float(
            np.mean(
                [
                    kinds(part)
                    for seed in range(20)
                    for part in dirichlet(LABELS, 5, rng(seed), concentration=concentration)
                ]
            )
        )

    few, some, all_of_them = mean_kinds(0.01), mean_kinds(0.5), mean_kinds(1e4)
    assert few < 2.5 < some < all_of_them == 5


def test_with_a_large_concentration_clients_are_like_the_pool() -> None:
    labels = np.repeat([0, 1], [3000, 1000])
    parts = dirichlet(labels, 4, rng(), concentration=1e9)
    for part in parts:
        share = labels[part].mean()
        assert abs(share - 0.25) < 5 * np.sqrt(0.25 * 0.75 / part.size)


@pytest.mark.parametrize("name", ["dirichlet", "classes"])
def test_parts_are_in_random_order_so_that_any_stretch_is_representative(name: str) -> None:
    firsts = [
        LABELS[part[: part.size // 2]].mean() - LABELS[part].mean()
        for seed in range(60)
        for part in partitions(seed)[name]
    ]
    error = np.std(firsts, ddof=1) / np.sqrt(len(firsts))
    assert abs(np.mean(firsts)) < 5 * error


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: classes_per_client(LABELS, [3, 0], rng(), fewest=1, most=2),
            r"sizes must be at least 1, got 0 for client 1; ",
        ),
        (
            lambda: classes_per_client(LABELS, [1.5], rng(), fewest=1, most=2),
            r"sizes must be integers, got \[1\.5\]; give",
        ),
        (
            lambda: classes_per_client(LABELS, [], rng(), fewest=1, most=2),
            r"sizes must be integers, got \[\]; give",
        ),
        (
            lambda: dirichlet([0.5], 1, rng(), concentration=1),
            r"labels must be a vector of integers, got float64 .*; give",
        ),
        (
            lambda: dirichlet([[1]], 1, rng(), concentration=1),
            r"labels must be .* got int64 of shape \(1, 1\); give",
        ),
        (
            lambda: dirichlet([], 1, rng(), concentration=1),
            r"labels must be .* of shape \(0,\); give",
        ),
        (
            lambda: dirichlet(LABELS, 0, rng(), concentration=1),
            r"n must lie between 1 and 200, .* got 0; every",
        ),
        (
            lambda: dirichlet(LABELS, 3, rng(), concentration=0),
            r"concentration must be positive and finite, got 0; ",
        ),
        (
            lambda: dirichlet(LABELS, 3, rng(), concentration=float("nan")),
            r"concentration must be positive and finite, got nan; ",
        ),
        (
            lambda: dirichlet(LABELS, 201, rng(), concentration=1),
            r"n must lie between 1 and 200, .* got 201; every",
        ),
        (
            lambda: dirichlet(LABELS, [3], rng(), concentration=1),  # type: ignore[arg-type]
            r"n must be one number, got \[3\]; give",
        ),
        (
            lambda: classes_per_client(LABELS, [9], rng(), fewest=0, most=2),
            r"fewest and most must rise from 1 to the 5 classes .* got 0 and 2; give",
        ),
        (
            lambda: classes_per_client(LABELS, [9], rng(), fewest=3, most=2),
            r"fewest and most must rise .* got 3 and 2; give",
        ),
        (
            lambda: classes_per_client(LABELS, [9], rng(), fewest=1, most=6),
            r"fewest and most must rise .* got 1 and 6; give",
        ),
        (
            lambda: classes_per_client(LABELS, [9, 2], rng(), fewest=3, most=3),
            r"sizes must be at least fewest = 3, got 2 for client 1; lower fewest",
        ),
        (
            lambda: classes_per_client(LABELS, 9, rng(), fewest=1, most=2),
            r"sizes must be a vector, got 9; give one size per client",
        ),
    ],
)
def test_partitions_refuse_and_say_why(make: Callable[[], Parts], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()
