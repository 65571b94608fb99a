"""The best tiers: valid, as predicted, optimal for what is given, and never below the bound."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpace import (
    SCHEMES,
    InputError,
    Profile,
    Tiered,
    solve_max_time,
    solve_mean_time,
    solve_tiers,
)
from fedpace.checks import FloatArray
from fedpace.sampling.solvers import tiers as tiers_module
from fedpace.sampling.solvers.tiers import TierSolution, tier_counts
from fedpace.sampling.tiers import inclusion_probabilities, totals
from tests.sampling.fleets import (
    Fleet,
    caps,
    extreme_fleets,
    fleets,
    powers_of_ten,
    random_fleet,
    ratios,
    widest_fleets,
)
from tests.sampling.oracles import softmax_descent, time_limit
from tests.sampling.tiered_designs import designs

ks = st.sampled_from([1, 2, 3, 10, 10**4])


def design_of(solution: TierSolution, fleet: Fleet, k: int) -> Tiered:
    parts = (solution.tiers, solution.chances, solution.inclusion)
    return Tiered(*parts, fleet.weights, k=k, solution=solution)


def predicted(design: Tiered, fleet: Fleet, c: float) -> float:
    """T (S + c) of a design, with the norms' stand-in."""
    norms = fleet.importance / fleet.weights
    profile = Profile(fleet.weights, fleet.times, norms)
    return design.expected_round_time(fleet.times) * (design.variance_term(profile) + c)


def tier_problem(
    solution: TierSolution, fleet: Fleet, k: int
) -> tuple[FloatArray, FloatArray, float]:
    """T_g, K A_g and (K − 1) Σ a², with which J(m) = (Σ m T) (Σ K A / m + c − the last)."""
    a = fleet.importance
    moments = k * totals(solution.tiers, a * (a / solution.inclusion))
    times = design_of(solution, fleet, k).tier_times(fleet.times)
    return times, moments, (k - 1) * float(a @ a)


def check_valid(solution: TierSolution, fleet: Fleet, k: int) -> None:
    assert solution.status == "converged"
    assert np.isfinite(solution.objective)
    assert solution.residual < 1e-5
    assert solution.gap >= 0
    assert np.all(solution.q > 0)
    assert solution.q.sum() == pytest.approx(1, abs=1e-12)
    taken = np.bincount(solution.tiers, solution.inclusion)
    assert taken == pytest.approx(np.minimum(np.bincount(solution.tiers), k), rel=1e-9)
    # Tiers are of neighbouring times, the fastest first.
    order = np.argsort(fleet.times, kind="stable")
    assert np.all(np.diff(solution.tiers[order]) >= 0)


@settings(max_examples=40)
@given(extreme_fleets(), ratios, ks, st.sampled_from([None, 1.0, 5.0]))
def test_is_valid_on_extreme_fleets(fleet: Fleet, ratio: float, k: int, cap: float | None) -> None:
    with time_limit(20):
        solution = solve_tiers(*fleet, ratio, k, max_weight=cap)
    check_valid(solution, fleet, k)
    if cap is not None:
        weights = fleet.weights / (solution.chances[solution.tiers] * solution.inclusion)
        assert weights.max() <= cap * (1 + 1e-9)


@settings(max_examples=10)
@given(widest_fleets(), powers_of_ten(-3, 3), st.sampled_from([1, 7]))
def test_is_valid_on_the_widest_fleets(fleet: Fleet, ratio: float, k: int) -> None:
    with time_limit(20):
        check_valid(solve_tiers(*fleet, ratio * fleet.least_variance, k), fleet, k)


@settings(max_examples=40)
@given(extreme_fleets() | fleets(), powers_of_ten(-3, 3), st.sampled_from([1, 2, 3, 10, 100]))
def test_the_objective_is_that_of_its_design(fleet: Fleet, ratio: float, k: int) -> None:
    c = ratio * fleet.least_variance
    solution = solve_tiers(*fleet, c, k)
    design = design_of(solution, fleet, k)
    variance = design.variance_term(Profile(*fleet))
    expected = design.expected_round_time(fleet.times) * (variance + c)
    assert solution.objective == pytest.approx(expected, rel=1e-9)
    assert solution.q == pytest.approx(design.q, rel=1e-12)


