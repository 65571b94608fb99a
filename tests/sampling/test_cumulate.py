"""Sums within parts, as those of each part by itself."""

import numpy as np
import pytest

from fedpace.sampling.tiers import cumulate


@pytest.mark.parametrize(
    "sizes", [[3], [4, 4, 5], [1, 1000, 1, 1, 1, 1, 1, 1], [2] * 50 + [3] * 50]
)
def test_sums_are_those_of_each_part_to_the_last_bit(sizes: list[int]) -> None:
    edges = np.append(0, np.cumsum(sizes))
    values = np.random.default_rng(0).exponential(size=int(edges[-1]))
    parts = [np.cumsum(each) for each in np.split(values, edges[1:-1])]
    assert cumulate(values, edges).tobytes() == np.concatenate(parts).tobytes()
