"""Random streams by name."""

import os
import subprocess
import sys

import numpy as np
import pytest

from fedpace.seeds import Seeds

FIRST = "from fedpace.seeds import Seeds; print(Seeds(7).stream('batch', 3, 1).integers(1 << 62))"


def first(seed: int, name: str, *numbers: int) -> int:
    return int(Seeds(seed).stream(name, *numbers).integers(1 << 62))


def test_the_same_name_and_numbers_give_the_same_stream() -> None:
    one, other = (Seeds(7).stream("batch", 3, 1).random(100) for _ in range(2))
    np.testing.assert_array_equal(one, other)


def test_seed_name_number_and_their_order_all_matter() -> None:
    streams: list[tuple[int, str, tuple[int, ...]]] = [
        (7, "data", ()),
        (8, "data", ()),
        (7, "init", ()),
        (7, "data", (1,)),
        (7, "data", (1, 0)),
        (7, "data", (1, 2)),
        (7, "data", (2, 1)),
        (7, "data", (1, 2, 0)),
        (1 << 40, "data", ()),
        ((1 << 40) + 7, "data", ()),
    ]
    assert len({first(seed, name, *numbers) for seed, name, numbers in streams}) == len(streams)


def test_a_number_of_zero_is_not_the_same_as_no_number() -> None:
    assert first(7, "draw") != first(7, "draw", 0)


def test_streams_of_different_names_are_uncorrelated() -> None:
    count = 20_000
    draws = np.array([Seeds(7).stream(name).standard_normal(count) for name in ("data", "init")])
    correlation = float(np.mean(draws[0] * draws[1]))
    assert abs(correlation) < 5 / np.sqrt(count)


def test_streams_of_successive_numbers_are_uncorrelated() -> None:
    count = 4000
    draws = np.array([Seeds(7).stream("time", 0, i).standard_normal() for i in range(count + 1)])
    correlation = float(np.mean(draws[1:] * draws[:-1]))
    assert abs(correlation) < 5 / np.sqrt(count)


@pytest.mark.parametrize("hash_seed", ["0", "1"])
def test_streams_are_the_same_in_another_process(hash_seed: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FIRST],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONHASHSEED": hash_seed},
    )
    assert int(done.stdout) == first(7, "batch", 3, 1)
