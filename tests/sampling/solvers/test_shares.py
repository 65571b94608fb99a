"""Shares of completions: optimal, feasible, and exact where that can be seen."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog, minimize

from fedpace import InputError, Profile, solve_mean_time
from fedpace.checks import FloatArray
from fedpace.sampling.solvers import shares
from fedpace.sampling.solvers.shares import ShareSolution, bounded_shares, solve_shares
from tests.sampling.fleets import Fleet, extreme_fleets, fleets, random_fleet, ratios

caps = st.none() | st.sampled_from([1.0, 1.0001, 1.3, 4.0, 50.0])


def general_optimum(fleet: Fleet, c: float, at_once: int, max_weight: float | None) -> float:
    """Return the least objective that SLSQP finds, in the parts of the time at work."""
    n, t, a = fleet.times.size, fleet.times, fleet.importance
    weighted = bounded_shares(fleet.weights, t, at_once)

    def value(busy: FloatArray) -> tuple[float, FloatArray]:
        rates = busy / t
        spread = float(a @ (a / rates)) + c / rates.sum()
        slope = -((a / rates) ** 2) - c / rates.sum() ** 2
        return float(np.log(at_once * spread)), slope / t / spread

    constraints = [{"type": "eq", "fun": lambda b: b.sum() - at_once, "jac": np.ones_like}]
    if max_weight is not None:
        above = np.diag(1 / t) - np.outer(weighted / max_weight, 1 / t)
        constraints.append({"type": "ineq", "fun": lambda b: above @ b, "jac": lambda _: above})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = minimize(
            value,
            weighted * t * at_once / (weighted @ t),
            jac=True,
            method="SLSQP",
            bounds=[(1e-9, 1.0)] * n,
            constraints=constraints,
            options={"maxiter": 1000, "ftol": 1e-15},
        )
    return float(np.exp(found.fun))


def some_fleet(seed: int) -> tuple[Fleet, int]:
    """Return fleets of all kinds, and how many clients are at work."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 15))
    fleet = random_fleet(n, seed)
    times = fleet.times.copy()
    kind = seed % 5
    if kind == 1:
        times[0] = 5 * times.sum()
    elif kind == 2:
        times[0] = times.min() / 100
    elif kind == 3:
        times = np.round(times) + 1
    elif kind == 4:
        times = 1 + rng.pareto(0.7, size=n)
    return fleet._replace(times=times), int(rng.integers(1, n + 1))


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("max_weight", [None, 1.3, 4.0])
def test_no_general_solver_finds_better(seed: int, max_weight: float | None) -> None:
    fleet, at_once = some_fleet(seed)
    c = fleet.least_variance * 10 ** np.random.default_rng(seed).uniform(-2, 2)
    found = solve_shares(*fleet, c, at_once, max_weight)
    general = general_optimum(fleet, c, at_once, max_weight)
    assert found.objective <= general * (1 + 1e-5)  # it keeps its constraints that well only
    assert found.gap < 1e-7


@pytest.mark.parametrize("many", [0, shares.MANY])
@given(fleets(), ratios, caps, st.data())
def test_is_feasible_stationary_and_certified(
    many: int, fleet: Fleet, ratio: float, max_weight: float | None, data: st.DataObject
) -> None:
    at_once = data.draw(st.integers(1, fleet.times.size))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shares, "MANY", many)
        found = solve_shares(*fleet, ratio * fleet.least_variance, at_once, max_weight)
    check_feasible(found, fleet, at_once, max_weight)
    assert found.status == "converged"
    assert found.residual < 1e-6
    assert found.gap < 1e-5


@pytest.mark.parametrize("many", [0, shares.MANY])
@given(extreme_fleets(), ratios, caps, st.data())
def test_is_feasible_on_extreme_fleets(
    many: int, fleet: Fleet, ratio: float, max_weight: float | None, data: st.DataObject
) -> None:
    at_once = data.draw(st.integers(1, fleet.times.size))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shares, "MANY", many)
        found = solve_shares(*fleet, ratio * fleet.least_variance, at_once, max_weight)
    check_feasible(found, fleet, at_once, max_weight)


