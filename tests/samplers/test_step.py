"""The cap on the weight of a round, and the size of asynchronous steps."""

import math
from collections.abc import Sequence
from itertools import cycle

import numpy as np
import pytest

from fedpace.samplers.step import (
    StepsPerRound,
    initial_round_weight_cap,
    initial_steps_per_round,
    steps_per_round,
    update_round_weight_cap,
    update_steps_per_round,
)
from fedpace.training.history import Row

LIMITS = (1.5, 4.0)


def row(weight: float, loss: float, *, evaluated: bool = True) -> Row:
    """Return a round of one client."""
    accuracy = 0.5 if evaluated else math.nan
    one = Row("train", 1, 1.0, loss, accuracy, 1.0, 1.0, np.array([0]), np.array([weight]))
    return one if evaluated else one._replace(loss_estimate=loss)


def caps(*rounds: Row) -> list[float]:
    """Return the cap after each round, from 2 on and after a loss of 1."""
    stride, found = (
        update_round_weight_cap(initial_round_weight_cap(2.0), row(1.0, 1.0), LIMITS),
        [],
    )
    for each in rounds:
        stride = update_round_weight_cap(stride, each, LIMITS)
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


C_OVER_B = (1.0, 10.0)


def begun(rate: float = 0.1) -> StepsPerRound:
    """Return the state after a first step at this rate: C/B is 4, and the loss 1."""
    return StepsPerRound(
        **update_steps_per_round(initial_steps_per_round(4.0), row(1.0, 1.0), C_OVER_B, rate=rate)
    )


def steps(*losses: float, updates: int = 10, rates: Sequence[float] = (0.1,)) -> list[float]:
    """Return C/B after each loss, for ten at work, from 4 on and after a loss of 1."""
    tempo, found = begun(), []
    for loss, rate in zip(losses, cycle(rates), strict=False):
        each = row(1.0, loss)._replace(clients=np.arange(updates), weights=np.ones(updates))
        tempo = update_steps_per_round(tempo, each, C_OVER_B, rate=rate)
        found.append(tempo["steps"])
    return found


@pytest.mark.parametrize(
    ("loss", "found"),
    [(0.9, 6.0), (1.04, 6.0), (1.2, 4.0), (1.4, 2.0), (math.inf, 2.0), (math.nan, 4.0), (-1, 6.0)],
)
def test_steps_follow_the_loss_of_a_whole_round_of_updates(loss: float, found: float) -> None:
    assert steps(loss) == [pytest.approx(found)]


def test_growth_is_by_updates_and_stays_within_the_limits() -> None:
    assert steps(*[1.0] * 5, updates=2)[-1] == pytest.approx(6.0)
    assert steps(*[1.0] * 9)[-1] == 10.0
    assert steps(2.0, 4.0, 8.0, 16.0) == [2.0, 1.0, 1.0, 1.0]


def test_few_updates_are_judged_by_the_smoothed_loss() -> None:
    assert steps(2.0, updates=2) == [4.0]  # a fifth of the way to 2
    assert steps(2.0, 2.0, updates=2) == [4.0, 2.0]


def test_a_small_loss_is_judged_by_a_third_of_the_first() -> None:
    *_, before, jump, too_much = steps(0.1, 0.1, 0.19, 0.22)
    assert before == pytest.approx(9.0)
    assert jump == before
    assert too_much == pytest.approx(before / 2)


def test_updates_between_evaluations_count() -> None:
    tempo = begun()
    for _ in range(9):
        tempo = update_steps_per_round(tempo, row(1.0, 9.0, evaluated=False), C_OVER_B, rate=0.1)
    assert (tempo["steps"], tempo["updates"]) == (4.0, 9)
    tempo = update_steps_per_round(tempo, row(1.0, 0.9), C_OVER_B, rate=0.1)
    assert tempo["steps"] == pytest.approx(6.0)
    assert tempo["updates"] == 0


def test_after_a_cut_growth_is_slower_and_the_old_least_is_forgotten() -> None:
    assert steps(2.0, 2.0, 2.0) == [2.0, pytest.approx(2 * 1.5**0.5), pytest.approx(3.0)]
    assert steps(math.inf, 2.0, 1.9) == [2.0, 2.0, pytest.approx(2 * 1.5**0.5)]


def test_the_first_step_is_made_of_all_at_work_and_then_steps_keep_pace_with_a_falling_rate() -> (
    None
):
    tempo, found = initial_steps_per_round(1.0), []
    for r in range(14):
        rate = 0.1 / (1 + r)
        found.append(steps_per_round(tempo, rate, C_OVER_B))
        rising = row(1.0, 9.0)._replace(clients=np.arange(2), weights=np.ones(2))
        tempo = update_steps_per_round(tempo, rising, C_OVER_B, rate=rate)
    np.testing.assert_allclose(found, [min(1 + r, 10) for r in range(14)])


@pytest.mark.parametrize(
    ("limits", "least"), [((1.0, 10.0), 4.0), ((1.0, 4.0), 2.0), ((1.0, 1.0), 1.0)]
)
@pytest.mark.parametrize("rate", [0.1, 0.2, math.nan])
def test_where_the_rate_does_not_fall_steps_are_of_a_quarter_but_two_updates(
    limits: tuple[float, float], least: float, rate: float
) -> None:
    tempo = update_steps_per_round(initial_steps_per_round(1.0), row(1.0, 1.0), limits, rate=0.1)
    assert tempo["steps"] == 1.0
    assert steps_per_round(tempo, rate, limits) == least
    assert steps_per_round(initial_steps_per_round(1.0), math.nan, limits) == least


def test_a_rate_that_stays_adds_nothing_after_a_cut() -> None:
    *_, cut, after = steps(2.0, 4.0, 4.4)
    assert (cut, after) == (1.0, 1.0)


def test_growth_by_the_rate_and_by_the_loss_do_not_add_up() -> None:
    assert steps(0.9, rates=(0.1 / 1.2,)) == [pytest.approx(6.0)]
    assert steps(0.9, rates=(0.05,)) == [pytest.approx(8.0)]


def test_a_rise_while_the_rate_falls_cuts_nothing() -> None:
    assert steps(2.0, 2.0, rates=(0.095, 0.085))[0] < 4.0
    assert steps(2.0, 2.0, rates=(0.085, 0.08)) == [
        pytest.approx(4 * 0.1 / rate) for rate in (0.085, 0.08)
    ]
