"""Ways to draw: unbiased by enumeration of the real code, and within the noise of sampling."""

import itertools
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpace import Draw, Everyone, InputError, Profile, WithReplacement, expected_round_time
from fedpace.checks import FloatArray
from fedpace.sampling.design import Among, BaseDesign, Design, as_design
from tests.sampling.fleets import Fleet, fleets, random_fleet
from tests.sampling.own_design import Halves

EIGHTHS = 8


class ChosenUniforms:
    """Stands in for a generator, and returns the numbers it was made with."""

    def __init__(self, *uniforms: float) -> None:
        self.uniforms = np.array(uniforms)

    def random(self, size: int) -> FloatArray:
        assert size == self.uniforms.size
        return self.uniforms


def drawn_with(design: WithReplacement, *uniforms: float) -> Draw:
    return design.draw(cast(np.random.Generator, ChosenUniforms(*uniforms)))


def filled(draw: Draw, n: int) -> FloatArray:
    """Weights of all clients, 0 where not drawn."""
    weights = np.zeros(n)
    weights[draw.clients] = draw.weights
    return weights


@st.composite
def designs(draw: st.DrawFn) -> WithReplacement:
    """Draw designs whose probabilities are whole eighths, for up to three draws."""
    n = draw(st.integers(1, 4))
    cuts = draw(st.lists(st.integers(1, EIGHTHS - 1), min_size=n - 1, max_size=n - 1, unique=True))
    q = np.diff([0, *sorted(cuts), EIGHTHS]) / EIGHTHS
    weights = np.array(draw(st.lists(st.integers(1, 9), min_size=n, max_size=n)), float)
    return WithReplacement(q, draw(st.integers(1, 3)), weights / weights.sum())


@settings(max_examples=40)
@given(designs())
def test_unbiased_over_all_equally_likely_uniforms(design: WithReplacement) -> None:
    # q in whole eighths: the 8^K combinations of mid-points of eighths are all draws there are.
    middles = (np.arange(EIGHTHS) + 0.5) / EIGHTHS
    draws = [drawn_with(design, *each) for each in itertools.product(middles, repeat=design.k)]
    mean = np.mean([filled(each, design.q.size) for each in draws], axis=0)
    assert mean == pytest.approx(design.weights, rel=1e-12)


@settings(max_examples=40)
@given(designs(), st.lists(st.integers(1, 9), min_size=4, max_size=4))
def test_the_round_time_is_that_of_the_draws(design: WithReplacement, seconds: list[int]) -> None:
    times = np.array(seconds[: design.q.size], float)
    middles = (np.arange(EIGHTHS) + 0.5) / EIGHTHS
    draws = [drawn_with(design, *each) for each in itertools.product(middles, repeat=design.k)]
    slowest = [times[each.clients].max() for each in draws]
    assert design.expected_round_time(times) == pytest.approx(np.mean(slowest), rel=1e-12)


@given(fleets(), st.integers(1, 4))
def test_unbiased_over_the_multinomial_of_any_fleet(fleet: Fleet, k: int) -> None:
    fleet = Fleet(*(column[:3] for column in fleet))
    p = fleet.weights / fleet.weights.sum()
    q = fleet.importance / fleet.importance.sum()
    design = WithReplacement(q, k, p)
    middles = np.cumsum(q) - q / 2
    mean = np.zeros(q.size)
    for clients in itertools.product(range(q.size), repeat=k):
        draw = drawn_with(design, *middles[list(clients)])
        assert draw.clients.tolist() == sorted(set(clients))
        mean += np.prod(q[list(clients)]) * filled(draw, q.size)
    assert mean == pytest.approx(p, rel=1e-12)


def test_a_client_drawn_several_times_stands_once_with_all_its_weight() -> None:
    design = WithReplacement([0.5, 0.5], 4, [0.75, 0.25])
    draw = drawn_with(design, 0.9, 0.1, 0.6, 0.7)
    assert draw.clients.tolist() == [0, 1]
    assert draw.weights == pytest.approx([0.75 / 2, 3 * 0.25 / 2])


def test_the_ends_of_the_unit_interval_are_clients() -> None:
    design = WithReplacement([0.25, 0.5, 0.25], 1, [0.25, 0.5, 0.25])
    edges = {0.0: 0, 0.25: 1, float(np.nextafter(0.25, 0)): 0, float(np.nextafter(1, 0)): 2}
    for uniform, client in edges.items():
        assert drawn_with(design, uniform).clients.tolist() == [client]


