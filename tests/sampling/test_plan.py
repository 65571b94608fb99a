"""Predictions for one K and for many, against the formula by hand."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpace import (
    SCHEMES,
    InputError,
    Profile,
    WithReplacement,
    expected_round_time,
    plan,
    variance_term,
)
from fedpace.sampling.design import BaseDesign, as_design
from fedpace.sampling.dispatch import WITH_SHARES
from fedpace.sampling.plan import Prediction, best, link_round_time, recommend, usual_ks
from fedpace.sampling.schemes import scheme_named
from fedpace.times.links import SharedLink
from tests.sampling.fleets import Fleet, fleets, random_fleet

ks = st.integers(1, 30)


def by_hand(row: Prediction, profile: Profile, k: int) -> float:
    """T (S + c K/k) / K over that of uniform sampling at the reference K."""
    uniform = np.full(profile.n, 1 / profile.n)
    reference = expected_round_time(uniform, profile.times, k) * (
        variance_term(uniform, profile.weights, profile.grad_norms) + profile.beta_over_alpha
    )
    cost = row.round_time * (row.variance_term + profile.beta_over_alpha * row.k / k)
    return cost / row.k / (reference / k)


@given(fleets(), ks)
def test_uniform_at_the_reference_takes_relative_time_one(fleet: Fleet, k: int) -> None:
    (row,) = plan(Profile(*fleet), k, schemes=["uniform"])
    assert (row.scheme, row.k) == ("uniform", k)
    assert row.relative_time == pytest.approx(1, rel=1e-14)


@settings(max_examples=20)
@given(fleets(), ks, st.lists(ks, min_size=1, max_size=3))
def test_every_number_matches_the_formula_by_hand(fleet: Fleet, k: int, others: list[int]) -> None:
    profile = Profile(*fleet)
    rows = list(plan(profile, k, ks=others))
    assert [(row.k, row.scheme) for row in rows] == [
        (each, name) for each in others for name in SCHEMES
    ]
    for row in rows:
        assert row.relative_time == pytest.approx(by_hand(row, profile, k), rel=1e-12)
        assert row.largest_weight == row.design.largest_weight
        if isinstance(row.design, WithReplacement):
            expected = expected_round_time(row.design.q, fleet.times, row.k)
            assert row.round_time == pytest.approx(expected, rel=1e-14)
            variance = variance_term(row.design.q, fleet.weights, fleet.grad_norms)
            assert row.variance_term == pytest.approx(variance, rel=1e-12)
        else:
            assert isinstance(row.design, BaseDesign)
            expected = row.design.expected_round_time(fleet.times)
            assert row.round_time == pytest.approx(expected, rel=1e-14)
            assert row.variance_term == pytest.approx(row.design.variance_term(profile), rel=1e-12)


@pytest.mark.parametrize("name", ["optimal-mean", "optimal-max"])
def test_designs_for_another_k_are_made_with_the_ratio_of_that_k(name: str) -> None:
    fleet = random_fleet(8, 0)
    c = 2.0 * fleet.least_variance
    (row,) = plan(Profile(*fleet, c), 4, ks=[20], schemes=[name])
    expected = SCHEMES[name](Profile(*fleet, 5 * c), 20)
    assert isinstance(row.design, WithReplacement)
    assert isinstance(expected, WithReplacement)
    assert row.design.q == pytest.approx(expected.q, rel=1e-9)


@given(fleets(), ks)
def test_full_participation_takes_as_long_for_every_k(fleet: Fleet, k: int) -> None:
    rows = plan(Profile(*fleet), k, ks=[1, 7, 100], schemes=["full"])
    times = [row.relative_time for row in rows]
    assert times == pytest.approx([times[0]] * 3, rel=1e-12)


def test_the_best_k_is_large_where_times_are_equal() -> None:
    fleet = random_fleet(10, 0)._replace(times=np.full(10, 3.0))
    rows = plan(Profile(*fleet), 2, ks=[1, 2, 5, 10], schemes=["uniform"])
    assert min(rows, key=lambda row: row.relative_time).k == 10


def test_the_best_k_is_one_where_a_rare_straggler_is_all_that_matters() -> None:
    # Rounds barely fall with K when c dominates, but each lasts longer.
    profile = Profile(np.full(10, 0.1), [*[1.0] * 9, 1000.0], np.ones(10), 100.0)
    rows = plan(profile, 2, ks=[1, 2, 5, 10], schemes=["uniform"])
    assert min(rows, key=lambda row: row.relative_time).k == 1


@settings(max_examples=20)
@given(fleets(), ks)
def test_the_exact_optimum_is_never_predicted_to_be_slower(fleet: Fleet, k: int) -> None:
    rows = {row.scheme: row.relative_time for row in plan(Profile(*fleet), k)}
    others = ("full", "optimal-tiers", "optimal-independent")
    sampled = [time for name, time in rows.items() if name not in others]
    assert rows["optimal-max"] <= min(sampled) * (1 + 1e-12)


@settings(max_examples=30)
@given(fleets(), ks, st.lists(ks, min_size=1, max_size=3, unique=True))
def test_everyone_every_round_is_never_recommended(fleet: Fleet, k: int, others: list[int]) -> None:
    schemes = ["full", "uniform", "statistical"]
    rows = list(plan(Profile(*fleet), k, ks=others, schemes=schemes))
    n, first, advice = fleet.times.size, best(rows), recommend(rows, k)
    assert all(first.relative_time <= row.relative_time for row in rows)
    fewer = [row for row in rows if row.scheme != "full" and row.k < n]
    if first in fewer:
        assert advice is first
    elif not fewer:
        assert advice is None
    else:
        assert advice in fewer
        distance = min(abs(np.log(row.k / k)) for row in fewer)
        assert abs(np.log(advice.k / k)) == distance
        beside = [row.relative_time for row in fewer if row.k == advice.k]
        assert advice.relative_time == min(beside)


def test_the_best_is_recommended_where_it_draws_some_only() -> None:
    profile = Profile(np.full(10, 0.1), [*[1.0] * 9, 1000.0], np.ones(10), 100.0)
    rows = list(plan(profile, 2, ks=[1, 2], schemes=["full", "uniform"]))
    assert recommend(rows, 2) is best(rows) is rows[1]


def test_nothing_is_recommended_where_only_everyone_was_compared() -> None:
    rows = list(plan(Profile(*random_fleet(5, 0)), 2, ks=[2, 5], schemes=["full"]))
    assert recommend(rows, 2) is None


def test_a_cap_is_raised_for_a_k_that_cannot_keep_it() -> None:
    fleet = random_fleet(6, 1)
    rows = list(
        plan(Profile(*fleet), 10, ks=[1, 4, 10, 20], schemes=["optimal-max"], max_weight=0.2)
    )
    caps = [1.0, 0.25, 0.2, 0.2]
    for row, cap in zip(rows, caps, strict=True):
        assert row.largest_weight <= cap * (1 + 1e-9)
    assert isinstance(rows[0].design, WithReplacement)
    assert rows[0].design.q == pytest.approx(fleet.weights, rel=1e-9)


def test_a_cap_that_the_reference_cannot_keep_is_refused() -> None:
    with pytest.raises(InputError, match=r"max_weight must be at least 1/k = 0\.1, got 0\.05; "):
        list(plan(Profile(*random_fleet(5, 0)), 10, schemes=["optimal-mean"], max_weight=0.05))


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("optimal-mx", "did you mean 'optimal-max'?"),
        ("unifrom", "did you mean 'uniform'?"),
        ("max", "did you mean 'optimal-max'?"),
        ("xyz", f"use one of: {', '.join(SCHEMES)}"),
    ],
)
def test_an_unknown_scheme_is_refused_with_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(InputError) as refused:
        list(plan(Profile(*random_fleet(5, 0)), 3, schemes=[name]))
    assert (
        str(refused.value)
        == f"scheme must be a known name, module:name or file.py:name, got '{name}'; {hint}"
    )


@pytest.mark.parametrize("name", [None, 3, ["uniform"], b"uniform", np.ones(2)])
def test_what_is_no_name_of_a_scheme_is_refused(name: Any) -> None:
    with pytest.raises(InputError) as refused:
        scheme_named(name)
    assert str(refused.value).startswith(f"scheme must be a name, got {name!r}; ")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ks": 3}, "ks must be a list, got 3; put it in brackets"),
        ({"schemes": None}, "schemes must be a list, got None; put it in brackets"),
        ({"max_weight": "x", "ks": [1, 3]}, "max_weight must be a number, got 'x'; give the larg"),
    ],
)
def test_arguments_of_another_kind_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as refused:
        list(plan(Profile(*random_fleet(5, 0)), 3, **changes))
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize(("k", "others"), [(0, None), (2.5, None), (3, [0]), (3, [True])])
def test_a_k_that_is_no_count_is_refused(k: int, others: list[int] | None) -> None:
    with pytest.raises(InputError, match="k must be"):
        list(plan(Profile(*random_fleet(5, 0)), k, ks=others))


def test_numpy_integers_become_plain_numbers() -> None:
    ks_of_numpy = np.array([2, 3])
    for row in plan(Profile(*random_fleet(5, 0)), 3, ks=ks_of_numpy):
        assert type(row.k) is int
        assert type(row.relative_time) is float


@given(st.integers(1, 10**7), st.integers(1, 10**7))
def test_usual_ks_are_round_numbers_up_to_n_with_both_ends(n: int, k: int) -> None:
    found = usual_ks(n, k)
    assert found == sorted(set(found))
    assert {1, n, k} <= set(found)
    for each in set(found) - {n, k}:
        assert each < n
        assert str(each)[0] in "125"
        assert set(str(each)[1:]) <= {"0"}
    assert all(b <= 2.5 * a for a, b in itertools.pairwise(found) if b <= n)


def test_a_prediction_in_numbers_leaves_out_the_design() -> None:
    (row,) = plan(Profile(*random_fleet(5, 0)), 3, schemes=["uniform"])
    assert row.numbers() == {name: getattr(row, name) for name in row._fields if name != "design"}


def designs_on_a_link(profile: Profile, k: int) -> list[BaseDesign]:
    names = ("full", "uniform", "optimal-mean", "optimal-tiers", "optimal-independent")
    return [as_design(SCHEMES[name](profile, k)) for name in names]


@pytest.mark.parametrize("rule", ["fair", "optimal"])
def test_the_expected_round_on_a_link_is_that_of_many_draws_and_within_its_bounds(
    rule: str,
) -> None:
    profile, link = Profile(*random_fleet(7, 3)), SharedLink(2.0, rule)
    megabits = 0.1 + np.random.default_rng(1).exponential(size=7)
    for design in designs_on_a_link(profile, 3):
        found = link_round_time(design, link, profile.times, megabits)
        assert found.error == 0
        assert found.low * (1 - 1e-9) <= found.mean <= found.high * (1 + 1e-9)
        rng = np.random.default_rng(0)
        drawn = [design.draw(rng).clients for _ in range(1500)]
        ends = [link.ends(profile.times[each], megabits[each]).max() for each in drawn]
        error = np.std(ends) / np.sqrt(len(ends))
        assert abs(np.mean(ends) - found.mean) <= 5 * error + 1e-9


def test_with_many_clients_the_round_on_a_link_is_estimated_with_its_error() -> None:
    profile, link = Profile(*random_fleet(60, 3)), SharedLink(2.0)
    ones = np.ones(60)
    for scheme in ("uniform", "optimal-independent"):
        design = as_design(SCHEMES[scheme](profile, 6))
        rough = link_round_time(design, link, profile.times, ones, draws=100)
        fine = link_round_time(design, link, profile.times, ones, draws=2000, seed=1)
        assert 0 < fine.error < rough.error
        assert abs(rough.mean - fine.mean) <= 5 * (rough.error + fine.error)
        assert fine.low - 5 * fine.error <= fine.mean <= fine.high + 5 * fine.error


def test_the_round_on_a_link_among_those_present_is_estimated() -> None:
    profile, link = Profile(*random_fleet(7, 3)), SharedLink(2.0)
    present = np.arange(7) != 2
    design = as_design(as_design(SCHEMES["uniform"](profile, 3)).among(present))
    found = link_round_time(design, link, profile.times, np.ones(7), draws=500)
    assert found.error > 0
    assert found.low - 5 * found.error <= found.mean <= found.high + 5 * found.error


def test_a_wide_link_changes_nothing_and_a_narrow_one_makes_few_clients_best() -> None:
    profile = Profile(*random_fleet(40, 0))
    settings: dict[str, Any] = {"ks": [1, 4, 16], "schemes": ["uniform", "optimal-tiers"]}
    free = list(plan(profile, 4, **settings))
    wide = list(plan(profile, 4, **settings, link=SharedLink(1e9), megabits=1.0))
    for one, other in zip(free, wide, strict=True):
        assert other.round_time == pytest.approx(one.round_time, rel=0.15)  # of 400 draws
    narrow = list(plan(profile, 4, **settings, link=SharedLink(0.05), megabits=1.0))
    assert best(narrow).k < best(wide).k


def test_nothing_to_transfer_is_refused() -> None:
    profile = Profile(*random_fleet(5, 0))
    design = as_design(SCHEMES["uniform"](profile, 2))
    with pytest.raises(InputError, match="megabits must be positive, got 0 for client 0; "):
        link_round_time(design, SharedLink(1.0), profile.times, 0.0)


@settings(max_examples=20)
@given(fleets(), ks)
def test_asynchronous_numbers_match_the_formula_by_hand(fleet: Fleet, k: int) -> None:
    profile = Profile(*fleet)
    (reference,) = plan(profile, k, schemes=["uniform"])
    scale = reference.round_time * (reference.variance_term + profile.beta_over_alpha) / k
    for row in plan(
        profile, k, ks=range(1, min(profile.n, 3) + 1), schemes=WITH_SHARES, asynchronous=True
    ):
        f = row.design.q
        seconds = float(f @ fleet.times) / row.k
        variance = variance_term(f, fleet.weights, fleet.grad_norms)
        signal = profile.beta_over_alpha / k
        assert row.round_time == pytest.approx(row.k * seconds)
        cost = seconds * (variance + (2 * row.k - 1) * signal)
        assert row.relative_time == pytest.approx(cost / scale)


def test_one_client_at_work_takes_as_long_as_rounds_of_one() -> None:
    profile = Profile([0.5, 0.3, 0.2], [1.0, 2.0, 6.0], [1.0, 2.0, 1.0], 3.0)
    for name in ("uniform", "weighted", "statistical"):
        (turn,) = plan(profile, 4, ks=[1], schemes=[name], asynchronous=True)
        (one,) = plan(profile, 4, ks=[1], schemes=[name])
        assert turn.relative_time == pytest.approx(one.relative_time)


def test_on_a_narrow_link_few_are_best_and_speed_counts_for_nothing() -> None:
    n = 40
    profile = Profile(np.full(n, 1 / n), 1 + np.arange(n) / 10.0, np.ones(n))
    values = [1, 2, 4, 8, 16, 32]

    def rows(capacity: float) -> list[Prediction]:
        found = plan(
            profile, 4, ks=values, schemes=["optimal-mean"], link=SharedLink(capacity),
            asynchronous=True,
        )  # fmt: skip
        return list(found)

    wide, narrow = rows(1e9), rows(1.0)
    without = list(plan(profile, 4, ks=values, schemes=["optimal-mean"], asynchronous=True))
    for row, same in zip(wide, without, strict=True):
        assert row.round_time == pytest.approx(same.round_time, rel=1e-6)
        assert row.design.q == pytest.approx(same.design.q, rel=1e-6)
    assert best(narrow).k < best(wide).k
    # With 32 at work the link is always in use: a completion takes 1 s, whoever it is of.
    assert narrow[-1].round_time == pytest.approx(32, rel=1e-3)
    assert narrow[-1].design.q == pytest.approx(np.full(n, 1 / n), rel=0.01)
    assert wide[-1].design.q.max() > 1.5 / n


def test_asynchronous_plans_refuse_what_does_not_fit() -> None:
    profile = Profile([0.5, 0.5], [1.0, 2.0], [1.0, 1.0])
    with pytest.raises(InputError, match="at_once must be at most 2, got 3"):
        list(plan(profile, 1, ks=[3], schemes=["uniform"], asynchronous=True))
    with pytest.raises(InputError, match="scheme must have asynchronous shares, got 'optimal-max'"):
        list(plan(profile, 1, schemes=["optimal-max"], asynchronous=True))
    link = SharedLink(1.0, "optimal")
    with pytest.raises(InputError, match="link must be fair in asynchronous training"):
        list(plan(profile, 1, schemes=["uniform"], link=link, asynchronous=True))
