"""Sorting as NumPy's stable sort does."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpace.sampling.order import DIGITS, FEW, stable_order


@given(
    st.integers(0, 3),
    st.sampled_from([1, FEW, FEW + 1, 3 * FEW]),
    st.sampled_from([2, 50, DIGITS, 10**9]),
    st.sampled_from([np.int64, np.float64]),
)
def test_order_is_that_of_the_stable_sort(
    seed: int, size: int, different: int, kind: type[np.generic]
) -> None:
    values = np.random.default_rng(seed).integers(different, size=size).astype(kind)
    np.testing.assert_array_equal(stable_order(values), np.argsort(values, kind="stable"))


@pytest.mark.parametrize("share", [0.0, 0.01, 0.4, 0.9])
def test_ties_among_different_values_keep_their_order(share: float) -> None:
    rng = np.random.default_rng(1)
    values = np.where(rng.random(20_000) < share, 0.5, rng.exponential(size=20_000))
    values[-1] = values[7]
    np.testing.assert_array_equal(stable_order(values), np.argsort(values, kind="stable"))


def test_negative_integers_are_sorted_too() -> None:
    values = np.random.default_rng(2).integers(-5, 5, size=2 * FEW)
    np.testing.assert_array_equal(stable_order(values), np.argsort(values, kind="stable"))
