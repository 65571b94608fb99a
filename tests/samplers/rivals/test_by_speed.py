"""TiFL, the group sampler, FedCS and FLANP, by hand."""

from typing import Any

import numpy as np
import pytest

from fedpace.errors import InputError
from fedpace.samplers.rivals.by_speed import FedCS, Flanp, Tifl
from fedpace.samplers.rivals.clustered import Groups
from fedpace.sampling.design import Draw
from fedpace.seeds import Seeds
from fedpace.times.round_times import Steady
from fedpace.training.backend import Probe, Reply
from fedpace.training.sampler import SamplerContext
from fedpace.training.stopping import Stop, constant
from fedpace.training.train import train
from fedpace.training.updates import RoundUpdates
from tests.training.fakes import LARGER, row, small_simulator

WEIGHTS = np.array([0.1, 0.2, 0.3, 0.4])
TIMES = np.array([4.0, 1.0, 2.0, 3.0])
KNOWN = SamplerContext(WEIGHTS, TIMES)
HOW: dict[str, Any] = {"schedule": constant(0.1), "stop": Stop(rounds=8), "seeds": Seeds(1)}


def drawn(sampler: Any, state: Any, context: SamplerContext = KNOWN, seed: int = 0) -> Draw:
    draw: Draw = sampler.design(state, context).draw(np.random.default_rng(seed))
    return draw


# TiFL


def test_a_round_is_of_one_tier_weighted_by_data() -> None:
    sampler = Tifl(2, tiers=2)
    draws = [drawn(sampler, sampler.init(4), seed=seed) for seed in range(40)]
    assert {(d.tier, *d.clients.tolist()) for d in draws} == {(0, 1, 2), (1, 0, 3)}
    slow = next(d for d in draws if d.tier == 1)
    np.testing.assert_allclose(slow.weights, [0.1 / 0.5, 0.4 / 0.5])


def test_a_tier_without_credits_is_not_drawn_until_all_are_used_up() -> None:
    sampler = Tifl(2, tiers=2, rounds=3, every=100)  # two credits each
    state = sampler.init(4)
    tiers = []
    for index in range(1, 9):
        tiers.append(drawn(sampler, state, seed=index).tier)
        state = sampler.observe(state, row([0, 1], round=index, tier=tiers[-1]))
    assert sorted(tiers[:4]) == sorted(tiers[4:]) == [0, 0, 1, 1]


def before(accuracy: float, sampler: Tifl) -> Any:
    return {**sampler.init(4), "rounds": 2, "latest": 0, "accuracies": np.full(2, accuracy)}


def test_where_accuracy_does_not_rise_the_tier_of_the_lowest_is_preferred() -> None:
    sampler = Tifl(1, tiers=2, every=2)
    state = before(0.5, sampler)
    probe = Probe(np.arange(4), np.zeros(4), np.array([0.3, 0.4, 0.6, 0.5]), np.zeros(4))
    reply = Reply(np.array([1]), np.zeros((1, 1)), np.ones(1), np.ones(1))
    seen = RoundUpdates(np.zeros(1), 0.1, Draw(np.array([1]), np.ones(1)), reply, WEIGHTS)
    seen = seen._replace(probes=[probe], times=TIMES)
    # Tier 0 holds 1 and 2, of mean accuracy 0.5: not risen. Tier 1 has 0.4: it ranks first.
    after = sampler.see(state, seen)
    np.testing.assert_allclose(after["accuracies"], [0.5, 0.4])
    np.testing.assert_allclose(after["chances"], [1 / 3, 2 / 3])
    risen = before(0.4, sampler)
    np.testing.assert_allclose(sampler.see(risen, seen)["chances"], [0.5, 0.5])


def test_asking_for_accuracies_costs_time_every_so_many_rounds() -> None:
    backend = small_simulator(times=Steady(LARGER))
    rows = train(backend, Tifl(2, tiers=3, every=3), **HOW).history.rows
    held_out = backend.data.test.sizes
    expected = (LARGER * held_out / (3 * 4 * 5)).max()
    asked = [each.round for each in rows if each.probing_seconds]
    assert asked == [4, 7]
    assert {each.probing_seconds for each in rows if each.probing_seconds} == {expected}


