import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from fedpace import (
    InputError,
    Solution,
    mean_round_time,
    solve_max_time,
    solve_mean_time,
    variance_term,
)
from fedpace.checks import FloatArray
from fedpace.profile import stand_in
from fedpace.sampling.solvers import mean_time
from tests.sampling.fleets import (
    EXAMPLES,
    Fleet,
    caps,
    extreme_fleets,
    fleets,
    random_fleet,
    ratios,
    simplex_grid,
    widest_fleets,
)
from tests.sampling.oracles import constrained_descent, log_objective, time_limit


def objective(q: FloatArray, fleet: Fleet, c: float) -> float:
    variance = np.sum(fleet.importance * (fleet.importance / q))
    return float((q @ fleet.times) * (variance + c))


def softmax_optimum(fleet: Fleet, c: float, floors: FloatArray | None = None) -> float:
    """Return the least objective that L-BFGS finds, with q = l + (1 − Σl) softmax."""
    low = np.zeros(fleet.times.size) if floors is None else floors
    spare = 1 - low.sum()

    def value(z: FloatArray) -> tuple[float, FloatArray]:
        share = np.exp(np.maximum(z - z.max(), -50))
        share /= share.sum()
        q = low + spare * share
        mean = q @ fleet.times
        ratio = fleet.importance / q
        spread = fleet.importance @ ratio + c
        gradient = (fleet.times / mean - ratio**2 / spread) * spare
        return float(np.log(mean * spread)), share * (gradient - share @ gradient)

    rng = np.random.default_rng(0)
    starts = [rng.normal(size=low.size) * scale for scale in (0, 1, 3)]
    options = {"maxiter": 500, "ftol": 1e-15, "gtol": 1e-12, "maxcor": 30}
    found = [minimize(value, z, jac=True, method="L-BFGS-B", options=options) for z in starts]
    return float(np.exp(min(each.fun for each in found)))


def check_q(solution: Solution, n: int) -> None:
    assert solution.q.shape == (n,)
    assert np.all(np.isfinite(solution.q))
    assert np.all(solution.q > 0)
    assert solution.q.sum() == pytest.approx(1, abs=1e-12)
    assert np.isfinite(solution.objective)


def check_valid(solution: Solution, n: int) -> None:
    check_q(solution, n)
    assert solution.status == "converged"


@given(extreme_fleets(), ratios, st.sampled_from([None, 1.0, 0.1]))
def test_is_valid_and_stationary_on_extreme_fleets(
    fleet: Fleet, ratio: float, cap: float | None
) -> None:
    solution = solve_mean_time(*fleet, ratio, max_weight=cap, k=20)
    check_valid(solution, fleet.times.size)
    assert solution.residual < 1e-7
    assert solution.gap < 1e-7
    if cap is not None:
        assert np.all(fleet.weights / (20 * solution.q) <= cap * (1 + 1e-9))


@pytest.mark.parametrize("fleet", EXAMPLES[:2], ids=["two", "three"])
@pytest.mark.parametrize("ratio", [0.0, 0.1, 1.0, 30.0])
def test_no_point_of_a_grid_is_better(fleet: Fleet, ratio: float) -> None:
    c = ratio * fleet.least_variance
    best = solve_mean_time(*fleet, c).objective
    grid = simplex_grid(fleet.times.size, 200)
    values = [objective(q, fleet, c) for q in grid]
    assert best <= min(values) * (1 + 1e-12)
    assert min(values) <= best * 1.01


@pytest.mark.parametrize("fleet", EXAMPLES)
@pytest.mark.parametrize("ratio", [0.0, 0.3, 3.0, 100.0])
@pytest.mark.parametrize("cap", [None, 0.5])
def test_agrees_with_a_general_solver(fleet: Fleet, ratio: float, cap: float | None) -> None:
    c = ratio * fleet.least_variance
    solution = solve_mean_time(*fleet, c, max_weight=cap, k=4)
    floors = None if cap is None else fleet.weights / (4 * cap)
    general = softmax_optimum(fleet, c, floors)
    assert solution.objective <= general * (1 + 1e-10)
    assert general <= solution.objective * (1 + 1e-4)


