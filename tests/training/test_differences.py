"""Updates that stay as they came behave as the matrix that they stand for."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpace.training.backend import Difference, Differences, Reply, join_replies
from fedpace.training.updates import add_weighted, blocks, inner_products

SIZES = st.lists(st.integers(0, 9), min_size=1, max_size=5).filter(any)


def made(sizes: list[int], rows: int = 3, seed: int = 0) -> tuple[Differences, Any]:
    """Return updates over arrays of these sizes, every third of integers, and their matrix."""
    rng = np.random.default_rng(seed)
    kinds = [np.int8 if i % 3 == 2 else np.float32 for i in range(len(sizes))]
    draws = [[rng.normal(0, 50, n).astype(k) for n, k in zip(sizes, kinds, strict=True)]
             for _ in range(rows + 1)]  # fmt: skip
    sent, *came = draws
    matrix = np.concatenate([
        [a[i].astype(np.float64) - sent[i].astype(np.float64) for a in came]
        for i in range(len(sizes))
    ], axis=1)  # fmt: skip
    single = np.dtype(np.float32)
    return Differences([Difference(x, sent, single) for x in came], sum(sizes)), matrix


@given(SIZES, st.data())
def test_any_choice_of_rows_and_columns_is_that_of_the_matrix(sizes: list[int], data: Any) -> None:
    updates, matrix = made(sizes)
    place = st.integers(0, sum(sizes))
    begin, end, step = data.draw(place), data.draw(place), data.draw(st.integers(1, 3))
    ascending = np.array(data.draw(st.lists(st.integers(0, sum(sizes) - 1)).map(sorted)), int)
    mask = np.array([True, False, True])
    for key in (
        (slice(None), slice(begin, end)), (slice(1, None), slice(begin, end, step)),
        (mask, slice(begin, end)), (np.array([2, 0]), slice(begin, None)),
        (slice(None), ascending), (1, slice(begin, end)), (-1, 0), mask, np.array([1, 1]), 2,
        slice(0, 2), (np.array([0, 1]), np.array([0, 0])), (slice(None), slice(None, None, -1)),
        (slice(None), ascending[::-1]), ..., (slice(None), -1),
    ):  # fmt: skip
        np.testing.assert_allclose(updates[key], matrix[key], rtol=1e-6, atol=1e-4)


def test_what_is_computed_with_them_is_as_with_the_matrix() -> None:
    updates: Any
    updates, matrix = made([4, 3, 2])
    weights = np.array([0.5, 0.25, 2.0])
    same: Any = lambda found, wanted: np.testing.assert_allclose(found, wanted, rtol=1e-5)  # noqa: E731
    same(weights @ updates, weights @ matrix)
    same(updates / 2 - updates, -matrix / 2)
    same(np.linalg.norm(updates, axis=1), np.linalg.norm(matrix, axis=1))
    same(updates.mean(axis=0), matrix.mean(axis=0))
    same(np.sort(updates, axis=0), np.sort(matrix, axis=0))
    same([*updates], matrix)
    same(add_weighted(np.ones(9), weights, updates), 1 + weights @ matrix)
    same(inner_products(updates), matrix @ matrix.T)
    assert (len(updates), updates.shape, updates.size, updates.ndim) == (3, (3, 9), 27, 2)
    assert updates.dtype == np.float32 == np.asarray(updates).dtype
    with pytest.raises(IndexError):
        updates[3]


def test_they_are_made_a_matrix_once_and_then_can_be_changed() -> None:
    updates, matrix = made([2, 2])
    assert np.asarray(updates) is np.asarray(updates)
    updates[1] *= 2
    np.testing.assert_allclose(updates[1], 2 * matrix[1], rtol=1e-6)
    np.testing.assert_allclose(updates[:, 1:3][1], 2 * matrix[1, 1:3], rtol=1e-6)


def test_replies_are_joined_without_a_matrix() -> None:
    (one, first), (other, second) = made([2, 2], rows=1), made([2, 2], rows=2, seed=1)
    both: list[Any] = [one, other]
    replies = [
        Reply(np.arange(len(each)), each, np.ones(len(each)), np.ones(len(each))) for each in both
    ]
    joined: Any = join_replies(replies).updates
    assert isinstance(joined, Differences)
    assert not any(each.made for each in (one, other, joined))
    np.testing.assert_allclose(joined, np.concatenate([first, second]), rtol=1e-6)
    mixed: Any = join_replies([replies[0], replies[1]._replace(updates=second)]).updates
    np.testing.assert_allclose(mixed, joined, rtol=1e-6)


def test_blocks_of_a_large_update_cover_arrays_that_end_anywhere() -> None:
    updates, matrix = made([50_000, 1, 3, 99_999])
    found = [updates[:, piece] for piece in blocks(3, 150_003)]
    assert len(found) > 3
    np.testing.assert_allclose(np.concatenate(found, axis=1), matrix, rtol=1e-6)
