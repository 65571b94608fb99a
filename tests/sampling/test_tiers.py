"""Tiers and systematic draws: every figure against all draws, counted one by one."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpace import Design, InputError, Profile, Systematic, Tiered
from fedpace.checks import FloatArray
from fedpace.conformance import check_design
from fedpace.sampling.design import Among
from fedpace.sampling.tiers import inclusion_probabilities
from tests.sampling.fleets import Fleet, extreme_fleets, powers_of_ten
from tests.sampling.tiered_designs import all_cases, designs

PAIRS: dict[str, Any] = {
    "tiers": [0, 0, 1, 1],
    "chances": [0.8, 0.2],
    "inclusion": [1.0, 0.5, 1.0, 1.0],
    "weights": [0.1, 0.2, 0.3, 0.4],
}


class Fixed:
    """A generator that gives these numbers."""

    def __init__(self, *numbers: float) -> None:
        self.numbers = np.array(numbers)

    def random(self, size: int) -> FloatArray:
        return self.numbers[:size]


def times_of(design: Tiered, seed: int) -> FloatArray:
    return np.random.default_rng(seed).exponential(size=design.n) + 0.01


def inner(design: Design) -> Tiered:
    """The tiers of those present."""
    assert isinstance(design, Among)
    assert isinstance(design.design, Tiered)
    return design.design


@given(designs())
def test_matches_enumeration_of_all_draws(design: Tiered) -> None:
    counted: dict[tuple[int, ...], float] = {}
    for case in all_cases(design):
        drawn = tuple(np.flatnonzero(case.weights).tolist())
        counted[drawn] = counted.get(drawn, 0.0) + case.chance
    found: dict[tuple[int, ...], float] = {}
    for chance, draw in design.samples():
        drawn = tuple(draw.clients.tolist())
        found[drawn] = found.get(drawn, 0.0) + chance
        assert draw.tier == (-1 if design.chances.size == 1 else design.tiers[drawn[0]])
    assert found == pytest.approx(counted, rel=1e-9)


@given(designs())
def test_there_are_at_most_as_many_draws_as_clients_and_tiers(design: Tiered) -> None:
    assert len(list(design.samples())) <= design.n + design.chances.size


@given(designs(), st.integers(0, 99))
def test_is_unbiased_and_every_figure_is_that_of_the_draws(design: Tiered, seed: int) -> None:
    cases = all_cases(design)
    chances = np.array([case.chance for case in cases])
    weights = np.array([case.weights for case in cases])
    np.testing.assert_allclose(chances @ weights, design.weights, rtol=1e-9)
    assert design.largest_weight == pytest.approx(weights.max(), rel=1e-9)
    assert design.largest_round_weight == pytest.approx(weights.sum(axis=1).max(), rel=1e-9)
    of_tiers = np.bincount([case.tier for case in cases], chances * weights.sum(axis=1))
    assert design.round_weights == pytest.approx(of_tiers / design.chances, rel=1e-9)
    times = times_of(design, seed)
    slowest = np.where(weights > 0, times, 0).max(axis=1)
    assert design.expected_round_time(times) == pytest.approx(chances @ slowest, rel=1e-9)
    updates = np.random.default_rng(seed).normal(size=(design.n, 3))
    moment = chances @ ((weights @ updates) ** 2).sum(axis=1)
    assert design.second_moment(updates) == pytest.approx(moment, rel=1e-9)
    drawn = chances @ (weights > 0)
    assert design.q == pytest.approx(drawn / drawn.sum(), rel=1e-9)


@given(designs(), st.integers(0, 99))
def test_the_variance_term_is_that_of_orthogonal_updates(design: Tiered, seed: int) -> None:
    norms = np.random.default_rng(seed).lognormal(size=design.n)
    profile = Profile(design.weights, np.ones(design.n), norms)
    mean = float(np.sum((design.weights * norms) ** 2))
    expected = design.k * (design.second_moment(np.diag(norms)) - mean) + mean
    assert design.variance_term(profile) == pytest.approx(expected, rel=1e-9)


@given(designs(), st.floats(0, 1, exclude_max=True), st.floats(0, 1, exclude_max=True))
def test_two_numbers_decide_on_a_draw(design: Tiered, at: float, u: float) -> None:
    generator: Any = Fixed(at, u)
    draw = design.draw(generator)
    tier = int(np.searchsorted(np.cumsum(design.chances), at, side="right"))
    assert set(design.tiers[draw.clients].tolist()) == {min(tier, design.chances.size - 1)}
    assert np.all(np.diff(draw.clients) > 0)
    assert draw.clients.size >= 1


@given(designs())
def test_the_last_numbers_below_one_draw_somebody(design: Tiered) -> None:
    least: Any = Fixed(1 - 2.0**-53, 1 - 2.0**-53)
    draw = design.draw(least)
    assert np.all(np.diff(draw.clients) > 0)
    assert draw.clients.size >= 1


@given(designs(), st.data())
def test_a_turn_takes_its_tier_with_the_weights_as_they_are(
    design: Tiered, data: st.DataObject
) -> None:
    turn = data.draw(st.integers(0, design.chances.size - 1))
    parts = (design.tiers, design.chances, design.inclusion, design.weights)
    mine = Tiered(*parts, k=design.k, turn=turn)
    times = times_of(design, 0)
    assert mine.expected_round_time(times) == pytest.approx(design.tier_times(times)[turn])
    draw = mine.draw(np.random.default_rng(data.draw(st.integers(0, 99))))
    assert set(design.tiers[draw.clients].tolist()) == {turn}
    marginals = design.chances[turn] * design.inclusion[draw.clients]
    np.testing.assert_allclose(draw.weights, design.weights[draw.clients] / marginals)


def test_turns_in_proportion_to_the_chances_are_unbiased() -> None:
    total = np.zeros(4)
    for turn, share in enumerate(PAIRS["chances"]):
        design = Tiered(**PAIRS, turn=turn)
        rng = np.random.default_rng(0)
        for draw in (design.draw(rng) for _ in range(4000)):
            total[draw.clients] += share * draw.weights / 4000
    np.testing.assert_allclose(total, PAIRS["weights"], rtol=0.05)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_every_design_promise_is_kept(count: int) -> None:
    def tiered(profile: Profile, k: int) -> Tiered:
        tiers = np.arange(profile.n) * min(count, profile.n) // profile.n
        chances = np.arange(1, tiers.max() + 2)
        inclusion = inclusion_probabilities(profile.weights, tiers, k)
        return Tiered(tiers, chances / chances.sum(), inclusion, profile.weights, k=k)

    check_design(tiered)


def test_a_systematic_draw_keeps_every_promise() -> None:
    def systematic(profile: Profile, k: int) -> Systematic:
        zeros = np.zeros(profile.n, dtype=np.int64)
        return Systematic(inclusion_probabilities(profile.importance, zeros, k), profile.weights)

    check_design(systematic)


@given(designs(), st.data())
def test_among_those_present_draws_are_unbiased_for_what_they_hold(
    design: Tiered, data: st.DataObject
) -> None:
    present = _some(data, design.n)
    among = design.among(present)
    clients = np.flatnonzero(present)
    means = np.zeros(design.n)
    for chance, draw in inner(among).samples():
        means[clients[draw.clients]] += chance * draw.weights
    expected = np.where(present, design.weights, 0.0)
    np.testing.assert_allclose(means, expected / expected.sum(), rtol=1e-9)
    # Rounds that outweigh the heaviest of the whole fleet are left to chance no longer.
    heaviest = max(float(design.round_weights.max()), 1.0)
    assert inner(among).round_weights.max() <= heaviest * (1 + 1e-9)


@given(designs(), st.data())
def test_clients_and_tiers_keep_their_numbers_also_among_some_of_some(
    design: Tiered, data: st.DataObject
) -> None:
    first, second = _some(data, design.n), _some(data, design.n)
    second |= ~(first & second).any() & first
    twice = design.among(first).among(second)
    rng = np.random.default_rng(0)
    for draw in (twice.draw(rng) for _ in range(20)):
        assert (first & second)[draw.clients].all()
        tiers = set(design.tiers[draw.clients].tolist())
        assert tiers == {draw.tier if design.chances.size > 1 else 0}


def test_a_turn_stays_with_its_tier_and_ends_when_nobody_of_it_is_there() -> None:
    design = Tiered(**PAIRS, turn=1)
    some = design.among([True, True, False, True])
    assert inner(some).turn == 1
    assert {some.draw(np.random.default_rng(seed)).tier for seed in range(20)} == {1}
    nested = some.among(np.array([False, True, True, True]))
    assert {nested.draw(np.random.default_rng(seed)).tier for seed in range(20)} == {1}
    fast = design.among([True, True, False, False])
    assert inner(fast).turn is None
    assert {fast.draw(np.random.default_rng(seed)).tier for seed in range(20)} == {0}


def test_free_places_go_to_those_of_the_tier_who_are_there() -> None:
    design = Tiered([0] * 4 + [1], [0.8, 0.2], [0.5] * 4 + [1.0], [0.2] * 5)
    among = inner(design.among([True, False, True, True, True]))
    np.testing.assert_allclose(among.inclusion, [2 / 3, 2 / 3, 2 / 3, 1.0])
    np.testing.assert_allclose(among.chances, [0.75, 0.25])


def test_a_tier_is_drawn_more_often_where_its_rounds_would_outweigh_all() -> None:
    design = Tiered([0] * 4 + [1], [0.5, 0.5], [0.5] * 4 + [1.0], [0.2] * 5)
    assert design.round_weights == pytest.approx([1.6, 0.4])
    among = inner(design.among([True, False, True, True, True]))
    assert among.round_weights == pytest.approx([1.6, 0.25 / 0.53125])


def test_everyone_in_every_round_is_full_participation() -> None:
    design = Systematic([1.0, 1.0, 1.0], [0.5, 0.3, 0.2])
    ((chance, draw),) = design.samples()
    assert (chance, draw.clients.tolist(), draw.weights.tolist()) == (1, [0, 1, 2], [0.5, 0.3, 0.2])
    assert design.k == 3
    assert design.expected_round_time([1.0, 7.0, 2.0]) == 7.0
    assert design.tier_times([1.0, 7.0, 2.0]).tolist() == [7.0]


def test_a_client_of_hardly_any_inclusion_is_in_no_sample_and_not_in_all() -> None:
    design = Systematic([1e-15, 0.5, 1e-15, 0.5, 1.0], [0.2] * 5)
    assert [draw.clients.tolist() for _, draw in design.samples()] == [[1, 4], [3, 4]]
    assert design.expected_round_time([90, 1, 90, 3, 1]) == pytest.approx(2, rel=1e-12)


@pytest.mark.parametrize(("n", "k"), [(3_000, 7), (20_000, 10_000), (50_000, 49_999)])
def test_many_clients_are_counted_to_the_last_digit(n: int, k: int) -> None:
    rng = np.random.default_rng(0)
    zeros = np.zeros(n, dtype=np.int64)
    p = rng.lognormal(size=n)
    design = Systematic(inclusion_probabilities(p, zeros, k), p / p.sum())
    assert design.k == k
    outcomes = design.outcomes
    sizes = outcomes.sums(np.ones(n))
    np.testing.assert_allclose(sizes, k, rtol=1e-9)
    inclusion = np.zeros(n)
    lengths = np.append(0.0, np.cumsum(outcomes.high - outcomes.low))
    np.add.at(inclusion, outcomes.who, lengths[outcomes.end] - lengths[outcomes.start])
    np.testing.assert_allclose(inclusion, design.inclusion, rtol=1e-6, atol=1e-9)
    times = rng.exponential(size=n) + 1e-3
    drawn = [times[draw.clients].max() for draw in (design.draw(rng) for _ in range(300))]
    error = float(np.std(drawn)) / 300**0.5
    assert abs(design.expected_round_time(times) - np.mean(drawn)) <= 5 * error + 1e-9


@given(st.data(), st.integers(1, 12), st.integers(1, 12))
def test_places_are_filled_in_proportion_and_none_twice(
    data: st.DataObject, n: int, k: int
) -> None:
    count = data.draw(st.integers(1, n))
    tiers = np.array(data.draw(st.permutations([*range(count), *[0] * (n - count)])))
    shape = np.array(data.draw(st.lists(powers_of_ten(-9, 9), min_size=n, max_size=n)))
    filled = inclusion_probabilities(shape, tiers, k)
    assert np.all(filled <= 1)
    assert np.all(filled > 0)
    for g in range(count):
        mine, shapes = filled[tiers == g], shape[tiers == g]
        assert mine.sum() == pytest.approx(min(k, mine.size), rel=1e-9)
        free = mine < 1
        if free.any():
            scale = mine[free] / shapes[free]
            np.testing.assert_allclose(scale, scale[0], rtol=1e-9)
            assert np.all(shapes[~free] * scale[0] >= 1 - 1e-9)


@settings(max_examples=40)
@given(extreme_fleets(), st.integers(1, 5))
def test_extreme_fleets_keep_their_means(fleet: Fleet, k: int) -> None:
    n = fleet.times.size
    zeros = np.zeros(n, dtype=np.int64)
    design = Systematic(inclusion_probabilities(fleet.weights, zeros, k), fleet.weights)
    means = np.zeros(n)
    for chance, draw in design.samples():
        means[draw.clients] += chance * draw.weights
    np.testing.assert_allclose(means, fleet.weights, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tiers": [0, 0, 1]}, "tiers must have one entry per client, got 3 for 4 clients; "),
        ({"tiers": [0, 0, 1, 2]}, "tiers must be an integer from 0 to 1, got 2 for client 3; "),
        ({"tiers": [0, 0.5, 1, 1]}, "tiers must be an integer from 0 to 1, got 0.5 for client 1; "),
        ({"tiers": [0, -1, 1, 1]}, "tiers must be an integer from 0 to 1, got -1 for client 1; "),
        ({"tiers": [0] * 4}, "tiers must all have a client, got none in tier 1; leave it out"),
        ({"chances": [0.8, 0.3]}, "chances must sum to 1, got a sum of 1.1; divide by the sum"),
        ({"chances": [1.0, 0.0]}, "chances must be positive, got 0 for tier 1; a tier never "),
        ({"chances": []}, "chances must be a vector"),
        ({"inclusion": [1, 0, 1, 1]}, "inclusion must be positive, got 0 for client 1; "),
        ({"inclusion": [1, 1.5, 1, 1]}, "inclusion must be at most 1, got 1.5 for client 1; "),
        ({"inclusion": [1, 1, 1]}, "inclusion must have one entry per client, got 3 for 4 "),
        ({"inclusion": [1, 1, 0.3, 0.3]}, "inclusion must sum to at least 1 in each tier, got 0.6"),
        ({"weights": [0.1, 0.2, 0.3, 0.5]}, "weights must sum to 1, got a sum of 1.1; "),
        ({"k": 0}, "k must be at least 1, got 0; give 1 or more"),
        ({"k": 1}, "k must be at least what the fullest tier takes, got 1; a tier draws up to 2"),
        ({"turn": 2}, "turn must be a tier from 0 to 1, got 2; give one, or None"),
        ({"turn": -1}, "turn must be a tier from 0 to 1, got -1; "),
        ({"turn": True}, "turn must be a tier from 0 to 1, got True; "),
        ({"turn": "x"}, "turn must be a tier from 0 to 1, got 'x'; "),
    ],
)
def test_what_would_bias_the_model_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as refused:
        Tiered(**{**PAIRS, **changes})
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize("n", [1, 5])
def test_times_of_other_clients_are_refused(n: int) -> None:
    for turn in (None, 1):
        with pytest.raises(InputError, match=r"times must have one entry per client, got . for 4"):
            Tiered(**PAIRS, turn=turn).expected_round_time(np.ones(n))


def test_what_there_is_to_say_of_each_client() -> None:
    columns = Tiered(**PAIRS).columns()
    assert {name: values.tolist() for name, values in columns.items()} == {
        "q": pytest.approx([0.5, 0.25, 0.125, 0.125]),
        "aggregation_weight": pytest.approx([0.125, 0.5, 1.5, 2.0]),
        "tier": [0, 0, 1, 1],
        "inclusion": [1.0, 0.5, 1.0, 1.0],
    }


def test_nothing_of_a_design_can_be_changed() -> None:
    design = Tiered(**PAIRS)
    for array in (design.tiers, design.chances, design.inclusion, design.weights):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def _some(data: st.DataObject, n: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    present = np.array(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    present[data.draw(st.integers(0, n - 1))] = True
    return present


def test_a_turn_can_be_given_without_making_the_design_anew() -> None:
    design = Tiered([0, 0, 1], chances=[0.8, 0.2], inclusion=[1, 1, 1], weights=[0.5, 0.3, 0.2])
    with_turn = design.with_turn(1)
    rng = np.random.default_rng(0)
    assert {with_turn.draw(rng).tier for _ in range(20)} == {1}
    assert design.turn is None
    assert with_turn.expected_round_time([1.0, 2.0, 7.0]) == 7.0