@given(fleets(fewest=2), ratios)
def test_the_gradient_is_the_same_for_all_clients(fleet: Fleet, ratio: float) -> None:
    c = ratio * fleet.least_variance
    q = solve_mean_time(*fleet, c).q
    mean = q @ fleet.times
    spread = np.sum(fleet.importance**2 / q) + c
    gains, costs = (fleet.importance / q) ** 2 / spread, fleet.times / mean
    assert q * (costs - gains) == pytest.approx(q * (c / spread), abs=1e-9)


@given(fleets(fewest=2), st.floats(-6, 6))
def test_the_scalar_equation_holds(fleet: Fleet, exponent: float) -> None:
    c = 10**exponent * fleet.least_variance
    solution = solve_mean_time(*fleet, c)
    variance = variance_term(solution.q, fleet.weights, fleet.grad_norms)
    theta = (solution.q @ fleet.times) * c / (variance + c)
    ahead = fleet.times.min() - theta
    if ahead > 1e-6 * theta:  # beyond that the test itself cancels, not the solver
        left = np.sum(fleet.importance * np.sqrt(theta / (fleet.times - theta)))
        assert left == pytest.approx(np.sqrt(c), rel=1e-6)


@given(fleets(), ratios)
def test_equal_times_give_statistical_sampling(fleet: Fleet, ratio: float) -> None:
    alike = fleet._replace(times=np.full(fleet.times.size, 2.5))
    expected = fleet.importance / fleet.importance.sum()
    assert solve_mean_time(*alike, ratio).q == pytest.approx(expected, rel=1e-12)


@given(fleets())
def test_no_ratio_gives_importance_over_root_time(fleet: Fleet) -> None:
    shape = fleet.importance / np.sqrt(fleet.times)
    assert solve_mean_time(*fleet, 0.0).q == pytest.approx(shape / shape.sum(), rel=1e-12)


@given(fleets(fewest=2), ratios, st.sampled_from([None, 0.3]))
def test_faster_and_more_important_clients_are_drawn_more(
    fleet: Fleet, ratio: float, cap: float | None
) -> None:
    weights = np.full(fleet.times.size, 1 / fleet.times.size)
    q = solve_mean_time(weights, fleet.times, fleet.grad_norms, ratio, max_weight=cap, k=5).q
    for i in range(q.size):
        better = (fleet.times[i] <= fleet.times) & (fleet.grad_norms[i] >= fleet.grad_norms)
        assert np.all(q[i] >= q[better] * (1 - 1e-9))


@given(fleets(), ratios)
def test_neither_order_nor_units_matter(fleet: Fleet, ratio: float) -> None:
    c = ratio * fleet.least_variance
    q = solve_mean_time(*fleet, c).q
    order = np.random.default_rng(0).permutation(q.size)
    shuffled = Fleet(*(column[order] for column in fleet))
    assert solve_mean_time(*shuffled, c).q == pytest.approx(q[order], rel=1e-9)
    minutes = fleet._replace(times=fleet.times / 60, grad_norms=7 * fleet.grad_norms)
    assert solve_mean_time(*minutes, 49 * c).q == pytest.approx(q, rel=1e-9)


@given(fleets(), ratios)
def test_one_draw_makes_the_exact_problem_the_same(fleet: Fleet, ratio: float) -> None:
    c = ratio * fleet.least_variance
    mean, exact = solve_mean_time(*fleet, c), solve_max_time(*fleet, c, 1)
    assert exact.objective == pytest.approx(mean.objective, rel=1e-11)
    assert exact.q == pytest.approx(mean.q, rel=1e-5)


@given(fleets(), ratios)
def test_the_objective_is_that_of_q(fleet: Fleet, ratio: float) -> None:
    c = ratio * fleet.least_variance
    solution = solve_mean_time(*fleet, c)
    assert solution.objective == pytest.approx(objective(solution.q, fleet, c), rel=1e-12)


@given(extreme_fleets(), ratios)
def test_a_norm_of_zero_counts_as_the_smallest_positive(fleet: Fleet, ratio: float) -> None:
    replaced = fleet._replace(grad_norms=stand_in(fleet.grad_norms))
    assert np.array_equal(solve_mean_time(*fleet, ratio).q, solve_mean_time(*replaced, ratio).q)


def test_a_cap_of_one_over_k_leaves_weighted_sampling() -> None:
    fleet = random_fleet(9, 0)
    solution = solve_mean_time(*fleet, 5.0, max_weight=0.1, k=10)
    assert solution.q == pytest.approx(fleet.weights, rel=1e-12)
    assert solution.residual == 0.0


