"""The lower bound on the exact problem: never above the optimum, and close to it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpace import solve_max_time
from fedpace.sampling import certificate
from fedpace.sampling.certificate import certify
from tests.sampling.fleets import Fleet, caps, extreme_fleets, fleets, powers_of_ten, random_fleet
from tests.sampling.oracles import above_floors, logit_grid, objectives, time_limit

ks = st.sampled_from([1, 2, 3, 10, 100, 10**4])
GRIDS = {2: logit_grid(2, 4001, 30.0), 3: logit_grid(3, 241, 18.0)}


@settings(max_examples=40)
@given(fleets(fewest=2, most=3), st.just(0.0) | powers_of_ten(-2, 5), ks)
def test_lower_bound_is_below_every_point_of_a_grid(fleet: Fleet, ratio: float, k: int) -> None:
    c = ratio * fleet.least_variance
    solution = solve_max_time(*fleet, c, k, certified=True)
    least = objectives(GRIDS[fleet.times.size], fleet, c, k).min()
    assert solution.objective / (1 + solution.gap) <= least * (1 + 1e-9)
    assert solution.objective <= least * (1 + 1e-10)
    assert 0 <= solution.gap < 0.1


@settings(max_examples=40)
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


@settings(max_examples=25)
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
@pytest.mark.parametrize(("n", "k", "ratio"), [(30, 5, 1.0), (100, 10, 1.0), (200, 50, 10.0)])
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


def test_starts_from_the_certificate_escape_a_local_optimum() -> None:
    # Without it, the descent ends where the slow clients are drawn now and then.
    fleet = Fleet(
        np.array([0.05461, 0.2, 0.14539, 0.1, 0.2, 0.3]),
        np.array([1.0, 1.1, 2.0, 5.0, 9.0, 10.0]),
        np.array([1.0, 2.0, 1.0, 3.0, 1.0, 2.0]),
    )
    importance = fleet.importance / fleet.importance.sum()
    poor = np.full(6, 1 / 6)
    value = float(
        objectives(poor, fleet._replace(grad_norms=importance / fleet.weights), 50.0, 200)
    )
    bound, starts = certify(importance, fleet.times, 50.0, 200, None, poor, value)
    normal = fleet._replace(grad_norms=importance / fleet.weights)
    best = solve_max_time(*normal, 50.0, 200).objective
    assert bound <= best
    assert min(float(objectives(q, normal, 50.0, 200)) for q in starts) < value
    for q in starts:
        assert q.sum() == pytest.approx(1, abs=1e-12)
        assert np.all(q > 0)


def test_the_bound_is_valid_when_evaluations_run_out(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = random_fleet(3, 5)
    c = 10 * fleet.least_variance
    full = solve_max_time(*fleet, c, 10, certified=True)
    monkeypatch.setattr(certificate, "MOST_EVALUATIONS", 3)
    short = solve_max_time(*fleet, c, 10, certified=True)
    assert short.gap > full.gap
    least = objectives(GRIDS[3], fleet, c, 10).min()
    assert short.objective / (1 + short.gap) <= least * (1 + 1e-9)


def test_merging_more_clients_loosens_the_bound_but_keeps_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet = random_fleet(60, 7)
    fine = solve_max_time(*fleet, None, 5, certified=True)
    monkeypatch.setattr(certificate, "MOST_GROUPS", 8)
    coarse = solve_max_time(*fleet, None, 5, certified=True)
    assert coarse.objective / (1 + coarse.gap) < fine.objective * (1 + 1e-12)
    assert coarse.gap > fine.gap


def test_a_client_that_hardly_matters_leaves_room_for_no_gap() -> None:
    # Here t_1 (S_0 + c) is the optimum to all digits, and the interval of y a point.
    solution = solve_max_time([0.5, 0.5], [1.0, 1e4], [1.0, 1e-25], 0.25, 10**6, certified=True)
    assert 0 <= solution.gap < 1e-9
    assert solution.objective == pytest.approx(0.5, rel=1e-12)
