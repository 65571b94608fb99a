"""The lower bound on the exact problem: never above the optimum, and close to it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpace import solve_max_time
from fedpace.sampling.solvers import max_time, solution
from fedpace.sampling.solvers.solution import certify
from tests.sampling.fleets import Fleet, caps, extreme_fleets, fleets, powers_of_ten, random_fleet
from tests.sampling.oracles import above_floors, logit_grid, objectives, time_limit

ks = st.sampled_from([1, 2, 3, 10, 100, 10**4])
GRIDS = {2: logit_grid(2, 4001, 30.0), 3: logit_grid(3, 241, 18.0)}


@settings(max_examples=25)
@given(fleets(fewest=2, most=3), st.just(0.0) | powers_of_ten(-2, 5), ks)
def test_lower_bound_is_below_every_point_of_a_grid(fleet: Fleet, ratio: float, k: int) -> None:
    c = ratio * fleet.least_variance
    solution = solve_max_time(*fleet, c, k, certified=True)
    least = objectives(GRIDS[fleet.times.size], fleet, c, k).min()
    assert solution.objective / (1 + solution.gap) <= least * (1 + 1e-9)
    assert solution.objective <= least * (1 + 1e-10)
    assert 0 <= solution.gap < 0.1


@settings(max_examples=25)
@given(fleets(fewest=2, most=3), powers_of_ten(-2, 4), ks, st.booleans())
def test_the_bound_itself_is_valid_and_tight_before_anyone_clips_it(
    fleet: Fleet, ratio: float, k: int, capped: bool
) -> None:
    order = np.argsort(fleet.times).tolist()
    fleet = fleet.permuted(order)
    total = float(fleet.importance.sum())
    fleet = fleet._replace(grad_norms=fleet.grad_norms / total)  # S_0 = 1
    floors = fleet.weights / 3 if capped else None
    best = solve_max_time(*fleet, ratio, k, max_weight=3 / k if capped else None)
    bound, starts = certify(fleet.importance, fleet.times, ratio, k, floors, best.q, best.objective)
    rows = GRIDS[fleet.times.size]
    least = objectives(rows if floors is None else above_floors(rows, floors), fleet, ratio, k)
    assert bound <= min(float(least.min()), best.objective) * (1 + 1e-9)
    assert bound >= 0.9 * best.objective
    for q in starts:
        assert np.all(q > 0)
        assert q.sum() == pytest.approx(1, abs=1e-12)


@settings(max_examples=25)
@given(st.data(), fleets(fewest=2, most=3), powers_of_ten(-2, 3), ks)
def test_lower_bound_is_below_every_point_under_a_cap(
    data: st.DataObject, fleet: Fleet, ratio: float, k: int
) -> None:
    c, cap = ratio * fleet.least_variance, data.draw(caps(k))
    with time_limit(20):
        solution = solve_max_time(*fleet, c, k, max_weight=cap, certified=True)
    rows = above_floors(GRIDS[fleet.times.size], fleet.weights / (k * cap))
    least = objectives(rows, fleet, c, k).min()
    assert solution.objective / (1 + solution.gap) <= least * (1 + 1e-9)
    assert solution.objective <= least * (1 + 1e-10)
    assert 0 <= solution.gap < 0.1


@settings(max_examples=15)
@given(extreme_fleets(), powers_of_ten(-3, 3), ks)
def test_extreme_fleets_get_a_certificate_no_worse_than_without(
    fleet: Fleet, ratio: float, k: int
) -> None:
    c = ratio * fleet.least_variance
    plain = solve_max_time(*fleet, c, k)
    certified = solve_max_time(*fleet, c, k, certified=True)
    assert certified.status == "converged"
    assert certified.objective <= plain.objective * (1 + 1e-12)
    assert 0 <= certified.gap <= plain.gap * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize("cap", [None, 1.0])
@pytest.mark.parametrize(("n", "k", "ratio"), [(30, 5, 1.0), (100, 10, 1.0), (50, 50, 10.0)])
def test_the_gap_is_small_on_typical_fleets(
    n: int, k: int, ratio: float, cap: float | None
) -> None:
    fleet = random_fleet(n, n)
    c = ratio * fleet.least_variance
    certified = solve_max_time(*fleet, c, k, max_weight=cap, certified=True)
    assert 0 <= certified.gap < 0.2


@pytest.mark.parametrize("certified", [False, True])
def test_an_optimum_of_equal_times_is_certain(certified: bool) -> None:
    fleet = random_fleet(6, 0)._replace(times=np.full(6, 2.0))
    assert solve_max_time(*fleet, 1.0, 10, certified=certified).gap < 1e-12


def test_one_client_is_certain() -> None:
    solution = solve_max_time([1.0], [2.0], [3.0], 1.0, 10, certified=True)
    assert solution.q == pytest.approx([1.0], rel=1e-15)
    assert solution.gap < 1e-12


def test_starts_from_the_certificate_escape_a_local_optimum(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet = Fleet(np.array([0.5, 0.5]), np.array([1.0, 3.0]), np.array([1.0, 1.0]))
    least = objectives(GRIDS[2], fleet, 1e5, 10**4).min()
    monkeypatch.setattr(max_time, "_family_starts", lambda *_: [])
    assert solve_max_time(*fleet, 1e5, 10**4).objective > 2 * least
    assert solve_max_time(*fleet, 1e5, 10**4, certified=True).objective <= least * (1 + 1e-10)


def test_what_the_certificate_finds_is_used_even_where_steps_run_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet = random_fleet(20, 0)
    monkeypatch.setattr(max_time, "STEP_LIMIT", 1)
    plain = solve_max_time(*fleet, None, 20)
    certified = solve_max_time(*fleet, None, 20, certified=True)
    assert certified.status == "iteration-limit"
    assert certified.objective < plain.objective * (1 - 1e-4)
    assert 0 <= certified.gap < 0.2


def test_the_bound_is_valid_when_evaluations_run_out(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = random_fleet(3, 5)
    c = 10 * fleet.least_variance
    full = solve_max_time(*fleet, c, 10, certified=True)
    monkeypatch.setattr(solution, "MOST_EVALUATIONS", 3)
    short = solve_max_time(*fleet, c, 10, certified=True)
    assert short.gap > full.gap
    least = objectives(GRIDS[3], fleet, c, 10).min()
    assert short.objective / (1 + short.gap) <= least * (1 + 1e-9)


def test_merging_more_clients_loosens_the_bound_but_keeps_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet = random_fleet(60, 7)
    fine = solve_max_time(*fleet, None, 5, certified=True)
    monkeypatch.setattr(solution, "MOST_GROUPS", 8)
    coarse = solve_max_time(*fleet, None, 5, certified=True)
    assert coarse.objective / (1 + coarse.gap) < fine.objective * (1 + 1e-12)
    assert coarse.gap > fine.gap


@pytest.mark.parametrize("norm", [1e-15, 1e-16, 1e-25])
def test_a_client_that_hardly_matters_leaves_room_for_no_gap(norm: float) -> None:
    # Here t_1 (S_0 + c) is the optimum to almost all digits, and the interval of y a point.
    solution = solve_max_time([0.5, 0.5], [1.0, 1e4], [1.0, norm], 0.25, 10**6, certified=True)
    assert 0 <= solution.gap < 1e-8
    assert solution.objective == pytest.approx(0.5, rel=1e-8)