@pytest.mark.parametrize("n", [3, 7, 10, 49, 1000])
def test_no_rounding_of_the_sum_draws_a_client_that_does_not_exist(n: int) -> None:
    design = WithReplacement(np.full(n, 1 / n), 1, np.full(n, 1 / n))
    assert drawn_with(design, float(np.nextafter(1, 0))).clients.tolist() == [n - 1]


def test_mean_weights_and_round_times_are_within_five_standard_errors() -> None:
    fleet = random_fleet(12, 3)
    q = fleet.importance / fleet.importance.sum()
    design = WithReplacement(q, 5, fleet.weights)
    rng = np.random.default_rng(8)
    draws = [design.draw(rng) for _ in range(4000)]
    weights = np.array([filled(each, q.size) for each in draws])
    error = weights.std(axis=0, ddof=1) / np.sqrt(len(draws))
    assert np.all(np.abs(weights.mean(axis=0) - fleet.weights) < 5 * error)
    slowest = np.array([fleet.times[each.clients].max() for each in draws])
    error = slowest.std(ddof=1) / np.sqrt(len(draws))
    assert abs(slowest.mean() - expected_round_time(q, fleet.times, 5)) < 5 * error


@given(fleets(), st.integers(1, 40), st.integers(0, 2**32))
def test_clients_are_distinct_ascending_and_the_same_for_the_same_seed(
    fleet: Fleet, k: int, seed: int
) -> None:
    design = WithReplacement(fleet.importance / fleet.importance.sum(), k, fleet.weights)
    draw, again = (design.draw(np.random.default_rng(seed)) for _ in range(2))
    assert np.all(np.diff(draw.clients) > 0)
    assert 1 <= draw.clients.size <= min(k, fleet.times.size)
    assert np.all(draw.weights > 0)
    assert draw.clients.tolist() == again.clients.tolist()
    assert draw.weights.tolist() == again.weights.tolist()
    # Σ weights_i K q_i / p_i counts the draws.
    counts = draw.weights * k * design.q[draw.clients] / fleet.weights[draw.clients]
    assert counts.sum() == pytest.approx(k, rel=1e-12)


def test_successive_draws_of_one_generator_differ() -> None:
    design = WithReplacement(np.full(1000, 1e-3), 10, np.full(1000, 1e-3))
    rng = np.random.default_rng(0)
    assert design.draw(rng).clients.tolist() != design.draw(rng).clients.tolist()


def test_a_million_clients_give_ten_and_touch_no_more() -> None:
    n = 10**6
    design = WithReplacement(np.full(n, 1 / n), 10, np.full(n, 1 / n))
    rng = np.random.default_rng(0)
    design.draw(rng)
    # What the first draw prepared serves all others.
    prepared = design._cdf
    draw = design.draw(rng)
    assert design._cdf is prepared
    assert draw.clients.size == draw.weights.size <= 10
    assert draw.weights == pytest.approx(np.full(draw.clients.size, 0.1), rel=1e-9)


@given(fleets(), st.integers(1, 100))
def test_the_largest_weight_is_that_of_the_rarest_client(fleet: Fleet, k: int) -> None:
    q = fleet.importance / fleet.importance.sum()
    expected = max(p / (k * x) for p, x in zip(fleet.weights, q, strict=True))
    assert WithReplacement(q, k, fleet.weights).largest_weight == pytest.approx(expected)


def test_what_there_is_to_say_of_each_client() -> None:
    columns = WithReplacement([0.5, 0.5], 4, [0.75, 0.25]).columns()
    assert columns["q"].tolist() == [0.5, 0.5]
    assert columns["aggregation_weight"].tolist() == [0.375, 0.125]


def test_probabilities_cannot_be_changed_behind_the_back_of_a_design() -> None:
    q = np.array([0.5, 0.5])
    design = WithReplacement(q, 2, [0.5, 0.5])
    q[0] = 0.9
    assert design.q.tolist() == [0.5, 0.5]
    with pytest.raises(ValueError, match="read-only"):
        design.q[0] = 0.9


@pytest.mark.parametrize(
    "design", [Everyone([0.75, 0.25]), WithReplacement([0.5, 0.5], 8, [0.75, 0.25])]
)
def test_changing_a_draw_does_not_change_the_design(design: Everyone | WithReplacement) -> None:
    draw = design.draw(np.random.default_rng(0))
    if draw.weights.flags.writeable:
        draw.weights[:] = 99.0
    assert design.weights.tolist() == [0.75, 0.25]
    assert design.draw(np.random.default_rng(0)).weights.max() < 2


def test_weights_of_a_design_cannot_be_changed() -> None:
    for design in (Everyone([0.75, 0.25]), WithReplacement([0.5, 0.5], 8, [0.75, 0.25])):
        with pytest.raises(ValueError, match="read-only"):
            design.weights[0] = 0.9