def test_unknown_times_are_profiled_by_a_round_of_everyone() -> None:
    backend = small_simulator(times=Steady(LARGER), times_known=False)
    rows = train(backend, Tifl(2, tiers=3), **HOW).history.rows
    assert rows[1].clients.size == 6
    assert all(each.clients.size == 2 and each.tier >= 0 for each in rows[2:])


# Groups


def test_everyone_has_a_turn_once_an_epoch_with_those_of_like_speed() -> None:
    sampler, state = Groups(2, bins=2), Groups(2, bins=2).init(4)
    for epoch in range(5):
        rounds = []
        for _ in range(2):
            draw = drawn(sampler, state)
            rounds.append(draw.clients.tolist())
            state = sampler.observe(state, row(draw.clients.tolist()))
        assert sorted(rounds) == [[0, 3], [1, 2]], epoch
    np.testing.assert_allclose(draw.weights.sum(), 1.0)


def test_who_is_away_is_left_out_and_has_its_turn_later() -> None:
    sampler, state = Groups(2, bins=2), Groups(2, bins=2).init(4)
    turns = []
    for index in range(4):
        present = np.array([index > 1, True, True, True])
        draw = sampler.design(state, KNOWN).among(present).draw(np.random.default_rng(0))
        turns.append(draw.clients.tolist())
        state = sampler.observe(state, row(draw.clients.tolist()))
    assert 0 not in turns[0] + turns[1]
    assert 0 in turns[2]  # nobody else is waiting


# FedCS


def test_candidates_within_the_deadline_train_the_fastest_first() -> None:
    # All four are candidates; the median time is 2.5 seconds.
    draw = drawn(FedCS(2), FedCS(2).init(4))
    assert draw.clients.tolist() == [1, 2]
    np.testing.assert_allclose(draw.weights, [0.4, 0.6])
    assert drawn(FedCS(4, deadline=0.8), FedCS(4).init(4)).clients.tolist() == [1, 2, 3]
    alone = FedCS(2).design(FedCS(2).init(4), KNOWN).among(np.array([True, False, False, False]))
    assert alone.draw(np.random.default_rng(0)).clients.tolist() == [0]  # nobody is within


@pytest.mark.parametrize("field", ["candidates", "deadline"])
def test_shares_beyond_one_are_refused(field: str) -> None:
    with pytest.raises(InputError, match=f"{field} must be in \\(0, 1\\], got 2"):
        FedCS(2, **{field: 2.0})


# FLANP


def shown(square: float) -> RoundUpdates:
    update = np.array([[np.sqrt(square) * 0.1]])
    reply = Reply(np.array([1]), update, np.ones(1), np.ones(1))
    return RoundUpdates(np.zeros(1), 0.1, Draw(np.array([1]), np.ones(1)), reply, WEIGHTS)


def test_the_fastest_are_doubled_when_the_gradient_is_small_enough() -> None:
    sampler = Flanp(1, accuracy=0.5)
    state = sampler.init(4)
    counts = []
    # Stage of one: until 0.5 · 8 = 4; of two: until 2; then all four.
    for index, square in enumerate([8.0, 5.0, 4.0, 3.0, 2.0, 1.0], 1):
        draw = drawn(sampler, state)
        counts.append(draw.clients.size)
        state = sampler.observe(sampler.see(state, shown(square)), row([1], round=index))
    assert counts == [1, 1, 1, 2, 2, 4]
    assert state["count"] == 4
    assert drawn(sampler, sampler.init(4)).clients.tolist() == [1]


def test_a_stage_that_does_not_get_there_ends_all_the_same() -> None:
    sampler = Flanp(1, longest=2)
    state = sampler.init(4)
    for index in range(1, 5):
        state = sampler.observe(sampler.see(state, shown(1.0)), row([1], round=index))
    assert state["count"] == 4
    with pytest.raises(InputError, match="accuracy must be in"):
        Flanp(1, accuracy=1.0)
