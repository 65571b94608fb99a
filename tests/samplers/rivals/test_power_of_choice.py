"""Power-of-Choice trains the candidates of the largest loss, and pays for asking."""

from typing import Any

import numpy as np
import pytest

from fedpace.checks import FloatArray, IntArray
from fedpace.errors import InputError
from fedpace.samplers.rivals.candidates import PowerOfChoice
from fedpace.seeds import Seeds
from fedpace.times.round_times import Steady
from fedpace.training.backend import Probe
from fedpace.training.sampler import SamplerContext
from fedpace.training.stopping import Stop, constant
from fedpace.training.train import train
from tests.training.fakes import LARGER, SIZES, Fleet, row, small_simulator

LOSSES = np.array([0.3, 0.9, 0.1, np.nan, 0.5])
HOW: dict[str, Any] = {"schedule": constant(0.1), "stop": Stop(rounds=3), "seeds": Seeds(1)}


def asking(asked: list[IntArray]) -> Any:
    def probe(clients: IntArray, *, samples: int | None = None) -> Probe:
        asked.append(clients)
        nothing: FloatArray = np.zeros(clients.size)
        return Probe(clients, LOSSES[clients], nothing, nothing)

    return probe


def test_of_all_candidates_the_largest_losses_train() -> None:
    asked: list[IntArray] = []
    known = SamplerContext(np.full(5, 0.2), probe=asking(asked))
    sampler = PowerOfChoice(2, d=5)
    draw = sampler.design(sampler.init(5), known).draw(np.random.default_rng(0))
    assert asked[0].tolist() == [0, 1, 2, 3, 4]
    assert (draw.clients.tolist(), draw.weights.tolist()) == ([1, 4], [0.5, 0.5])


def test_candidates_are_different_and_in_proportion_to_data() -> None:
    asked: list[IntArray] = []
    known = SamplerContext(np.array([0.6, 0.1, 0.1, 0.1, 0.1]), probe=asking(asked))
    sampler = PowerOfChoice(1, d=2)
    for seed in range(300):
        sampler.design(sampler.init(5), known).draw(np.random.default_rng(seed))
    assert all(np.unique(each).size == 2 for each in asked)
    # The first: 0.6, or one of four with 0.1 and then 0.6 of what is left, 0.9.
    share = float(np.mean([0 in each for each in asked]))
    expected = 0.6 + 4 * 0.1 * 0.6 / 0.9
    assert abs(share - expected) <= 5 * np.sqrt(expected * (1 - expected) / 300)


@pytest.mark.parametrize(("rule", "samples"), [("all", SIZES), ("batch", np.minimum(SIZES, 8))])
def test_the_clock_waits_for_the_slowest_candidate(rule: Any, samples: IntArray) -> None:
    backend = small_simulator(times=Steady(LARGER))  # 4 steps of 5 samples
    outcome = train(backend, PowerOfChoice(2, d=6, rule=rule, batch=8), **HOW)
    evaluation = LARGER * samples / (3 * 4 * 5)
    seconds = 0.0
    for each in outcome.history.rows[1:]:
        assert each.probing_seconds == pytest.approx(evaluation.max())
        assert each.wasted_seconds == pytest.approx(evaluation.sum())
        assert each.device_seconds == pytest.approx(evaluation.sum() + each.client_seconds.sum())
        assert each.traffic_down == 6 * 4 * backend.model.size  # candidates have the model already
        assert each.traffic_up == 2 * 4 * backend.model.size
        seconds += each.probing_seconds + each.round_seconds
        assert each.seconds == pytest.approx(seconds)


def test_the_losses_are_those_of_the_model() -> None:
    backend = small_simulator(times=Steady(LARGER))
    outcome = train(backend, PowerOfChoice(2, d=6), **HOW | {"stop": Stop(rounds=1)})
    start, train_set = backend.initial(), backend.data.train
    losses = []
    for client in range(6):
        mine = train_set.client(client)
        x = backend.model.prepare_whole(mine.x)
        losses.append(float(backend.model.losses(start, x, mine.y).mean()))
    best = np.sort(np.argsort(-np.array(losses), kind="stable")[:2])
    assert outcome.history.rows[1].clients.tolist() == best.tolist()


def test_the_last_reported_loss_counts_where_nobody_is_asked() -> None:
    sampler = PowerOfChoice(2, d=4, rule="last")
    state = sampler.init(4)
    state = sampler.observe(state, row([0, 1, 2], losses=[0.5, 2.0, 1.0]))
    draw = sampler.design(state, SamplerContext(np.full(4, 0.25))).draw(np.random.default_rng(0))
    assert draw.clients.tolist() == [1, 3]  # the fourth was never heard: ∞
    outcome = train(small_simulator(), PowerOfChoice(2, rule="last"), **HOW)
    assert all(each.probing_seconds == 0 for each in outcome.history.rows)
    assert np.isfinite(outcome.state.sampler["losses"]).sum() >= 2


def test_a_backend_that_cannot_ask_is_told() -> None:
    with pytest.raises(InputError, match="without `probe`, got Fleet; simulate it"):
        train(Fleet(), PowerOfChoice(2), **HOW)


def test_fewer_candidates_than_clients_are_refused() -> None:
    with pytest.raises(InputError, match="d must be at least k = 3, got 2; give 6"):
        PowerOfChoice(3, d=2)