@given(fleets(), ratios)
def test_a_cap_that_does_not_bind_changes_nothing(fleet: Fleet, ratio: float) -> None:
    free = solve_mean_time(*fleet, ratio)
    loose = 1.01 * float((fleet.weights / free.q).max()) / 3
    capped = solve_mean_time(*fleet, ratio, max_weight=max(loose, 0.4), k=3)
    assert capped.q == pytest.approx(free.q, rel=1e-7)


@given(fleets(fewest=2), st.floats(0.11, 3))
def test_a_tighter_cap_never_lowers_the_objective(fleet: Fleet, cap: float) -> None:
    loose = solve_mean_time(*fleet, None, max_weight=cap, k=10)
    tight = solve_mean_time(*fleet, None, max_weight=0.9 * cap + 0.1 * 0.1, k=10)
    assert tight.objective >= loose.objective * (1 - 1e-12)


@pytest.mark.parametrize("cap", [0.05, 0.0, -1.0, float("nan")])
def test_a_cap_below_one_over_k_is_refused(cap: float) -> None:
    with pytest.raises(InputError, match=r"max_weight must be at least 1/k = 0.1, got .*; "):
        solve_mean_time(*random_fleet(5, 0), None, max_weight=cap, k=10)


def test_the_largest_ratio_leaves_almost_only_the_fastest() -> None:
    fleet = random_fleet(50, 1)
    q = solve_mean_time(*fleet, 1e12 * fleet.least_variance).q
    assert q[np.argmin(fleet.times)] > 0.99


def test_the_default_ratio_is_the_least_variance() -> None:
    fleet = random_fleet(6, 2)
    given_ratio = solve_mean_time(*fleet, fleet.least_variance)
    assert solve_mean_time(*fleet).q == pytest.approx(given_ratio.q, rel=1e-12)


@pytest.mark.parametrize(
    ("weights", "times", "grad_norms", "c", "k", "cap"),
    [
        ([6 / 14, 3 / 14, 2 / 14, 3 / 14], [1, 1, 1, 2], [3, 1, 2, 1], 0.0, 3, 2 / 3),
        ([0.25, 0.25, 0.25, 0.25], [1, 1, 2, 1], [5, 1, 5, 3], 12.25, 1, 2.5),
        ([0.5, 0.25, 0.25], [1, 2, 1], [5, 5, 1], 0.0, 4, 0.75),
    ],
)
def test_ends_where_a_client_meets_its_floor_exactly(
    weights: list[float],
    times: list[float],
    grad_norms: list[float],
    c: float,
    k: int,
    cap: float,
) -> None:
    with time_limit(3):
        mean = solve_mean_time(weights, times, grad_norms, c, max_weight=cap, k=k)
        exact = solve_max_time(weights, times, grad_norms, c, k, max_weight=cap)
    for solution in (mean, exact):
        check_valid(solution, len(weights))
        assert np.all(np.array(weights) / (k * solution.q) <= cap * (1 + 1e-9))


@given(st.data(), fleets(), ratios, st.integers(1, 20))
def test_every_cap_is_kept_and_the_answer_stationary(
    data: st.DataObject, fleet: Fleet, ratio: float, k: int
) -> None:
    cap = data.draw(caps(k))
    with time_limit(5):
        solution = solve_mean_time(*fleet, ratio, max_weight=cap, k=k)
    check_valid(solution, fleet.times.size)
    assert np.all(fleet.weights / (k * solution.q) <= cap * (1 + 1e-9))
    assert solution.residual < 1e-7
    assert solution.gap < 1e-7


@pytest.mark.parametrize("cap", [0.3, 0.5, 2.0])
@pytest.mark.parametrize("fleet", EXAMPLES[1:4], ids=["three", "five", "ten"])
def test_a_constrained_solver_finds_nothing_better_under_a_cap(fleet: Fleet, cap: float) -> None:
    c = 3 * fleet.least_variance
    floors = fleet.weights / (4 * cap)
    starts = np.random.default_rng(0).dirichlet(np.ones(fleet.times.size), size=3)
    general = constrained_descent(log_objective(fleet, c, 1), starts, floors)
    solution = solve_mean_time(*fleet, c, max_weight=cap, k=4)
    assert solution.objective <= general * (1 + 1e-9)
    assert general <= solution.objective * (1 + 1e-6)