def check_feasible(
    found: ShareSolution, fleet: Fleet, at_once: int, max_weight: float | None
) -> None:
    assert np.all(found.q > 0)
    assert found.q.sum() == pytest.approx(1, abs=1e-12)
    mean = float(found.q @ fleet.times)
    assert np.all(found.q * fleet.times * at_once <= mean * (1 + 1e-9))
    assert found.busy.sum() == pytest.approx(at_once, rel=1e-9)
    if max_weight is not None:
        weighted = bounded_shares(fleet.weights, fleet.times, at_once)
        assert np.all(weighted <= max_weight * found.q * (1 + 1e-9))
        over = fleet.weights > max_weight * found.q * (1 + 1e-6)
        assert set(np.flatnonzero(over)) <= set(found.over_cap)
        bound = weighted * fleet.times * at_once >= (weighted @ fleet.times) * (1 - 1e-6)
        assert np.all(bound[found.over_cap])


@settings(max_examples=50)
@given(fleets(), ratios)
def test_one_at_a_time_is_the_problem_of_rounds(fleet: Fleet, ratio: float) -> None:
    c = ratio * fleet.least_variance
    found = solve_shares(*fleet, c, at_once=1)
    # With one place f_i t_i ≤ M always holds.
    assert found.objective == pytest.approx(solve_mean_time(*fleet, c).objective, rel=1e-7)


def test_with_a_place_for_everybody_shares_are_speeds() -> None:
    fleet = random_fleet(7, seed=0)
    found = solve_shares(*fleet, 1.0, at_once=7)
    speeds = 1 / fleet.times
    np.testing.assert_allclose(found.q, speeds / speeds.sum(), rtol=1e-12)
    np.testing.assert_allclose(found.busy, 1.0)
    assert (found.gap, found.residual, found.iterations) == (0.0, 0.0, 0)


def test_the_tightest_cap_leaves_weighted_sampling() -> None:
    fleet, at_once = random_fleet(20, seed=1), 6
    found = solve_shares(*fleet, 1.0, at_once, max_weight=1.0)
    weighted = bounded_shares(fleet.weights, fleet.times, at_once)
    np.testing.assert_allclose(found.q, weighted, rtol=1e-12)


def test_a_looser_cap_is_never_slower() -> None:
    fleet, at_once = random_fleet(30, seed=2), 8
    found = [solve_shares(*fleet, 1.0, at_once, cap).objective for cap in (1, 1.5, 2, 4, 8, None)]
    assert np.all(np.diff(found) <= 1e-9 * found[0])


@given(fleets(), st.data())
def test_bounded_shares_are_as_wanted_but_for_who_can_do_no_more(
    fleet: Fleet, data: st.DataObject
) -> None:
    at_once = data.draw(st.integers(1, fleet.times.size))
    f = bounded_shares(fleet.weights, fleet.times, at_once)
    busy = f * fleet.times * at_once / float(f @ fleet.times)
    assert f.sum() == pytest.approx(1, abs=1e-12)
    assert np.all(busy <= 1 + 1e-9)
    free = busy < 1 - 1e-9
    scale = f / fleet.weights
    if free.any():
        np.testing.assert_allclose(scale[free], scale[free][0], rtol=1e-9)
        assert np.all(scale[~free] <= scale[free][0] * (1 + 1e-9))


def test_input_is_checked() -> None:
    fleet = random_fleet(3, seed=0)
    with pytest.raises(InputError, match="at_once must be at most the number of clients, got 4 fo"):
        solve_shares(*fleet, 1.0, at_once=4)
    with pytest.raises(InputError, match="at_once must be at least 1, got 0"):
        bounded_shares([1.0], [1.0], at_once=0)
    with pytest.raises(InputError, match="max_weight must be at least"):
        solve_shares(*fleet, 1.0, at_once=2, max_weight=0.5)
    with pytest.raises(InputError, match="times must have one entry per client"):
        bounded_shares([1.0, 2.0], [1.0], at_once=1)


def test_shares_are_valid_where_steps_run_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "NEWTON_STEPS", 2)
    for seed in range(10):
        found = solve_shares(*random_fleet(20, seed), None, 5, max_weight=1.5)
        assert np.all(found.q > 0)
        assert found.q.sum() == pytest.approx(1, abs=1e-12)


