"""Oort against scores computed by hand."""

from typing import Any, cast

import numpy as np
import pytest

from fedpace.errors import InputError
from fedpace.samplers.rivals.oort import Oort, OortState
from fedpace.sampling.design import Draw
from fedpace.seeds import Seeds
from fedpace.times.round_times import Steady
from fedpace.training.backend import Reply
from fedpace.training.sampler import SamplerContext
from fedpace.training.stopping import Stop, constant
from fedpace.training.train import train
from fedpace.training.updates import RoundUpdates
from tests.training.fakes import row, small_simulator

EVEN = np.full(4, 0.25)
SLOW = np.array([1.0, 1.0, 1.0, 10.0])


def state(**more: Any) -> OortState:
    """Return a state in which all four clients were used in round 1."""
    usual: dict[str, Any] = {
        "rounds": 1, "utility": np.array([1.0, 2.0, 3.0, 4.0]), "seconds": np.full(4, np.nan),
        "last": np.ones(4), "exploited": [], "percentile": 50.0, "exploration": 0.0,
    }  # fmt: skip
    return cast(OortState, usual | more)


def greedy(k: int = 2) -> Oort:
    """Return one that takes exactly the k best: nothing is clipped, nobody else is let in."""
    return Oort(k, over_commit=1.0, clip=1.0, cut_off=1.0)


def drawn(sampler: Oort, now: OortState, context: SamplerContext, seed: int = 0) -> Draw:
    return sampler.design(now, context).draw(np.random.default_rng(seed))


def test_the_largest_utility_is_exploited_and_slowness_is_punished() -> None:
    # Scores (U − 0.999) / 3.001; the slow client's is multiplied by (1 / 10)².
    assert drawn(greedy(), state(), SamplerContext(EVEN)).clients.tolist() == [2, 3]
    assert drawn(greedy(), state(), SamplerContext(EVEN, SLOW)).clients.tolist() == [1, 2]
    unlimited = state(percentile=100.0)
    assert drawn(greedy(), unlimited, SamplerContext(EVEN, SLOW)).clients.tolist() == [2, 3]


def test_a_client_that_was_not_used_for_long_scores_higher() -> None:
    # √(0.1 ln 40 / L) is 0.61 for L = 1 and 0.10 for L = 40; each utility adds 0.33 to the last.
    now = state(rounds=40, last=np.array([40.0, 1.0, 40.0, 40.0]))
    assert drawn(greedy(), now, SamplerContext(EVEN)).clients.tolist() == [1, 3]


def test_utilities_beyond_the_quantile_are_cut() -> None:
    # Cut at 2.5, clients 2 and 3 are alike: both are let in, and either is drawn.
    sampler = Oort(1, over_commit=1.0, clip=0.5, cut_off=1.0)
    found = {drawn(sampler, state(), SamplerContext(EVEN), seed).clients[0] for seed in range(40)}
    assert found == {2, 3}


def test_explores_the_unused_by_size_and_speed_and_asks_for_more_than_it_takes() -> None:
    known = SamplerContext(np.array([0.1, 0.2, 0.3, 0.4]), SLOW)
    now = state(last=np.zeros(4), utility=np.zeros(4), exploration=0.9)
    draw = drawn(Oort(2), now, known)
    assert (draw.clients.size, draw.take) == (3, 2)  # ⌈1.3 · 2⌉
    assert draw.weights.tolist() == [0.5, 0.5, 0.5]  # a mean of two
    # 0.4 · (1/10)² = 0.004 against 0.1, 0.2 and 0.3: the slow one is hardly ever drawn.
    counts = np.zeros(4)
    for seed in range(400):
        counts[drawn(Oort(1, over_commit=1.0), now, known, seed).clients] += 1
    expected = np.array([0.1, 0.2, 0.3, 0.004]) / 0.604
    error = np.sqrt(expected * (1 - expected) / 400)
    assert (np.abs(counts / 400 - expected) <= 5 * error + 1e-12).all()


def test_where_too_few_are_unused_the_others_make_up_for_them() -> None:
    now = state(last=np.array([1.0, 1.0, 1.0, 0.0]), exploration=0.9)
    assert drawn(Oort(3, over_commit=1.0), now, SamplerContext(EVEN)).clients.size == 3


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ({"rms_losses": np.array([3.0, 2.0]), "losses": np.ones(2)}, [1.2, 0.2]),
        ({"losses": np.array([1.0, 2.0])}, [0.4, 0.2]),
        ({}, [2.0, 0.7]),  # gradient norms 5 and 7
    ],
)
def test_utility_is_size_times_the_root_mean_square_loss(
    reply: dict[str, Any], expected: list[float]
) -> None:
    clients, ones = np.array([1, 3]), np.ones(2)
    came = Reply(clients, np.zeros((2, 1)), ones, np.array([5.0, 7.0]), **reply)
    weights = np.array([0.2, 0.4, 0.3, 0.1])
    seen = RoundUpdates(np.zeros(1), 0.1, Draw(clients, ones), came, weights)
    utility = Oort(2).see(Oort(2).init(4), seen)["utility"]
    np.testing.assert_allclose(utility, [0, expected[0], 0, expected[1]])


@pytest.mark.parametrize(
    ("before", "now", "expected"), [(1.0, 1.05, 15.0), (1.0, 1.5, 10.0), (1.0, 9.0, 5.0)]
)
def test_the_pacer_waits_longer_when_utility_stands_still(
    before: float, now: float, expected: float
) -> None:
    sampler = Oort(2, window=3)
    current = sampler.init(4)
    current["last"][:] = 1
    for index in range(1, 7):
        current["utility"][:] = before if index <= 3 else now
        current = sampler.observe(current, row([0, 1], round=index))
    assert current["percentile"] == expected
    assert current["exploration"] == pytest.approx(0.9 * 0.95**6)


def test_a_round_of_the_simulator_ends_with_the_kth_reply_and_counts_the_late() -> None:
    times = np.array([1.0, 4.0, 2.0, 0.5, 3.0, 1.5])
    backend = small_simulator(times=Steady(times))
    how: dict[str, Any] = {"schedule": constant(0.1), "stop": Stop(rounds=8), "seeds": Seeds(3)}
    outcome = train(backend, Oort(2, over_commit=2.0), **how)
    for each in outcome.history.rows[1:]:
        assert (each.clients.size, each.missing.size) == (2, 2)
        assert each.round_seconds == times[each.clients].max()
        assert times[each.missing].min() >= each.round_seconds
        assert each.wasted_seconds == pytest.approx(2 * each.round_seconds)
        np.testing.assert_allclose(each.weights, 0.5)
        assert each.losses.size == 2
    assert outcome.state.sampler["utility"].max() > 0


def test_over_commitment_below_one_is_refused() -> None:
    with pytest.raises(InputError, match="over_commit must be at least 1"):
        Oort(2, over_commit=0.5)
