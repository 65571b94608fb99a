"""Tests of the cap on the weight of a round, and of the steps without a barrier."""

import math

import numpy as np
import pytest

from fedpace.estimation.stride import after_round, after_step, first_stride, first_tempo
from fedpace.rounds.rows import Row

LIMITS = (1.5, 4.0)


def row(weight: float, loss: float, *, evaluated: bool = True) -> Row:
    """Return a round of one client."""
    accuracy = 0.5 if evaluated else math.nan
    one = Row("train", 1, 1.0, loss, accuracy, 1.0, 1.0, np.array([0]), np.array([weight]))
    return one if evaluated else one._replace(loss_estimate=loss)


def caps(*rounds: Row) -> list[float]:
    """Return the cap after each round, from 2 on and after a loss of 1."""
    stride, found = after_round(first_stride(2.0), row(1.0, 1.0), LIMITS), []
    for each in rounds:
        stride = after_round(stride, each, LIMITS)
        found.append(stride["cap"])
    return found


@pytest.mark.parametrize(
    ("weight", "loss", "cap"),
    [
        (2.0, 0.9, 2.6),  # it bore the whole cap
        (2.0, 1.09, 2.6),
        (2.0, 1.15, 2.0),  # neither fine nor too much
        (4.0, 1.3, 1.5),  # half of the cap, but not below the least
        (1.4, 9.0, 2.0),  # a light round proves nothing
        (1.4, 0.5, 2.0),
        (2.0, math.inf, 1.5),
        (2.0, math.nan, 2.0),
        (2.0, -1.0, 2.6),
    ],
)
def test_the_cap_follows_the_loss_after_heavy_rounds(
    weight: float, loss: float, cap: float
) -> None:
    assert caps(row(weight, loss)) == [pytest.approx(cap)]


def test_the_cap_stays_within_its_limits() -> None:
    assert caps(*(row(9.0, 1.0) for _ in range(4))) == [
        pytest.approx(2.6),
        pytest.approx(3.38),
        4,
        4,
    ]


def test_the_heaviest_round_since_the_latest_evaluated_loss_is_judged() -> None:
    assert caps(row(2.0, 50.0, evaluated=False), row(0.1, 2.0)) == [2.0, 1.5]
    assert caps(row(0.1, 1.0), row(0.1, 2.0)) == [2.0, 2.0]


def test_negative_losses_are_judged_by_their_size() -> None:
    assert caps(row(0.1, -2.0), row(2.0, -1.7), row(2.6, -1.0)) == [2.0, 2.0, 1.5]


def steps(*losses: float, updates: int = 10) -> list[float]:
    """Return C/B after each loss, for ten at work, from 2 on and after a loss of 1."""
    tempo, found = after_step(first_tempo(2.0), row(1.0, 1.0), (1.0, 10.0)), []
    for loss in losses:
        each = row(1.0, loss)._replace(clients=np.arange(updates), weights=np.ones(updates))
        tempo = after_step(tempo, each, (1.0, 10.0))
        found.append(tempo["steps"])
    return found


@pytest.mark.parametrize(
    ("loss", "found"),
    [(0.9, 3.0), (1.04, 3.0), (1.2, 2.0), (1.4, 1.0), (math.inf, 1.0), (math.nan, 2.0), (-1, 3.0)],
)
def test_steps_follow_the_loss_of_a_whole_round_of_updates(loss: float, found: float) -> None:
    assert steps(loss) == [pytest.approx(found)]


def test_growth_is_by_updates_and_stays_within_the_limits() -> None:
    assert steps(*[1.0] * 5, updates=2)[-1] == pytest.approx(3.0)
    assert steps(*[1.0] * 9)[-1] == 10.0
    assert steps(2.0, 4.0, 8.0) == [1.0, 1.0, 1.0]


def test_few_updates_are_judged_by_the_smoothed_loss() -> None:
    assert steps(2.0, updates=2) == [2.0]  # a fifth of the way to 2
    assert steps(2.0, 2.0, updates=2) == [2.0, 1.0]


def test_a_small_loss_is_judged_by_a_third_of_the_first() -> None:
    *_, before, jump, too_much = steps(0.1, 0.1, 0.19, 0.22)
    assert before == pytest.approx(4.5)
    assert jump == before
    assert too_much == pytest.approx(before / 2)


def test_updates_between_evaluations_count() -> None:
    tempo = after_step(first_tempo(2.0), row(1.0, 1.0), (1.0, 10.0))
    for _ in range(9):
        tempo = after_step(tempo, row(1.0, 9.0, evaluated=False), (1.0, 10.0))
    assert (tempo["steps"], tempo["updates"]) == (2.0, 9)
    tempo = after_step(tempo, row(1.0, 0.9), (1.0, 10.0))
    assert tempo["steps"] == pytest.approx(3.0)
    assert tempo["updates"] == 0


def test_after_a_cut_growth_is_slower_and_the_old_least_is_forgotten() -> None:
    assert steps(2.0, 2.0, 2.0) == [1.0, pytest.approx(1.5**0.5), pytest.approx(1.5)]
    assert steps(math.inf, 2.0, 1.9) == [1.0, 1.0, pytest.approx(1.5**0.5)]
