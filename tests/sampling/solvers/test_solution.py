"""What a solver says about its answer: floors from a cap, and the first-order residual."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpace import InputError, Profile
from fedpace.sampling.solvers.solution import residual, weight_floors
from tests.sampling.fleets import Fleet, distributions, fleets, powers_of_ten
from tests.sampling.oracles import objectives

EVEN = Profile([0.25, 0.75], [1.0, 2.0], [1.0, 1.0])


def test_no_cap_means_no_floors() -> None:
    assert weight_floors(EVEN, 10, None) is None


def test_floors_are_the_probabilities_at_which_the_cap_is_met() -> None:
    floors = weight_floors(EVEN, 10, 0.5)
    assert floors is not None
    np.testing.assert_allclose(floors, [0.05, 0.15], rtol=1e-15)


@pytest.mark.parametrize("cap", [0.0999, 0.0, -1.0, float("nan")])
def test_refuses_a_cap_that_nothing_can_meet(cap: float) -> None:
    with pytest.raises(InputError) as refused:
        weight_floors(EVEN, 10, cap)
    assert str(refused.value) == (
        f"max_weight must be at least 1/k = 0.1, got {cap:g}; "
        "the weights of K clients sum to 1 on average"
    )


@pytest.mark.parametrize("cap", ["x", "3", [1.0], np.ones(3), 1j, 10**400])
def test_refuses_a_cap_that_is_no_number(cap: Any) -> None:
    with pytest.raises(InputError) as refused:
        weight_floors(EVEN, 10, cap)
    message = str(refused.value)
    assert message.startswith("max_weight must be a number, got ")
    assert message.endswith("; give the largest weight that one draw may have, or leave it out")


def test_accepts_one_over_k_however_it_was_rounded() -> None:
    for k in range(1, 200):
        assert weight_floors(EVEN, k, 1 / k) is not None
        assert weight_floors(EVEN, k, float(np.nextafter(1 / k, 0))) is not None


@given(st.data(), fleets(fewest=2, most=6), powers_of_ten(-2, 2))
def test_residual_bounds_what_small_changes_can_gain(
    data: st.DataObject, fleet: Fleet, c: float
) -> None:
    q = data.draw(distributions(fleet.times.size))
    bound = residual(q, fleet.importance, fleet.times, c, None)
    factors = np.array(
        data.draw(st.lists(st.floats(-1, 1), min_size=fleet.times.size, max_size=fleet.times.size))
    )
    # Keep the sum at 1 by moving the largest client only.
    change = q * factors
    change[np.argmax(q)] -= change.sum()
    size = float(np.abs(change / q).max())
    if size == 0:
        return
    delta = 1e-5
    before, after = objectives(np.stack([q, q + delta * change / size]), fleet, c, 1)
    assert np.log(before / after) <= delta * bound + 20 * fleet.times.size * delta**2


@given(st.data(), fleets(fewest=2, most=6), powers_of_ten(-2, 2))
def test_some_small_change_gains_half_of_what_the_residual_says(
    data: st.DataObject, fleet: Fleet, c: float
) -> None:
    q = data.draw(distributions(fleet.times.size))
    bound = residual(q, fleet.importance, fleet.times, c, None)
    slope = fleet.times / (q @ fleet.times)
    spread = float(np.sum(fleet.importance**2 / q)) + c
    slope = slope - (fleet.importance / q) ** 2 / spread
    change = -q * np.sign(slope - q @ slope)
    change -= q * change.sum()
    delta = 1e-6
    before, after = objectives(np.stack([q, q + delta * change]), fleet, c, 1)
    assert np.log(before / after) >= delta * bound * (1 - 1e-3) - 1e-11


def test_a_client_at_its_floor_that_wants_less_does_not_count() -> None:
    importance, times = np.array([0.5, 0.5]), np.array([1.0, 9.0])
    floors = np.array([0.0, 0.5])
    at_floor = np.array([0.5, 0.5])
    assert residual(at_floor, importance, times, 1.0, None) > 0.1
    assert residual(at_floor, importance, times, 1.0, floors) == 0.0


def test_a_client_at_its_floor_that_wants_more_counts() -> None:
    importance, times = np.array([0.5, 0.5]), np.array([1.0, 9.0])
    floors = np.array([0.2, 0.0])
    assert residual(np.array([0.2, 0.8]), importance, times, 1.0, floors) > 0.1


def test_nothing_is_left_to_gain_where_every_client_is_at_its_floor() -> None:
    p = np.array([0.3, 0.7])
    assert residual(p, np.array([0.9, 0.1]), np.array([1.0, 9.0]), 1.0, p) == 0.0