@settings(max_examples=25)
@given(fleets(fewest=2), powers_of_ten(-2, 2) | st.just(0.0), st.integers(1, 6), st.data())
def test_a_general_solver_finds_no_better_chances(
    fleet: Fleet, ratio: float, k: int, data: st.DataObject
) -> None:
    count = data.draw(st.integers(2, fleet.times.size))
    c = ratio * fleet.least_variance
    solution = solve_tiers(*fleet, c, k, tiers=count)
    assert solution.chances.size == count
    times, moments, once = tier_problem(solution, fleet, k)

    def log_objective(m: FloatArray) -> tuple[float, FloatArray]:
        mean, spread = float(m @ times), float(np.sum(moments / m)) + c - once
        return math.log(mean * spread), times / mean - moments / m**2 / spread

    rng = np.random.default_rng(0)
    starts = [solution.chances, *rng.dirichlet(np.ones(count), size=4) + 1e-9]
    general = softmax_descent(log_objective, starts)
    assert math.log(solution.objective) <= math.log(general) + 1e-8


@settings(max_examples=25)
@given(st.data(), fleets(fewest=2), powers_of_ten(-2, 2), st.integers(1, 6))
def test_no_other_chances_are_better_under_a_cap(
    data: st.DataObject, fleet: Fleet, ratio: float, k: int
) -> None:
    count = data.draw(st.integers(2, fleet.times.size))
    most = data.draw(st.floats(1, 4))
    c = ratio * fleet.least_variance
    solution = solve_tiers(*fleet, c, k, max_round_weight=most, tiers=count)
    design = design_of(solution, fleet, k)
    assert design.round_weights.max() <= most * (1 + 1e-9)
    times, moments, once = tier_problem(solution, fleet, k)
    floors = np.bincount(solution.tiers, fleet.weights) / most
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.dirichlet(np.full(count, each), size=300) for each in (0.3, 1, 9)])
    others = floors + (1 - floors.sum()) * (rows + 1e-12)
    near = np.maximum(solution.chances * rng.uniform(0.99, 1.01, (200, count)), floors)
    others = np.concatenate([others, near / near.sum(axis=1, keepdims=True)])
    others = others[np.all(others >= floors * (1 - 1e-9), axis=1)]
    objectives = (others @ times) * ((moments / others).sum(axis=1) + c - once)
    assert solution.objective <= objectives.min() * (1 + 1e-6)


@settings(max_examples=60)
@given(designs(), st.data(), ratios, st.integers(0, 3))
def test_no_design_whatever_beats_the_bound(
    design: Tiered, data: st.DataObject, ratio: float, spare: int
) -> None:
    n = design.n
    values = st.lists(powers_of_ten(-1.5, 1.5), min_size=n, max_size=n)
    fleet = Fleet(design.weights, np.array(data.draw(values)), np.array(data.draw(values)))
    k = design.k + spare
    c = ratio * fleet.least_variance
    roomy = Tiered(design.tiers, design.chances, design.inclusion, design.weights, k=k)
    solution = solve_tiers(*fleet, c, k)
    bound = solution.objective / (1 + solution.gap)
    assert predicted(roomy, fleet, c) >= bound * (1 - 1e-9)
    # Draws with replacement are of K different clients at most, too.
    assert solve_max_time(*fleet, c, k).objective >= bound * (1 - 1e-9)