def test_everyone_takes_part_with_their_own_weight() -> None:
    everyone = Everyone([0.5, 0.3, 0.2])
    draw = everyone.draw(np.random.default_rng(0))
    assert draw.clients.tolist() == [0, 1, 2]
    assert draw.weights.tolist() == [0.5, 0.3, 0.2]
    assert everyone.expected_round_time([1.0, 7.0, 2.0]) == 7.0
    assert everyone.largest_weight == 0.5
    profile = Profile([0.5, 0.3, 0.2], [1.0, 7.0, 2.0], [1.0, 1.0, 1.0])
    assert everyone.variance_term(profile) == 0.0


def test_the_variance_term_is_that_of_its_probabilities() -> None:
    profile = Profile([0.5, 0.5], [1.0, 2.0], [3.0, 1.0])
    assert WithReplacement([0.5, 0.5], 4, [0.5, 0.5]).variance_term(profile) == 5.0


@pytest.mark.parametrize(
    ("q", "k", "weights", "message"),
    [
        ([1.0, 0.0], 2, [0.5, 0.5], r"q must be positive, got 0 for client 1; .* biased"),
        ([0.5, 0.6], 2, [0.5, 0.5], r"q must sum to 1, got a sum of 1\.1; divide by the sum"),
        ([1.0], 2, [0.5, 0.5], r"q must have one entry per client, got 1 for 2 clients; "),
        ([0.5, 0.5], 0, [0.5, 0.5], r"k must be at least 1, got 0; give 1 or more"),
        ([0.5, 0.5], 2, [0.5, -0.5], r"weights must be positive, got -0\.5 for client 1; "),
        ([0.5, 0.5], 2, [30.0, 10.0], r"weights must sum to 1, got a sum of 40; "),
    ],
)
def test_what_would_bias_the_model_is_refused(
    q: list[float], k: int, weights: list[float], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        WithReplacement(q, k, weights)


def test_everyone_refuses_weights_that_would_scale_the_model() -> None:
    with pytest.raises(InputError, match=r"weights must sum to 1, got a sum of 4; "):
        Everyone([3.0, 1.0])


PRESENT = np.array([True, False, True, True])
FOUR = np.array([0.1, 0.2, 0.3, 0.4])


@pytest.mark.parametrize(
    "design", [Everyone(FOUR), Everyone(FOUR).among(PRESENT), WithReplacement(FOUR, 2, FOUR)]
)
@pytest.mark.parametrize("n", [1, 5])
def test_times_of_other_clients_are_refused(design: Design, n: int) -> None:
    message = "(times|q) must have one entry per client, got . for . clients; give arrays"
    with pytest.raises(InputError, match=message):
        design.expected_round_time(np.ones(n))


@pytest.mark.parametrize("design", [Everyone(FOUR), WithReplacement([0.4, 0.3, 0.2, 0.1], 3, FOUR)])
def test_among_those_present_is_the_design_of_a_fleet_without_the_others(design: Design) -> None:
    inner = design.among(PRESENT)
    here = np.flatnonzero(PRESENT)
    p = FOUR[here] / FOUR[here].sum()
    alone: Design = Everyone(p)
    if isinstance(design, WithReplacement):
        alone = WithReplacement(design.q[here] / design.q[here].sum(), 3, p)
    times, norms = np.array([1.0, 9.0, 2.0, 3.0]), np.array([1.0, 2.0, 3.0, 4.0])
    one, other = inner.draw(np.random.default_rng(7)), alone.draw(np.random.default_rng(7))
    np.testing.assert_array_equal(one.clients, here[other.clients])
    np.testing.assert_allclose(one.weights, other.weights)
    assert inner.expected_round_time(times) == pytest.approx(alone.expected_round_time(times[here]))
    whole, part = Profile(FOUR, times, norms), Profile(p, times[here], norms[here])
    assert inner.variance_term(whole) == pytest.approx(alone.variance_term(part))
    assert inner.largest_weight == pytest.approx(alone.largest_weight)


def test_among_twice_is_among_both() -> None:
    design = WithReplacement(FOUR, 3, FOUR)  # no weight rises, whoever is away
    twice = design.among(PRESENT).among(np.array([True, True, False, True]))
    once = design.among(np.array([True, False, False, True]))
    for seed in range(5):
        one = twice.draw(np.random.default_rng(seed))
        other = once.draw(np.random.default_rng(seed))
        np.testing.assert_array_equal(one.clients, other.clients)
        np.testing.assert_allclose(one.weights, other.weights)


def test_those_present_of_a_users_own_design_keep_their_numbers() -> None:
    own = Among(Halves(FOUR[1:] / 0.9, np.ones(3, bool)), np.array([1, 2, 3]), 4)
    fewer = own.among(np.array([True, False, True, True]))
    draws = [fewer.draw(np.random.default_rng(seed)) for seed in range(20)]
    assert {tuple(draw.clients.tolist()) for draw in draws} == {(2,), (3,)}
    assert fewer.n == 4
    assert fewer.expected_round_time([9.0, 9.0, 2.0, 4.0]) == 3.0


def test_whoever_came_later_than_the_design_is_not_drawn() -> None:
    later = Everyone(FOUR).among(np.array([*PRESENT, True]))
    np.testing.assert_array_equal(later.draw(np.random.default_rng(0)).clients, [0, 2, 3])


@pytest.mark.parametrize(
    "present",
    [
        np.array([1, 0, 1, 1]),
        np.array([True] * 3),
        np.ones((4, 1), bool),
        [1, 0, 1, 1],
        [[True], [True, False]],
        "yes",
        None,
        True,
    ],
)
@pytest.mark.parametrize("design", [Everyone(FOUR), Everyone(FOUR).among(PRESENT)])
def test_refuses_what_does_not_say_who_is_present(design: Design, present: Any) -> None:
    with pytest.raises(InputError) as refused:
        design.among(present)
    message = str(refused.value)
    assert message.startswith("present must be one truth value per client, got ")
    assert message.endswith(" for 4 clients; give an array of True and False")
    assert "\n" not in message


@pytest.mark.parametrize("design", [Everyone(FOUR), WithReplacement(FOUR, 3, FOUR)])
def test_who_is_present_may_be_a_list(design: Everyone | WithReplacement) -> None:
    one: Design = design.among(PRESENT.tolist())
    other: Design = design.among(PRESENT)
    for twice in (False, True):
        if twice:
            one, other = (each.among(cast(Any, PRESENT[::-1].tolist())) for each in (one, other))
        one_draw, other_draw = (each.draw(np.random.default_rng(0)) for each in (one, other))
        assert one_draw.clients.tolist() == other_draw.clients.tolist()
        assert one_draw.weights.tolist() == other_draw.weights.tolist()


def test_refuses_to_draw_among_nobody() -> None:
    with pytest.raises(InputError, match="present must have at least one client"):
        Everyone(FOUR).among(np.zeros(4, bool))


@settings(max_examples=60)
@given(fleets(), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_nobody_weighs_more_because_others_are_away(fleet: Fleet, k: int, seed: int) -> None:
    n = fleet.weights.size
    rng = np.random.default_rng(seed)
    present = rng.random(n) < 0.5
    present[rng.integers(n)] = True
    q = rng.random(n) + 0.001
    design = WithReplacement(q / q.sum(), k, fleet.weights)
    among = design.among(present)
    assert among.n == design.n == n
    # A single client that is left weighs 1/K however it is drawn.
    assert among.largest_weight <= max(design.largest_weight, 1 / k) * (1 + 1e-9)


def test_an_object_with_the_methods_is_accepted() -> None:
    halves = Halves(np.array([0.5, 0.3, 0.2]), np.ones(3, np.bool_))
    design = as_design(halves)
    assert isinstance(design, BaseDesign)
    assert (design.n, design.solution, design.columns()) == (3, None, {})
    assert design.draw(np.random.default_rng(0)).clients.size >= 1
    assert as_design(design) is design
    with_q = type("Known", (Halves,), {"q": np.full(3, 1 / 3)})(halves.weights, halves.present)
    assert as_design(with_q).columns()["q"].size == 3


def test_a_misspelt_method_of_a_design_is_named() -> None:
    wrong = type("Mine", (Halves,), {"colums": lambda _: {}})
    with pytest.raises(InputError, match=r"design must spell .* 'colums' of Mine; did you mean"):
        as_design(wrong(np.ones(1), np.ones(1, np.bool_)))


def test_what_a_design_must_define_is_named() -> None:
    with pytest.raises(InputError, match=r"scheme must have `draw` in .*, got object; define it"):
        as_design(object(), argument="scheme")
    bare, profile = BaseDesign(), Profile([1.0], [1.0], [1.0])
    for missing in (
        lambda: bare.draw(np.random.default_rng(0)),
        lambda: bare.expected_round_time([1.0]),
        lambda: bare.variance_term(profile),
        lambda: bare.among(np.ones(1, np.bool_)),
        lambda: bare.largest_weight,
        lambda: bare.n,
    ):
        with pytest.raises(NotImplementedError, match="BaseDesign does not define"):
            missing()


def test_full_participation_has_no_probabilities() -> None:
    with pytest.raises(AttributeError, match="Everyone has no probabilities q"):
        _ = Everyone([1.0]).q
