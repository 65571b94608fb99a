"""Pisces against scores, paces and weights computed by hand."""

from typing import Any, cast

import numpy as np
import pytest

from fedpace.conformance import check_sampler
from fedpace.errors import InputError
from fedpace.registry import is_biased
from fedpace.samplers.build import resolve, sampler_for
from fedpace.samplers.rivals.oort import Best, Pisces, PiscesState
from fedpace.sampling.design import Draw
from fedpace.seeds import Seeds
from fedpace.servers.asynchronous import StaleMean
from fedpace.times.round_times import Steady
from fedpace.training.backend import Reply
from fedpace.training.sampler import SamplerContext
from fedpace.training.stopping import Stop, constant
from fedpace.training.train import train
from fedpace.training.updates import RoundUpdates, Started
from tests.training.fakes import row, small_simulator

EVEN = np.full(4, 0.25)
ALL = np.ones(4, dtype=np.bool_)


def state(**more: Any) -> PiscesState:
    """Return a state in which three of four clients were heard of."""
    lags = np.full((4, 5), np.nan)
    lags[0, -1], lags[1, -2:], lags[2, -1] = 0.0, [2.0, 4.0], 8.0
    usual: dict[str, Any] = {
        "completions": 0, "utility": np.array([1.0, 3.0, 3.0, np.nan]),
        "seconds": np.array([1.0, 2.0, 6.0, np.nan]), "lags": lags,
    }  # fmt: skip
    return cast(PiscesState, usual | more)


def seen(clients: list[int], versions: list[int], losses: list[float]) -> RoundUpdates:
    """Return what came at step 5."""
    who = np.array(clients)
    ones = np.ones(who.size)
    reply = Reply(who, ones[:, None], ones, ones, rms_losses=np.array(losses))
    started = Started(ones, [np.zeros(1)] * who.size, np.array(versions))
    weights = np.array([0.1, 0.2, 0.3, 0.4])
    return RoundUpdates(
        np.zeros(1), 1.0, Draw(who, ones), reply, weights, started=started, version=5
    )


def test_scores_are_utilities_less_for_mean_lags() -> None:
    # 1 · (1 + 0)^−½, 3 · (1 + 3)^−½, 3 · (1 + 8)^−½, and nothing of the last.
    design = Pisces(k=2).design(state(), SamplerContext(EVEN))
    np.testing.assert_allclose(design.scores, [1.0, 1.5, 1.0, np.nan])


def test_the_best_who_is_free_is_next_and_new_ones_by_chance() -> None:
    rng = np.random.default_rng(0)
    greedy = Best(np.array([1.0, 1.5, 1.0, np.nan]), 0.0, 2)
    assert greedy.next(ALL, np.zeros(4), rng).client == 1
    busy = np.array([True, False, False, True])
    assert greedy.next(busy, np.zeros(4), rng).client == 0
    curious = Best(np.array([1.0, 1.5, 1.0, np.nan]), 1.0, 2)
    assert curious.next(ALL, np.zeros(4), rng).client == 3
    assert curious.next(~np.isnan(curious.scores), np.zeros(4), rng).client == 1
    alone = np.array([False, False, False, True])
    assert greedy.next(alone, np.zeros(4), rng).client == 3
    alike = {greedy.next(~greedy_best(), np.zeros(4), rng).client for _ in range(40)}
    assert alike == {0, 2}


def greedy_best() -> Any:
    return np.array([False, True, False, True])


def test_exploration_falls_with_every_task_to_a_least_value() -> None:
    sampler = Pisces(k=2)
    chances = [
        sampler.design(state(completions=n), SamplerContext(EVEN)).exploration for n in (0, 2, 99)
    ]
    assert chances == pytest.approx([0.9, 0.9 * 0.98**2, 0.3])


def test_steps_come_after_a_part_of_the_longest_time_of_those_at_work() -> None:
    sampler, known = Pisces(k=4), SamplerContext(EVEN)
    of = np.array
    # Client 1 takes 2 s: every ½ s. Client 3 is new, and counts as the slowest, 6 s: 1½ s.
    assert sampler.steps_now(state(), 0.5, of([0, 1]), known)
    assert not sampler.steps_now(state(), 0.49, of([0, 1]), known)
    assert sampler.steps_now(state(), 1.5, of([0, 3]), known)
    assert not sampler.steps_now(state(), 1.49, of([0, 3]), known)
    assert not Pisces(k=4, bound=2).steps_now(state(), 2.99, of([0, 3]), known)
    assert sampler.steps_now(state(), 0.0, of([], dtype=np.int64), known)
    assert not sampler.steps_now(state(), 0.5, of([0, 1]), known._replace(times=of([9.0] * 4)))
    assert sampler.steps_now(sampler.init(4), 0.0, of([0]), known)


def test_losses_and_lags_are_noted() -> None:
    now = Pisces(k=2).see(Pisces(k=2).init(4), seen([3, 1], [5, 2], [2.0, np.inf]))
    np.testing.assert_allclose(now["utility"], [np.nan, np.nan, np.nan, 0.8])
    assert now["lags"][3, -1] == 0
    assert now["lags"][1, -1] == 3
    for lag in range(5):
        now = Pisces(k=2).see(now, seen([1], [5 - lag], [1.0]))
    assert now["lags"][1].tolist() == [0, 1, 2, 3, 4]
    now = Pisces(k=2).observe(now, row([1], round=1, client_seconds=np.array([7.0])))
    assert now["completions"] == 1
    assert now["seconds"][1] == 7


def test_the_server_weights_by_samples_and_staleness() -> None:
    # 0.4 / 0.6 · 1 and 0.2 / 0.6 · (1 + 3)^−½.
    found = StaleMean().weigh(seen([3, 1], [5, 2], [1.0, 1.0]))
    np.testing.assert_allclose(found, [2 / 3, 1 / 6])
    assert Pisces(k=2, exponent=1.0).server == StaleMean(1.0)


def test_a_run_steps_at_its_own_pace_with_all_that_came() -> None:
    # Times 1, 1, 1, 8 and three at work: as long as the slow one is, every 8/3 s, else every 1/3 s.
    backend = small_simulator(times=Steady(np.array([1.0, 1.0, 1.0, 8.0, 1.0, 1.0])))
    how: dict[str, Any] = {"schedule": constant(0.05), "seeds": Seeds(3)}
    outcome = train(
        backend, Pisces(k=3), stop=Stop(rounds=12), mode="asynchronous", at_once=3, **how
    )
    rows = outcome.history.rows[1:]
    lasted = {round(each.round_seconds, 9) for each in rows}
    assert lasted <= {1.0, 2.0, 3.0}
    assert {1.0, 3.0} <= lasted
    assert rows[-1].loss < outcome.history.rows[0].loss
    assert [each.seconds for each in rows] == sorted(each.seconds for each in rows)


def test_it_is_a_sampler_that_can_be_named_and_says_its_bias() -> None:
    check_sampler(lambda: Pisces(k=3))
    assert resolve("pisces") is Pisces
    assert is_biased("pisces")
    made = sampler_for("pisces", 4, mode="asynchronous", buffer=2, knobs={"bound": 7})
    assert made == Pisces(k=4, bound=7)
    with pytest.raises(InputError, match="exponent must be at least 0, got -1"):
        Pisces(k=2, exponent=-1)
