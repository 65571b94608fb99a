"""Independent draws of least predicted time, against grids, SciPy and their limits."""

import warnings
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from fedpace import InputError, Profile, solve_mean_time
from fedpace.checks import FloatArray
from fedpace.sampling.independent import Independent, clip_to_sum
from fedpace.sampling.solvers import independent
from fedpace.sampling.solvers.independent import solve_independent
from tests.sampling.fleets import (
    Fleet,
    caps,
    extreme_fleets,
    fleets,
    powers_of_ten,
    random_fleet,
    ratios,
)

Time = Literal["max", "mean"]


def objective(inclusion: FloatArray, fleet: Fleet, c: float, k: int, time: Time) -> float:
    """Return T (S + c) from the design's own figures, which are those of all draws."""
    total = float(min(k, inclusion.size))
    if time == "mean":
        a = fleet.importance
        variance = k * float(a @ (a / inclusion)) - (k - 1) * float(a @ a)
        return float(inclusion @ fleet.times) / total * (variance + c)
    design = Independent(inclusion, fleet.weights, k=k)
    variance = design.variance_term(Profile(*fleet))
    return design.expected_round_time(fleet.times) * (variance + c)


def least_by_scipy(fleet: Fleet, c: float, k: int, cap: float | None, time: Time) -> float:
    """Return the least objective that SLSQP finds from four starts."""
    n = fleet.times.size
    floors = np.full(n, 1e-9) if cap is None else np.minimum(fleet.weights / cap, 1)
    random = np.random.default_rng(0).random(n) + 0.1
    best = np.inf
    for shape in (fleet.importance, fleet.importance / fleet.times, random, np.ones(n)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = minimize(
                lambda x: np.log(objective(np.clip(x, 1e-12, 1), fleet, c, k, time)),
                clip_to_sum(shape, floors, k).values,
                method="SLSQP",
                bounds=[(low, 1.0) for low in floors],
                constraints={"type": "eq", "fun": lambda x: x.sum() - k},
                options={"maxiter": 200, "ftol": 1e-13},
            )
        inside = clip_to_sum(np.clip(found.x, 1e-12, 1), floors, k).values
        best = min(best, objective(inside, fleet, c, k, time))
    return best


@pytest.mark.parametrize("time", ["mean", "max"])
@pytest.mark.parametrize(
    ("n", "k", "ratio", "factor"),
    [(3, 1, 1.0, None), (3, 2, 100.0, 1.5), (5, 2, 0.0, None), (6, 3, 10.0, 2.0), (6, 5, 1.0, 3.0)],
)
def test_no_general_solver_finds_less(
    time: Time, n: int, k: int, ratio: float, factor: float | None
) -> None:
    fleet = random_fleet(n, n + k)
    c, cap = ratio * fleet.least_variance, None if factor is None else factor / k
    found = solve_independent(*fleet, c, k, cap, time=time)
    assert found.objective == pytest.approx(objective(found.inclusion, fleet, c, k, time))
    assert found.objective <= least_by_scipy(fleet, c, k, cap, time) * (1 + 1e-7)
    assert found.residual < 1e-5


@settings(max_examples=25)
@given(extreme_fleets(), ratios, st.sampled_from([1, 2, 3, 50]), st.data())
def test_the_mean_time_optimum_is_proven_for_extreme_fleets(
    fleet: Fleet, ratio: float, k: int, data: st.DataObject
) -> None:
    cap = data.draw(st.none() | caps(k))
    found = solve_independent(*fleet, ratio * fleet.least_variance, k, cap, time="mean")
    assert found.status == "converged"
    assert found.gap < 1e-6
    assert found.residual < 1e-6
    assert np.all((found.inclusion > 0) & (found.inclusion <= 1))
    assert found.inclusion.sum() == pytest.approx(min(k, fleet.times.size), rel=1e-9)
    if cap is not None:
        least = np.maximum(fleet.weights, cap)
        assert np.all(fleet.weights / found.inclusion <= least * (1 + 1e-9))


@settings(max_examples=10)
@given(extreme_fleets(), ratios, st.sampled_from([1, 3, 50]), st.none() | st.floats(1, 9))
def test_the_exact_optimum_is_feasible_and_stationary(
    fleet: Fleet, ratio: float, k: int, factor: float | None
) -> None:
    cap = None if factor is None else factor / k
    found = solve_independent(*fleet, ratio * fleet.least_variance, k, cap)
    assert found.status == "converged"
    assert found.residual < 1e-3
    assert found.gap >= 0
    assert np.all((found.inclusion > 0) & (found.inclusion <= 1))
    assert found.inclusion.sum() == pytest.approx(min(k, fleet.times.size), rel=1e-9)


@settings(max_examples=10)
@given(fleets(fewest=2, most=5), st.integers(1, 4), powers_of_ten(-2, 2), st.integers(0, 99))
def test_the_gap_bounds_what_any_other_design_gains(
    fleet: Fleet, k: int, ratio: float, seed: int
) -> None:
    c = ratio * fleet.least_variance
    found = solve_independent(*fleet, c, k)
    bound = found.objective / (1 + found.gap)
    rng = np.random.default_rng(seed)
    for _ in range(30):
        shape = rng.dirichlet(np.full(fleet.times.size, 0.5)) + 1e-9
        other = clip_to_sum(shape, None, k).values
        assert objective(other, fleet, c, k, "max") >= bound * (1 - 1e-9)


def test_without_a_client_at_one_the_mean_time_optimum_is_that_with_replacement() -> None:
    drawn, k = random_fleet(50, 0), 2
    fleet = Fleet(np.full(50, 0.02), 1 + drawn.times, drawn.grad_norms)
    a = fleet.importance
    c = 0.1 * fleet.least_variance + float(a @ a)
    found = solve_independent(*fleet, c, k, time="mean")
    assert found.inclusion.max() < 1
    same = solve_mean_time(*fleet, c - (k - 1) * float(a @ a))
    assert found.q == pytest.approx(same.q, rel=1e-6)


def test_with_k_of_all_clients_everyone_takes_part() -> None:
    fleet = random_fleet(4, 0)
    for k in (4, 9):
        found = solve_independent(*fleet, None, k)
        assert found.inclusion.tolist() == [1.0] * 4


def test_equal_clients_take_part_alike() -> None:
    found = solve_independent([0.25] * 4, [2.0] * 4, [1.0] * 4, 1.0, k=2)
    assert found.inclusion == pytest.approx(np.full(4, 0.5), rel=1e-6)


def test_the_least_cap_leaves_weights_as_equal_as_they_can_be() -> None:
    found = solve_independent([0.6, 0.2, 0.2], [9.0, 1.0, 1.0], [1.0] * 3, 1.0, 2, max_weight=0.5)
    assert found.inclusion[0] == pytest.approx(1.0)
    found = solve_independent([0.4, 0.3, 0.3], [9.0, 1.0, 1.0], [1.0] * 3, 1.0, 2, max_weight=0.5)
    assert found.inclusion == pytest.approx([0.8, 0.6, 0.6])


def test_bad_arguments_are_refused_in_one_line() -> None:
    fleet = random_fleet(3, 0)
    with pytest.raises(InputError, match="time must be 'max' or 'mean', got 'median'; "):
        solve_independent(*fleet, None, 2, time="median")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"max_weight must be at least 1/k = 0\.5, got 0\.1; "):
        solve_independent(*fleet, None, 2, max_weight=0.1)


def test_rare_draws_of_single_clients_are_solved_too() -> None:
    weights = np.array([0.12, 0.14, 0.34, 0.2, 0.2])
    times, norms = np.array([0.35, 2.55, 0.04, 1.8, 0.43]), np.array([1.1, 0.9, 1.2, 2.0, 0.5])
    found = solve_independent(weights, times, norms, 23.0, 1)
    best = least_by_scipy(Fleet(weights, times, norms), 23.0, 1, None, "max")
    assert found.status == "converged"
    assert found.objective <= best * (1 + 1e-6)


def test_a_large_fleet_begins_with_one_start_and_may_reach_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet = random_fleet(20, 0)
    whole = solve_independent(*fleet, None, 4)
    monkeypatch.setattr(independent, "LARGE", 10)
    assert solve_independent(*fleet, None, 4).objective >= whole.objective * (1 - 1e-9)
    monkeypatch.setattr(independent, "LARGE_LIMIT", 1)
    found = solve_independent(*fleet, None, 4)
    assert (found.status, found.iterations >= 1) == ("iteration-limit", True)
    assert found.inclusion.sum() == pytest.approx(4)