@settings(max_examples=30)
@given(fleets(fewest=2), powers_of_ten(-1, 1), st.integers(1, 5), st.floats(0, 1), st.data())
def test_no_tiers_beat_the_bound_where_updates_resemble_each_other(
    fleet: Fleet, ratio: float, k: int, coherence: float, data: st.DataObject
) -> None:
    c = ratio * fleet.least_variance
    best = solve_tiers(*fleet, c, k, coherence=coherence)
    bound = best.objective / (1 + best.gap)
    assert bound > 0
    count = data.draw(st.integers(1, fleet.times.size))
    other = solve_tiers(*fleet, c, k, tiers=count, coherence=coherence)
    assert other.objective >= bound * (1 - 1e-9)
    assert other.objective / (1 + other.gap) == pytest.approx(bound, rel=1e-9)


@settings(max_examples=30)
@given(fleets(), powers_of_ten(-1, 1), st.integers(1, 5), st.floats(0, 1))
def test_the_objective_is_that_of_updates_with_this_cosine(
    fleet: Fleet, ratio: float, k: int, coherence: float
) -> None:
    c = ratio * fleet.least_variance
    solution = solve_tiers(*fleet, c, k, coherence=coherence)
    n = fleet.times.size
    common = np.full((n, 1), math.sqrt(coherence))
    updates = np.hstack([common, math.sqrt(1 - coherence) * np.eye(n)])
    updates *= fleet.grad_norms[:, None]
    mean = fleet.weights @ updates
    squared = float(mean @ mean)
    design = design_of(solution, fleet, k)
    variance = k * (design.second_moment(updates) - squared) + squared
    expected = design.expected_round_time(fleet.times) * (variance + c)
    assert solution.objective == pytest.approx(expected, rel=1e-9)


@settings(max_examples=25)
@given(fleets(), powers_of_ten(-2, 2))
def test_one_a_round_is_the_papers_problem(fleet: Fleet, ratio: float) -> None:
    c = ratio * fleet.least_variance
    solution = solve_tiers(*fleet, c, 1)
    mean = solve_mean_time(*fleet, c)
    assert solution.objective == pytest.approx(mean.objective, rel=1e-9)
    assert solution.gap == pytest.approx(0, abs=1e-9)


@settings(max_examples=25)
@given(fleets(), powers_of_ten(-2, 2), ks)
def test_where_times_are_equal_one_tier_is_as_good(fleet: Fleet, ratio: float, k: int) -> None:
    alike = fleet._replace(times=np.full(fleet.times.size, 2.5))
    c = ratio * fleet.least_variance
    best, one = solve_tiers(*alike, c, k), solve_tiers(*alike, c, k, tiers=1)
    assert one.objective == pytest.approx(best.objective, rel=1e-9)
    assert one.gap == pytest.approx(0, abs=1e-6)
    zeros = np.zeros(fleet.times.size, dtype=np.int64)
    assert one.inclusion == pytest.approx(
        inclusion_probabilities(fleet.importance, zeros, k), rel=1e-9
    )


def test_one_client_is_always_drawn() -> None:
    solution = solve_tiers([1.0], [3.0], [2.0], 5.0, 4)
    assert solution.q.tolist() == solution.chances.tolist() == solution.inclusion.tolist() == [1.0]
    assert solution.objective == pytest.approx(3.0 * (4.0 + 5.0))


def test_a_very_fast_client_gets_rounds_of_its_own() -> None:
    fleet = Fleet(np.full(20, 0.05), np.array([1e-3, *[1.0] * 19]), np.ones(20))
    solution = solve_tiers(*fleet, 100.0, 4)
    assert np.bincount(solution.tiers)[0] == 1
    # Its rounds are so short that a twentieth of all data takes most of them.
    assert solution.chances[0] > 0.5


@settings(max_examples=30)
@given(st.data(), fleets() | extreme_fleets(), powers_of_ten(-2, 2), st.integers(1, 12))
def test_a_cap_is_kept_wherever_it_can_be(
    data: st.DataObject, fleet: Fleet, ratio: float, k: int
) -> None:
    cap = data.draw(caps(k))
    solution = solve_tiers(*fleet, ratio * fleet.least_variance, k, max_weight=cap)
    assert solution.status == "converged"
    # Nobody is drawn twice, so a weight is p at least.
    most = max(cap, float(fleet.weights.max()))
    assert design_of(solution, fleet, k).largest_weight <= most * (1 + 1e-6)