@given(extreme_fleets(), ratios)
def test_the_objective_is_reported_with_the_norms_as_given(fleet: Fleet, ratio: float) -> None:
    solution = solve_mean_time(*fleet, ratio)
    variance = variance_term(solution.q, fleet.weights, fleet.grad_norms)
    expected = mean_round_time(solution.q, fleet.times) * (variance + ratio)
    assert solution.objective == pytest.approx(expected, rel=1e-12)


@given(ratios)
def test_one_client_is_always_drawn(ratio: float) -> None:
    solution = solve_mean_time([1.0], [2.0], [3.0], ratio)
    assert solution.q == pytest.approx([1.0], rel=1e-15)
    assert solution.objective == pytest.approx(2 * (9 + ratio), rel=1e-14)


def test_what_it_takes_to_solve_is_reported() -> None:
    fleet = random_fleet(6, 3)
    free = solve_mean_time(*fleet, 1.0)
    capped = solve_mean_time(*fleet, 1.0, max_weight=0.2, k=8)
    assert 1 <= free.iterations < capped.iterations < 200
    assert solve_mean_time(*fleet, 0.0).iterations == 0


# The fleet of a report: warnings are errors in this suite.
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("tied", [False, True])
def test_a_hundred_million_times_the_least_variance_is_solved_without_a_warning(
    seed: int, tied: bool
) -> None:
    rng = np.random.default_rng(seed)
    weights = rng.pareto(1.1, 3000) + 1e-3
    times = rng.exponential(size=3000) + 1e-9
    if tied:
        times = np.where(rng.random(3000) < 0.5, 0.1, 0.1 + times)
    fleet = Fleet(weights / weights.sum(), times, rng.lognormal(size=3000))
    c = 1e8 * fleet.least_variance
    for solution in (solve_mean_time(*fleet, c), solve_max_time(*fleet, c, 20)):
        check_valid(solution, 3000)


@settings(max_examples=40)
@given(
    widest_fleets(),
    st.sampled_from([0.0, 5e-324, 1e-160, 1e-140, 1e29]) | st.floats(-20, 29).map(lambda x: 10**x),
    st.sampled_from([None, 1.0, 1 + 1e-11, 1.5, 1e6]),
)
def test_the_widest_fleets_are_solved_without_a_warning(
    fleet: Fleet, ratio: float, cap: float | None
) -> None:
    c = ratio * fleet.least_variance
    max_weight = None if cap is None else cap / 20
    check_valid(solve_mean_time(*fleet, c, max_weight=max_weight, k=20), fleet.times.size)
    check_valid(solve_max_time(*fleet, c, 20, max_weight=max_weight), fleet.times.size)


@pytest.mark.parametrize("cap", [None, 0.1])
def test_running_out_of_steps_is_said(monkeypatch: pytest.MonkeyPatch, cap: float | None) -> None:
    fleet = random_fleet(50, 0)
    done = solve_mean_time(*fleet, None, max_weight=cap, k=20)
    monkeypatch.setattr(mean_time, "ROOT_STEPS", 1)
    stopped = solve_mean_time(*fleet, None, max_weight=cap, k=20)
    assert (done.status, stopped.status) == ("converged", "iteration-limit")
    check_q(stopped, 50)
    assert stopped.objective > done.objective
    assert stopped.residual > done.residual


def test_a_root_beyond_the_farthest_step_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = random_fleet(50, 0)
    c = 100 * fleet.least_variance
    done = solve_mean_time(*fleet, c, max_weight=0.06, k=20)
    monkeypatch.setattr(mean_time, "DOUBLINGS", 1)
    stopped = solve_mean_time(*fleet, c, max_weight=0.06, k=20)
    assert (done.status, stopped.status) == ("converged", "iteration-limit")
    check_q(stopped, 50)
    assert stopped.objective > done.objective


def test_the_end_nearer_to_zero_is_taken_where_there_is_no_root() -> None:
    assert mean_time._root(lambda at: at, 1.0, 2.0) == (1.0, 4, False)
    assert mean_time._root(lambda at: at, -2.0, -1.0) == (-1.0, 4, False)
