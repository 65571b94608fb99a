"""When to stop, and why."""

import math

import pytest

from fedpace.errors import InputError
from fedpace.training.history import Row
from fedpace.training.stopping import Stop

from .fakes import row

ALL = Stop(loss=0.5, accuracy=0.9, rounds=10, seconds=60)
BLIND = Stop(loss=0.5, accuracy=0.9, rounds=10, seconds=60, blind=True)


@pytest.mark.parametrize(
    ("last", "reason"),
    [
        (row(), ""),
        (row(loss=0.5), "target loss"),
        (row(loss=0.500001), ""),
        (row(accuracy=0.9), "target accuracy"),
        (row(accuracy=math.nan), ""),
        (row(round=10), "rounds"),
        (row(round=9), ""),
        (row(seconds=60.0), "seconds"),
        (row(loss=math.nan), "diverged"),
        (row(loss=math.inf), "diverged"),
        (row(loss=math.nan, accuracy=1.0), "diverged"),
    ],
)
def test_says_why_training_ends(last: Row, reason: str) -> None:
    assert ALL.reason(last) == reason


def test_what_is_none_does_not_count() -> None:
    assert Stop(loss=-1).reason(row(loss=0.0, accuracy=1.0, round=10**9, seconds=1e9)) == ""


def test_divergence_counts_even_when_nothing_else_does() -> None:
    assert Stop(rounds=9).reason(row(loss=math.nan)) == "diverged"


def test_a_rule_that_never_ends_is_refused() -> None:
    with pytest.raises(InputError, match="Stop must end a run, got no limit"):
        Stop()
    assert Stop(blind=True).reason(row(loss=math.nan)) == ""  # whoever drives it ends it


def test_a_target_that_is_reached_comes_before_the_limits() -> None:
    assert ALL.reason(row(loss=0.1, accuracy=1.0, round=10, seconds=60.0)) == "target loss"


@pytest.mark.parametrize(
    ("last", "reason"),
    [
        (row(loss=math.nan), ""),
        (row(loss=math.nan, accuracy=1.0), "target accuracy"),
        (row(loss=math.nan, round=10), "rounds"),
        (row(loss=math.nan, seconds=60.0), "seconds"),
        (row(loss=math.inf), "diverged"),
        (row(loss=-math.inf), "diverged"),
        (row(loss=0.4), "target loss"),
    ],
)
def test_where_nobody_measures_a_loss_of_nan_ends_nothing(last: Row, reason: str) -> None:
    assert BLIND.reason(last) == reason