@settings(max_examples=20)
@given(fleets(), powers_of_ten(-2, 2), st.integers(1, 12), st.floats(1, 3))
def test_the_weight_of_a_round_is_capped(fleet: Fleet, ratio: float, k: int, most: float) -> None:
    c = ratio * fleet.least_variance
    solution = solve_tiers(*fleet, c, k, max_round_weight=most)
    assert design_of(solution, fleet, k).round_weights.max() <= most * (1 + 1e-9)
    free = solve_tiers(*fleet, c, k)
    loose = 1.01 * float(design_of(free, fleet, k).round_weights.max())
    capped = solve_tiers(*fleet, c, k, max_round_weight=loose)
    assert capped.objective == pytest.approx(free.objective, rel=1e-6)


@settings(max_examples=20)
@given(fleets(fewest=2), powers_of_ten(-2, 2), st.data())
def test_neither_order_nor_units_matter(fleet: Fleet, ratio: float, data: st.DataObject) -> None:
    # Times that differ, so that it is clear who is in which tier.
    times = fleet.times * (1 + 1e-3 * np.arange(fleet.times.size))
    fleet = fleet._replace(times=times)
    count = data.draw(st.integers(1, fleet.times.size))
    k = math.ceil(fleet.times.size / count)  # nobody waits, so the order in a tier has no effect
    c = ratio * fleet.least_variance
    solution = solve_tiers(*fleet, c, k, tiers=count)
    order = np.random.default_rng(0).permutation(fleet.times.size).tolist()
    shuffled = solve_tiers(*fleet.permuted(order), c, k, tiers=count)
    if np.unique(times).size == times.size:
        assert shuffled.tiers.tolist() == solution.tiers[order].tolist()
        assert shuffled.objective == pytest.approx(solution.objective, rel=1e-9)
        assert shuffled.q == pytest.approx(solution.q[order], rel=1e-6)
    minutes = fleet._replace(times=fleet.times / 60, grad_norms=7 * fleet.grad_norms)
    scaled = solve_tiers(*minutes, 49 * c, k, tiers=count)
    assert scaled.objective == pytest.approx(solution.objective * 49 / 60, rel=1e-9)
    assert scaled.chances == pytest.approx(solution.chances, rel=1e-6)


@settings(max_examples=15)
@given(fleets(most=12), powers_of_ten(-2, 2), st.integers(1, 5))
def test_no_number_of_tiers_that_is_tried_is_better(fleet: Fleet, ratio: float, k: int) -> None:
    c = ratio * fleet.least_variance
    best = solve_tiers(*fleet, c, k).objective
    for count in tier_counts(fleet.times.size, k):
        assert best <= solve_tiers(*fleet, c, k, tiers=count).objective * (1 + 1e-9)


@pytest.mark.parametrize("k", [2, 5, 10])
@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_clients_matters_little(seed: int, k: int) -> None:
    fleet = random_fleet(60, seed)
    objective = solve_tiers(*fleet, fleet.least_variance, k).objective
    for other in range(3):
        order = np.random.default_rng(other).permutation(60).tolist()
        shuffled = solve_tiers(*fleet.permuted(order), fleet.least_variance, k).objective
        assert shuffled == pytest.approx(objective, rel=0.15)


@pytest.mark.parametrize("k", [5, 20])
@pytest.mark.parametrize("ratio", [0.1, 1.0, 10.0])
def test_tiers_are_sooner_than_independent_draws_on_typical_fleets(k: int, ratio: float) -> None:
    for seed in range(3):
        fleet = random_fleet(200, seed)
        c = ratio * fleet.least_variance
        independent = solve_max_time(*fleet, c, k).objective
        assert solve_tiers(*fleet, c, k).objective < 0.95 * independent