def large_fleet(seed: int) -> tuple[Fleet, int]:
    """Return more clients than are solved for one unknown after the other."""
    fleet = random_fleet(shares.MANY + 10, seed)
    times, rng = fleet.times.copy(), np.random.default_rng(seed)
    if seed % 3 == 1:
        times = 10 ** rng.uniform(-5, 5, times.size)
    elif seed % 3 == 2:
        times = rng.integers(1, 5, times.size).astype(np.float64)
    return fleet._replace(times=times), [2, 50, times.size // 2][seed // 3]


@pytest.mark.parametrize("seed", range(9))
def test_two_unknowns_at_once_are_those_found_one_after_the_other(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet, at_once = large_fleet(seed)
    both = solve_shares(fleet.weights, fleet.times, fleet.grad_norms, None, at_once, 4.0)
    monkeypatch.setattr(shares, "MANY", 10**9)
    one = solve_shares(fleet.weights, fleet.times, fleet.grad_norms, None, at_once, 4.0)
    np.testing.assert_allclose(both.q, one.q, rtol=1e-9)
    assert both.status == one.status == "converged"
    assert both.gap < 1e-6


@pytest.mark.parametrize("seed", [0, 4, 8])
def test_where_two_at_once_fail_one_after_the_other_is_found(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet, at_once = large_fleet(seed)
    wanted = solve_shares(fleet.weights, fleet.times, fleet.grad_norms, None, at_once, 4.0)
    monkeypatch.setattr(shares, "JOINT_STEPS", 1)
    found = solve_shares(fleet.weights, fleet.times, fleet.grad_norms, None, at_once, 4.0)
    np.testing.assert_allclose(found.q, wanted.q, rtol=1e-9)


def decades(seed: int) -> tuple[Fleet, float | None, int, float]:
    """Return times over up to twelve decades, c, C and a cap of hardly more than 1."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 8))
    weights = 10 ** rng.uniform(-rng.uniform(0, 4), 0, n)
    span = rng.uniform(0, 6)
    fleet = Fleet(
        weights / weights.sum(),
        10 ** rng.uniform(-span, span, n),
        10 ** rng.uniform(-rng.uniform(0, 3), 0, n),
    )
    c = None if seed % 3 == 0 else float(rng.choice([0, 1e-3, 1, 1e3]))
    return fleet, c, int(rng.integers(1, n)), float(1 + 10 ** rng.uniform(-12, 0))


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_times_over_decades_are_certified_with_a_cap_near_one(first: int) -> None:
    for seed in range(first, first + 50):
        fleet, c, at_once, cap = decades(seed)
        found = solve_shares(*fleet, c, at_once, cap)
        check_feasible(found, fleet, at_once, cap)
        assert (found.status, found.gap < 1e-6) == ("converged", True), seed


@pytest.mark.parametrize("seed", range(20))
def test_a_linear_programme_confirms_the_gap(seed: int) -> None:
    """The slope at the solution bounds what any feasible point gains, as the problem is convex."""
    fleet, c, at_once, cap = decades(seed)
    profile = Profile(*fleet, c)
    floors = bounded_shares(*fleet[:2], at_once) / cap
    problem = shares.rate_problem(profile, at_once, floors)
    solved, _, _ = problem.solve()
    total = float(solved.sum())
    slope = -((problem.importance / solved) ** 2) - problem.c / total**2
    value = float(problem.importance @ (problem.importance / solved)) + problem.c / total
    above_floor = (np.outer(floors, np.ones(floors.size)) - np.eye(floors.size)) * solved
    above_floor /= np.abs(above_floor).max(axis=1, keepdims=True)
    least = linprog(
        slope * solved / value,
        A_ub=above_floor,
        b_ub=np.zeros(floors.size),
        A_eq=[problem.times * solved / at_once],
        b_eq=[1],
        bounds=[(0, most) for most in problem.most / solved],
        method="highs",
    )
    assert least.status == 0
    assert float(slope @ solved) / value - least.fun <= 1e-6
    assert problem.certificate(solved)[1] < 1e-6


def test_a_gap_that_is_not_proven_is_not_called_converged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares.RateProblem, "certificate", lambda *_: (0.0, 1e-3))
    found = solve_shares(*random_fleet(5, seed=0), 1.0, at_once=2)
    assert (found.status, found.gap) == ("iteration-limit", 1e-3)
