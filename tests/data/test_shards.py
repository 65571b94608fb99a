"""All samples in two arrays."""

import numpy as np
import pytest

from fedpace.data.shards import Shards
from fedpace.errors import InputError


def test_joins_clients_and_gives_them_back() -> None:
    rng = np.random.default_rng(0)
    xs = [rng.normal(size=(size, 2)) for size in (3, 1, 4)]
    ys = [rng.integers(5, size=size) for size in (3, 1, 4)]
    shards = Shards.from_clients(xs, ys)
    assert shards.n == 3
    assert shards.sizes.tolist() == [3, 1, 4]
    assert shards.classes == max(int(y.max()) for y in ys) + 1
    for i, (x, y) in enumerate(zip(xs, ys, strict=True)):
        np.testing.assert_array_equal(shards.client(i).x, x)
        np.testing.assert_array_equal(shards.client(i).y, y)
        assert shards.client(i).n == 1


def test_the_most_common_label_is_the_first_of_several_and_0_for_nothing() -> None:
    ys = [np.array(each, np.int64) for each in ([3, 1, 3], [2, 1], [], [0, 4, 4, 0, 4])]
    shards = Shards.from_clients([np.ones((len(y), 1)) for y in ys], ys)
    assert shards.common_labels.tolist() == [3, 1, 0, 4]


def test_a_client_is_a_view_not_a_copy() -> None:
    shards = Shards(np.eye(3), np.array([0, 1, 1]), np.array([0, 2, 3]))
    assert np.shares_memory(shards.client(1).x, shards.x)


@pytest.mark.parametrize(
    ("x", "y"),
    [(np.ones(3), np.zeros(3)), (np.ones((3, 2)), np.zeros(2)), (np.ones((3, 2)), np.eye(2))],
)
def test_refuses_classes_that_do_not_fit_the_samples(x: np.ndarray, y: np.ndarray) -> None:
    with pytest.raises(InputError, match=r"y must .*got shapes .*; give x as"):
        Shards(x, y.astype(np.int64), np.array([0, 3]))


@pytest.mark.parametrize("offsets", [[0], [0, 2], [1, 3], [0, 4], [0, 3, 2, 3], []])
def test_refuses_offsets_that_do_not_rise_from_first_to_last(offsets: list[int]) -> None:
    with pytest.raises(InputError, match=r"offsets must rise from 0 .* 3; use Shards"):
        Shards(np.ones((3, 2)), np.zeros(3, dtype=np.int64), np.array(offsets, dtype=np.int64))


def test_labels_that_are_no_integers_stay_as_they_are() -> None:
    shards = Shards.from_clients(
        [np.ones((2, 1)), np.ones((1, 1))], [np.array([0.9, 0.2]), np.array([1.5])]
    )
    assert shards.y.tolist() == [0.9, 0.2, 1.5]
    with pytest.raises(InputError, match="y must be classes, integers from 0, got float64"):
        _ = shards.classes


def test_samples_and_labels_may_have_any_shape() -> None:
    shards = Shards.from_clients([np.ones((2, 1, 4, 4))], [np.zeros((2, 5), np.int32)])
    assert (shards.x.shape, shards.client(0).y.shape) == ((2, 1, 4, 4), (2, 5))