@pytest.mark.parametrize("cap", [None, 1.0])
@pytest.mark.parametrize("k", [3, 30])
def test_a_large_fleet_loses_little_by_trying_fewer_numbers_of_tiers(
    monkeypatch: pytest.MonkeyPatch, k: int, cap: float | None
) -> None:
    fleet = random_fleet(3000, 4)
    c = fleet.least_variance
    whole = solve_tiers(*fleet, c, k, max_weight=cap)
    monkeypatch.setattr(tiers_module, "LARGE", 400)
    large = solve_tiers(*fleet, c, k, max_weight=cap)
    assert large.iterations < whole.iterations
    assert large.objective <= whole.objective * 1.01
    assert design_of(large, fleet, k).largest_weight <= (cap or np.inf) * (1 + 1e-9)


def test_where_all_updates_are_alike_one_client_a_round_says_it_all() -> None:
    fleet = random_fleet(2500, 0)
    assert solve_tiers(*fleet, fleet.least_variance, 10, coherence=1.0).chances.size == 2500


def test_norms_of_zero_count_as_the_smallest_positive() -> None:
    p, t = [0.4, 0.3, 0.3], [1.0, 2.0, 3.0]
    one = solve_tiers(p, t, [2.0, 0.0, 0.5], 1.0, 2)
    other = solve_tiers(p, t, [2.0, 0.5, 0.5], 1.0, 2)
    assert one.q.tolist() == other.q.tolist()
    assert one.gap == other.gap
    assert one.objective < other.objective


@given(st.integers(1, 10**6), st.integers(1, 10**7))
def test_numbers_of_tiers_are_from_one_to_all_in_small_steps(n: int, k: int) -> None:
    counts = tier_counts(n, k)
    assert counts == sorted(set(counts))
    assert (counts[0], counts[-1]) == (1, n)
    assert all(b <= 2 * a + 1 for a, b in itertools.pairwise(counts))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"k": 0}, "k must be at least 1, got 0; "),
        ({"max_weight": 0.2}, "max_weight must be at least 1/k = 0.25, got 0.2; "),
        ({"max_weight": "x"}, "max_weight must be a number, got 'x'; "),
        ({"max_round_weight": 0.9}, "max_round_weight must be at least 1, got 0.9; weights sum"),
        ({"max_round_weight": math.nan}, "max_round_weight must be at least 1, got nan; "),
        ({"max_round_weight": "x"}, "max_round_weight must be a number, got 'x'; give the largest"),
        ({"tiers": 0}, "tiers must be at least 1, got 0; give 1 to 6"),
        ({"tiers": 7}, "tiers must be at most 6, got 7; give 1 to 6"),
        ({"tiers": 2.5}, "tiers must be an integer, got 2.5; "),
        ({"coherence": -0.1}, "coherence must lie between 0 and 1, got -0.1; give a mean cosine"),
        ({"coherence": math.nan}, "coherence must lie between 0 and 1, got nan; "),
        ({"coherence": []}, "coherence must be a number, got []; "),
    ],
)
def test_bad_input_is_refused_with_a_remedy(changes: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"k": 4, **changes}
    with pytest.raises(InputError) as refused:
        solve_tiers(*random_fleet(6, 0), None, **arguments)
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize("grad_norms", [[0.0] * 4, [0.0, 0.0, 1e-10, 0.0]])
@pytest.mark.parametrize("k", [1, 2])
def test_tiny_weights_with_a_cap_keep_a_probability(grad_norms: list[float], k: int) -> None:
    """π of a client with p = 3e-30 beside one with p = 1/2 vanishes in the sum K."""
    weights = np.array([0.5, 3e-30, 0.5, 3e-30])
    profile = Profile(weights, [1.0, 1.0, 2.0, 2.0], grad_norms)
    design = SCHEMES["optimal-tiers"](profile, k, max_weight=1.0)
    assert np.all(design.q > 0)
    assert design.largest_weight <= 1 + 1e-9
