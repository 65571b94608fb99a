"""The cap on the weight of a round, and the size of asynchronous steps."""

import math
from typing import Any

import numpy as np
import pytest

from fedpace.samplers.step import (
    FIRST_GUESS,
    GROWTH_AT_ONCE,
    GUESS_PAIRS,
    HALVED,
    NOISE_COUNTED,
    MeasuredUpdates,
    StepSize,
    begin_step,
    falls_fast,
    first_step,
    guard_step,
    initial_round_weight_cap,
    update_round_weight_cap,
    update_step_size,
    updates_per_step,
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


AT_ONCE = 4


def begun() -> StepSize:
    """Return the state of a run whose tasks have 8 steps at a rate of 0.1."""
    return begin_step(first_step(), 0.1, 8)


def updated(state: StepSize, age: float = 3.0, gain: float = 1.0, **more: Any) -> StepSize:
    """Return the state after an update of length 1 and this age."""
    one = np.ones(1)
    how = {"at_once": AT_ONCE, "n": 10, "curvature": 2.0, "pairs": 1e9, **more}
    return update_step_size(state, MeasuredUpdates(gain * one, one, one, age * one), **how)


@pytest.mark.parametrize("age", [0.5, 3.0, 20.0])
@pytest.mark.parametrize("gain", [1.0, 0.2])
def test_the_step_follows_from_curvature_age_and_noise(age: float, gain: float) -> None:
    state, lengths = begun(), []
    for _ in range(400):
        state = updated(state, age, gain)
        lengths.append(state["step"])
    noise = 1 + 1 / gain
    assert state["step"] == pytest.approx(2 / (2.0 * (2 * age + NOISE_COUNTED * noise)), rel=1e-3)
    assert lengths[0] <= 0.8 / AT_ONCE * GROWTH_AT_ONCE ** (1 / AT_ONCE)
    ratios = np.array(lengths[1:]) / np.array(lengths[:-1])
    assert (ratios <= GROWTH_AT_ONCE ** (1 / AT_ONCE) + 1e-9).all()


@pytest.mark.parametrize("curvature", [math.nan, -1.0, 0.0])
def test_without_a_curvature_the_step_is_a_guess(curvature: float) -> None:
    state = begun()
    for _ in range(50):
        state = updated(state, curvature=curvature)
    assert state["step"] == pytest.approx(FIRST_GUESS * 0.8 / AT_ONCE)


def test_few_pairs_weigh_as_much_as_the_guess() -> None:
    few, many, none = begun(), begun(), begun()
    for _ in range(200):
        few, many = updated(few, pairs=GUESS_PAIRS), updated(many)
        none = updated(none, curvature=math.nan)
    assert few["step"] == pytest.approx(math.sqrt(many["step"] * none["step"]), rel=1e-6)


@pytest.mark.parametrize("gain", [math.inf, math.nan])
def test_an_update_that_is_not_finite_changes_nothing(gain: float) -> None:
    state = updated(begun())
    assert updated(state, gain=gain) == state


def seen(state: StepSize, loss: float, updates: int = AT_ONCE, **more: Any) -> StepSize:
    each = row(1.0, loss, **more)._replace(clients=np.arange(updates))
    return guard_step(state, each, AT_ONCE)


def test_a_loss_well_above_its_least_halves_the_step_and_the_least_is_forgotten() -> None:
    state = updated(begun())
    low = seen(state, 1.0)
    assert seen(low, 1.19)["step"] == low["step"] == state["step"]
    high = seen(low, 1.3)
    assert (high["step"], high["cut"]) == (low["step"] / 2, 0.5)
    assert seen(high, 1.5)["step"] == high["step"]
    assert seen(high, 2.0)["step"] == high["step"] / 2
    assert seen(low, math.inf)["step"] == low["step"] / 2
    assert seen(low, 9.0, evaluated=False)["step"] == low["step"]
    assert seen(low, math.nan)["step"] == low["step"]
    back = high
    for _ in range(20):
        back = seen(back, 1.0)
    assert back["cut"] == 1.0


def test_the_step_is_cut_once_in_as_many_updates_as_are_under_way() -> None:
    state = seen(updated(begun()), 1.0)
    for loss in (2.0, 4.0, 8.0, 16.0):
        state = seen(state, loss, updates=1)
        assert state["cut"] == 0.5
    assert seen(state, 32.0, updates=1)["cut"] == 0.25


def test_steps_settle_as_each_cut_slows_the_recovery() -> None:
    state, lasted = seen(updated(begun()), 1.0), []
    for _ in range(3):
        state = seen(state, 10 * state["loss"])
        count = 0
        while state["cut"] < 1.0:
            state, count = seen(state, state["loss"]), count + 1
        lasted.append(count)
    assert lasted[0] < lasted[1] < lasted[2]


def test_the_curvature_falls_slowly_and_rises_at_once() -> None:
    state = begun()
    for _ in range(100):
        state = updated(state, curvature=2.0)
    low = state
    for _ in range(HALVED * 5):
        low = updated(low, curvature=-1.0)
    assert low["curvature"] == pytest.approx(1.0)
    assert updated(low, curvature=8.0)["curvature"] == 8.0


@pytest.mark.parametrize(
    ("power", "fast"), [(1.0, True), (2.0, True), (0.5, False), (0.0, False), (-1.0, False)]
)
def test_steps_follow_the_rate_where_it_falls_like_the_number_of_steps(
    power: float, fast: bool
) -> None:
    assert not falls_fast(begun(), 0.1, 0)
    for r in (1, 2, 10, 1000):
        assert falls_fast(begun(), 0.1 * (1 + r) ** -power, r) == fast


@pytest.mark.parametrize("rate", [math.nan, 0.0, -1.0, math.inf])
def test_a_rate_that_is_unknown_does_not_fall(rate: float) -> None:
    assert not falls_fast(begun(), rate, 5)
    assert not falls_fast(first_step(), 0.1, 5)


def test_updates_per_step_are_between_one_and_all_at_work() -> None:
    found = [updates_per_step(begun(), rate, 12) for rate in (1.0, 0.1, 0.05, 1e-9)]
    assert found == [12, 12, 6, 1]
