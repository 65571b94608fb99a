"""The sampler pace: warm-up, tiers in turn, and a lean that is measured."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedpace.errors import InputError
from fedpace.profile import Profile
from fedpace.samplers.build import WarmUp, sampler_for
from fedpace.samplers.curvature import PRIOR_RATIO, RATIO_LIMITS
from fedpace.samplers.pace import Pace, PaceState, seconds_per_progress, times_with
from fedpace.sampling.design import Draw
from fedpace.sampling.tiers import Systematic, Tiered
from fedpace.seeds import Seeds
from fedpace.times.round_times import Steady
from fedpace.training.backend import Reply
from fedpace.training.history import Row
from fedpace.training.sampler import Plan, SamplerContext
from fedpace.training.stopping import Stop, constant, inverse
from fedpace.training.train import train
from fedpace.training.training import Outcome
from fedpace.training.updates import RoundUpdates
from tests.training.fakes import LARGER, Fleet, row, small_simulator


def trained(pace: Pace, backend: Any = None, *, rounds: int = 30, **more: Any) -> Outcome:
    how: dict[str, Any] = {"schedule": inverse(0.3), "stop": Stop(rounds=rounds), "seeds": Seeds(0)}
    return train(backend or small_simulator(), pace, **how | more)


def seen(
    clients: list[int], updates: Any, *, n: int = 6, rate: float = 0.1, model: Any = None
) -> RoundUpdates:
    rows = np.array(updates, dtype=np.float64)
    numbers, ones = np.array(clients), np.ones(len(clients))
    parameters = np.zeros(rows.shape[1]) if model is None else np.array(model, dtype=np.float64)
    draw, reply = Draw(numbers, ones / 2), Reply(numbers, rows, ones, ones)
    with np.errstate(all="ignore"):
        norms = np.linalg.norm(rows / rate, axis=1)
    return RoundUpdates(parameters, rate, draw, reply, np.full(n, 1 / n), norms)


def solved(pace: Pace, state: PaceState, **known: Any) -> Plan:
    """Return the plan of a state after its warm-up."""
    for _ in range(pace.warm_up):
        state = pace.observe(state, row([0, 1], weights=[0.5, 0.5]))
    times = known.pop("times", np.arange(1.0, 7.0))
    return pace.design(state, SamplerContext(np.full(6, 1 / 6), times, **known))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"k": 0}, "k must be .*, got 0"),
        ({"k": 2.5}, "k must be .*, got 2.5"),
        ({"k": 3, "k_max": 0}, "k_max must be .*, got 0"),
        ({"k": 3, "tiers": 0}, "tiers must be .*, got 0"),
        ({"k": 3, "warm_up": 0}, "warm_up must be .*, got 0; give 3"),
        ({"k": 3, "refresh": 0}, "refresh must be .*, got 0"),
        ({"k": 3, "c_over_s0": 0.0}, "c_over_s0 must be positive and finite, got 0.0; leave it"),
        ({"k": 3, "c_over_s0": -1}, "c_over_s0 must be positive and finite, got -1"),
        ({"k": 3, "c_over_s0": math.nan}, "c_over_s0 must be positive and finite, got nan"),
        ({"k": 3, "c_over_s0": math.inf}, "c_over_s0 must be positive and finite, got inf"),
        ({"k": 3, "c_over_s0": "1"}, "c_over_s0 must be positive and finite, got '1'"),
    ],
)
def test_a_bad_argument_is_one_line(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        Pace(**arguments)
    assert "\n" not in str(error.value)


def test_begins_with_a_warm_up_that_counts_as_training() -> None:
    outcome = trained(Pace(k=2))
    phases = [each.phase for each in outcome.history.rows]
    # The row that ends the warm-up still belongs to it.
    assert phases == ["warm-up"] * 4 + ["train"] * 27
    assert [each.round for each in outcome.history.rows] == list(range(31))
    assert {each.tier for each in outcome.history.rows[:4]} == {-1}
    assert {each.tier for each in outcome.history.rows[4:]} == {0, 1, 2}
    assert outcome.history.rows[-1].loss < outcome.history.rows[0].loss


def test_every_round_says_why() -> None:
    rows = trained(Pace(k=2)).history.rows
    assert rows[1].why == "warm-up: weighted sampling, to learn from"
    assert all(each.why.startswith("3 tiers, c = ") for each in rows[4:])
    assert "measured on" in rows[-1].why


def test_clients_of_a_round_are_of_like_speed() -> None:
    outcome = trained(Pace(k=2), small_simulator(times=Steady(LARGER)))
    order = np.argsort(np.argsort(LARGER))
    for each in outcome.history.rows[4:]:
        np.testing.assert_array_equal(order[each.clients] // 2, each.tier)


def test_tiers_get_their_share_of_the_rounds() -> None:
    pace = Pace(k=2, refresh=10**6)
    outcome = trained(pace, small_simulator(times=Steady(LARGER)), rounds=203)
    design = outcome.design
    assert isinstance(design, Tiered)
    turns = np.bincount([each.tier for each in outcome.history.rows[4:]], minlength=3)
    # Three rounds of warm-up are made up for.
    assert np.abs(turns - 200 * design.chances).max() <= 4


def test_each_client_gets_its_share_of_the_weights() -> None:
    backend = small_simulator(times=Steady(LARGER))
    outcome = trained(Pace(k=2), backend, rounds=300)
    received = np.zeros(6)
    for each in outcome.history.rows:
        received[each.clients] += each.weights
    largest = max(each.weights.max() for each in outcome.history.rows[4:])
    assert np.abs(received - 300 * backend.weights).max() <= 2 * largest


@pytest.mark.parametrize("k", [6, 7, 100])
def test_with_room_for_everyone_draws_are_systematic(k: int) -> None:
    outcome = trained(Pace(k=k))
    assert isinstance(outcome.design, Systematic)
    assert outcome.history.rows[-1].clients.tolist() == [0, 1, 2, 3, 4, 5]
    assert "too few clients for tiers" in outcome.history.rows[-1].why


def test_a_single_client_is_drawn_always() -> None:
    fleet = Fleet(samples=np.array([5.0]), times=np.array([2.0]), known=1)
    for k in (1, 3):
        outcome = trained(Pace(k=k), fleet, rounds=8)
        assert all(each.clients.tolist() == [0] for each in outcome.history.rows[1:])
        assert outcome.history.rows[-1].weights.tolist() == [1.0]


def test_one_client_a_round_has_a_tier_each() -> None:
    outcome = trained(Pace(k=1))
    assert isinstance(outcome.design, Tiered)
    assert outcome.design.chances.size == 6
    assert all(each.clients.size == 1 for each in outcome.history.rows[1:])


def test_hidden_times_are_learned() -> None:
    outcome = trained(Pace(k=2), small_simulator(times=Steady(LARGER), times_known=False))
    np.testing.assert_allclose(outcome.profile.times, LARGER)
    assert isinstance(outcome.design, Tiered)
    np.testing.assert_array_equal(outcome.design.tiers, np.argsort(np.argsort(LARGER)) // 2)


def test_clients_that_join_later_are_drawn() -> None:
    fleet = Fleet(there=lambda task: [True] * (3 if task < 10 else 4), known=3)
    outcome = trained(Pace(k=1, refresh=4), fleet, rounds=60)
    drawn = np.concatenate([each.clients for each in outcome.history.rows])
    counts = np.bincount(drawn, minlength=4)
    assert counts.min() > 0
    assert outcome.design.n == 4


def test_goes_on_where_nobody_answers() -> None:
    outcome = trained(Pace(k=2), Fleet(answers=lambda task, _: task % 3 == 0), rounds=40)
    assert outcome.state.round == 40
    outcome = trained(Pace(k=2), Fleet(answers=lambda _task, _client: False), rounds=20)
    assert not outcome.state.parameters.any()


def test_a_tier_that_never_answers_does_not_stop_the_others() -> None:
    fleet = Fleet(answers=lambda _, client: client not in (1, 3))  # the slow tier
    outcome = trained(Pace(k=2), fleet, rounds=120)
    answered = [each.clients.size > 0 for each in outcome.history.rows[1:]]
    assert np.mean(answered[40:]) > 0.4
    assert {0, 2} <= set(np.concatenate([each.clients for each in outcome.history.rows]).tolist())


def test_clients_come_and_go() -> None:
    rng = np.random.default_rng(0)

    def there(_: int) -> list[bool]:
        present = rng.random(4) < 0.5
        present[rng.integers(4)] = True
        return list(map(bool, present))

    for k in (1, 2, 4):
        assert trained(Pace(k=k), Fleet(there=there), rounds=30).state.round == 30


# What is measured.


def test_c_is_that_of_the_tiers_where_it_is_given() -> None:
    plan = solved(Pace(k=2, c_over_s0=0.7), Pace(k=2).init(6))
    assert plan.notes == {"lean": 0.7}
    assert plan.why == "3 tiers, c = 0.7 S₀: as given; rounds of weight 1.5 at most"


def test_where_nothing_is_measured_c_is_the_first() -> None:
    plan = solved(Pace(k=2), Pace(k=2).init(6))
    assert plan.notes == {"lean": PRIOR_RATIO}
    assert "nothing measured yet" in plan.why


@pytest.mark.parametrize(
    ("curvature", "lean"),
    [(1e9, RATIO_LIMITS[0]), (1e-9, RATIO_LIMITS[1]), (-1.0, RATIO_LIMITS[1])],
)
def test_c_stays_within_its_limits(curvature: float, lean: float) -> None:
    pace = Pace(k=2)
    state = pace.init(6)
    for index in range(200):  # one client's way to and fro, so that there are many pairs
        place = np.array([float(index % 2)])
        update = 0.1 * (1.0 - curvature * place)
        state = pace.see(state, seen([0, 1], [update, update], model=place))
    assert solved(pace, state).notes == {"lean": lean}


def test_a_round_that_did_harm_is_answered_at_once() -> None:
    pace = Pace(k=4)
    state = pace.see(pace.init(6), seen([0, 1], np.ones((2, 3))))

    def after(loss: float, weight: float) -> Row:
        weights = np.full(2, weight / 2)
        return row([0, 1])._replace(weights=weights, loss=loss, accuracy=0.5)

    for loss in (2.0, 1.9, 1.8, 1.7, 1.6):
        state = pace.observe(state, after(loss, 4.0))
    rounds = state["rounds"]
    assert state["cap"]["cap"] == 4.0  # never above K
    state = pace.observe(state, after(9.0, 4.0))
    assert state["cap"]["cap"] == 2.0
    assert (state["solved"], state["basis"]["step"]) == (rounds + 1, 2.0)


def test_rounds_weigh_at_most_what_they_may() -> None:
    pace = Pace(k=2, c_over_s0=100.0, round_weights=(1.2, 1.5))
    outcome = trained(pace, schedule=constant(0.1), rounds=40)
    assert isinstance(outcome.design, Tiered)
    assert outcome.design.round_weights.max() == pytest.approx(1.5)


def test_without_a_learning_rate_all_is_learned_as_with_a_constant_one() -> None:
    backend = small_simulator(times=Steady(LARGER))

    class Told(type(backend)):  # type: ignore[misc]
        """Trains at a rate that the server does not know."""

        def submit(self, task: Any) -> None:
            super().submit(task._replace(learning_rate=0.1))

    fields = {
        name: getattr(backend, name) for name in backend.__dataclass_fields__ if name[0] != "_"
    }
    unknown = trained(Pace(k=2), Told(**fields), schedule=lambda _: math.nan)
    known = trained(Pace(k=2), backend, schedule=constant(0.1))
    assert unknown.history.rows[-1].why == known.history.rows[-1].why
    assert "measured on" in known.history.rows[-1].why
    for one, other in zip(unknown.history.rows, known.history.rows, strict=True):
        np.testing.assert_array_equal(one.clients, other.clients)
        np.testing.assert_allclose(one.weights, other.weights)


@pytest.mark.parametrize("lie", [math.nan, math.inf, 1e300, 1e150, 1e6])
def test_a_client_that_lies_does_not_spoil_what_is_learned(lie: float) -> None:
    def learned(*, lies: bool) -> PaceState:
        rng, pace = np.random.default_rng(0), Pace(k=6)
        state = pace.init(8)
        for index in range(20):
            updates = 0.1 * rng.normal(size=(6, 4))
            clients = [0, 1, 2, 3, 4, 5]
            if lies:
                clients, updates = [*clients, 7], np.vstack([updates, np.full(4, lie)])
            model = np.full(4, float(index % 2))
            with np.errstate(over="ignore", invalid="ignore"):
                state = pace.see(state, seen(clients, updates, n=8, model=model))
        return state

    honest, lied = learned(lies=False), learned(lies=True)
    np.testing.assert_array_equal(lied["norms"], honest["norms"])
    for name in ("bend", "moved", "pairs", "length"):
        assert lied["curvature"][name] == honest["curvature"][name]


def test_updates_of_zero_teach_nothing_and_harm_nothing() -> None:
    pace = Pace(k=2)
    state = pace.init(6)
    for _ in range(20):
        state = pace.see(state, seen([0, 1, 2, 3, 4, 5], np.zeros((6, 3))))
    plan = solved(pace, state)
    assert plan.notes == {"lean": PRIOR_RATIO}
    assert plan.profile is not None
    np.testing.assert_array_equal(plan.profile.grad_norms, np.ones(6))


def test_norms_are_of_updates_over_their_rate() -> None:
    pace = Pace(k=2)
    state = pace.see(pace.init(3), seen([1], [[3.0, 4.0]], n=3, rate=0.5))
    np.testing.assert_array_equal(state["norms"], [math.nan, 10.0, math.nan])
    state = pace.see(state, seen([1, 4], [[3.0, 4.0], [0.0, 1.0]], n=5, rate=0.25))
    np.testing.assert_array_equal(state["norms"], [math.nan, 15.0, math.nan, math.nan, 4.0])


# By name.


def test_a_name_stands_for_it() -> None:
    pace = sampler_for("pace", 3, learn=WarmUp(5), refresh=4, max_weight=1.0, c_over_s0=0.5)
    assert isinstance(pace, Pace)
    assert (pace.warm_up, pace.refresh, pace.max_weight, pace.c_over_s0) == (5, 4, 1.0, 0.5)
    usual = sampler_for("pace", 3)
    assert isinstance(usual, Pace)
    assert (usual.warm_up, usual.refresh, usual.max_weight) == (3, 10, None)


def test_by_chance_tiers_are_not_in_turn() -> None:
    backend = small_simulator(times=Steady(LARGER))
    outcome = trained(Pace(k=2, in_turn=False), backend, rounds=40)
    assert isinstance(outcome.design, Tiered)
    assert outcome.design.turn is None
    assert isinstance(trained(replace(Pace(k=2)), backend).design, Tiered)


def test_the_chosen_k_has_the_least_predicted_time_of_all_choices() -> None:
    times = np.array([1.0, 1.0, 1.2, 5.0, 5.5, 6.0])
    state = Pace(k=2).init(6)
    single = {k: solved(Pace(k=k, c_over_s0=1.0), Pace(k=k).init(6), times=times) for k in (1, 2)}
    auto = solved(Pace(k=2, k_max=2, c_over_s0=1.0), state, times=times)
    assert isinstance(auto.design, Tiered)
    assert auto.design.k in single
    assert auto.why.startswith(f"K = {auto.design.k} of at most 2, ")
    pace = Pace(k=2, k_max=2)
    assert auto.profile is not None
    assert pace._choices(6) == [1, 2]
    assert Pace(k=2, k_max=6)._choices(6) == [1, 2, 4]  # with 6 there is a single tier
    assert Pace(k=2, k_max=6)._choices(6, trusted=False) == [1, 2]


def test_seconds_per_progress_are_those_of_all_draws() -> None:
    importance, times = np.array([0.4, 0.3, 0.2, 0.1]), np.array([1.0, 2.0, 3.0, 6.0])
    profile = Profile(np.full(4, 0.25), times, 4 * importance)
    design, _ = Pace(k=2, k_max=2)._solve_tiers(2, 1.0, 0.5, 2.0, profile)
    seconds = moment = 0.0
    for chance, draw in design.samples():
        seconds += chance * times[draw.clients].max()
        lengths = draw.weights * profile.grad_norms[draw.clients]
        moment += chance * float(lengths @ lengths)  # orthogonal updates
    assert seconds_per_progress(design, profile, 0.7) == pytest.approx(seconds * (moment + 0.7))


def test_a_ratio_beyond_the_limits_of_shares_still_lowers_k() -> None:
    # With c = ∞ only time counts, and tiers of one client are the fastest rounds.
    n, pace = 32, Pace(k=8, k_max=8)
    state = pace.init(n)
    for _ in range(pace.warm_up):
        state = pace.observe(state, row([0, 1], weights=[0.5, 0.5]))
    times = 1 + np.arange(float(n)) ** 2
    context = SamplerContext(np.full(n, 1 / n), times)
    basis = {**state["basis"], "pairs": 1e6, "norms": np.ones(n), "c": np.inf}
    chosen = pace._solve(basis, context).design  # type: ignore[arg-type]
    assert isinstance(chosen, Tiered)
    assert chosen.k == 1
    chosen = pace._solve({**basis, "c": 1e-9}, context).design  # type: ignore[typeddict-item]
    assert isinstance(chosen, Tiered)
    assert chosen.k > 1


@pytest.mark.parametrize(("k", "heaviest"), [(1, 2.0), (2, 4.0), (4, 5.0)])
def test_rounds_of_a_chosen_k_weigh_twice_as_much_as_k_at_most(k: int, heaviest: float) -> None:
    times = np.append(np.full(8, 0.1), np.full(8, 50.0))
    profile = Profile(np.full(16, 1 / 16), times, np.ones(16))
    design, _ = Pace(k=4, k_max=8)._solve_tiers(k, 3.0, 1.0, 5.0, profile)
    held = np.bincount(design.tiers, design.weights)
    assert (held / design.chances).max() == pytest.approx(heaviest)


def test_without_a_limit_k_stays_as_it_is() -> None:
    assert Pace(k=3)._choices(100) == [3]


def test_a_narrow_link_lowers_the_chosen_k() -> None:
    n, computing = 64, np.full(64, 0.02)
    times = 1 + np.arange(n) / n

    def chosen(shared_by: int | None) -> int:
        pace = Pace(k=8, k_max=16, c_over_s0=1.0)
        state = pace.init(n)
        for _ in range(pace.warm_up):
            state = pace.observe(state, row([0, 1], weights=[0.5, 0.5]))
        known = {"computing": computing, "shared_by": shared_by}
        plan = pace.design(state, SamplerContext(np.full(n, 1 / n), times, **known))  # type: ignore[arg-type]
        assert isinstance(plan.design, Tiered)
        return plan.design.k

    assert chosen(8) < chosen(None)


def test_times_grow_with_the_clients_that_share_the_link() -> None:
    profile = Profile(np.full(2, 0.5), [1.0, 2.0], [1.0, 1.0])
    context = SamplerContext(profile.weights, computing=np.array([1.0, 0.5]), shared_by=4)
    assert times_with(8, profile, context).times == pytest.approx([1.0, 3.0])
    assert times_with(4, profile, context) is profile
    assert times_with(8, profile, context._replace(shared_by=None)) is profile


def test_training_with_a_chosen_k_never_draws_more_than_its_limit() -> None:
    outcome = trained(Pace(k=2, k_max=2, warm_up=2, refresh=3), rounds=20)
    assert max(each.clients.size for each in outcome.history.rows) <= 2
