"""Memory of large models, which is used again."""

import gc

import numpy as np

from fedpace.training.updates import REUSED, add_weighted, empty_model


def test_a_large_model_takes_the_memory_of_one_that_is_no_longer_used() -> None:
    first = empty_model(REUSED + 1)
    first[:] = 1.0
    address = first.ctypes.data
    second = empty_model(REUSED + 1)
    assert second.ctypes.data != address  # the first is still there
    second[:] = 2.0
    part = first[5:]
    del first
    gc.collect()
    assert empty_model(REUSED + 1).ctypes.data not in (address, second.ctypes.data)
    assert part[0] == 1.0  # a part keeps the whole
    del part
    gc.collect()
    third = empty_model(REUSED + 1)
    assert third.ctypes.data == address
    assert (second == 2.0).all()


def test_models_of_other_sizes_and_small_ones_have_memory_of_their_own() -> None:
    one = empty_model(REUSED + 1)
    del one
    other = empty_model(REUSED + 2)
    assert other.size == REUSED + 2
    small = empty_model(3)
    assert small.size == 3
    assert small.flags.owndata


def test_sums_are_the_same_in_memory_that_was_used() -> None:
    rng = np.random.default_rng(0)
    base, rows = rng.normal(size=REUSED + 1), rng.normal(size=(2, REUSED + 1))
    weights = np.array([0.5, 0.25])
    once = add_weighted(base, weights, rows).copy()
    again = add_weighted(base, weights, rows)
    assert once.tobytes() == again.tobytes()
