"""When to stop, and why."""

import math

import numpy as np
import pytest

from fedpace.rounds.rows import Row
from fedpace.rounds.stopping import Stop

ALL = Stop(loss=0.5, accuracy=0.9, rounds=10, seconds=60)


def row(*, loss: float = 1.0, accuracy: float = 0.1, rounds: int = 3, seconds: float = 5) -> Row:
    nobody = (np.empty(0, dtype=np.int64), np.empty(0), np.empty(0), np.empty(0))
    return Row("train", rounds, seconds, loss, accuracy, 1.0, 1.0, *nobody)


@pytest.mark.parametrize(
    ("last", "reason"),
    [
        (row(), None),
        (row(loss=0.5), "target loss"),
        (row(loss=0.500001), None),
        (row(accuracy=0.9), "target accuracy"),
        (row(rounds=10), "rounds"),
        (row(rounds=9), None),
        (row(seconds=60), "seconds"),
        (row(loss=math.nan), "diverged"),
        (row(loss=math.inf), "diverged"),
        (row(loss=math.nan, accuracy=1.0), "diverged"),
    ],
)
def test_says_why_training_ends(last: Row, reason: str | None) -> None:
    assert ALL.reason(last) == reason


def test_what_is_none_does_not_count() -> None:
    assert Stop().reason(row(loss=0, accuracy=1, rounds=10**9, seconds=1e9)) is None


def test_divergence_counts_even_when_nothing_else_does() -> None:
    assert Stop().reason(row(loss=math.nan)) == "diverged"


def test_a_target_that_is_reached_comes_before_the_limits() -> None:
    assert ALL.reason(row(loss=0.1, accuracy=1, rounds=10, seconds=60)) == "target loss"
