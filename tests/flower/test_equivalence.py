"""The strategy is our loop: with the same seed, the same models."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import ArrayRecord, MetricRecord

from fedpace import Pilots, Simulator, Stop, WarmUp, constant, sampler_for, train
from fedpace.checks import FloatArray
from fedpace.flower import AdaptiveSampling
from fedpace.registry import SAMPLER, SCHEME, method_names
from fedpace.seeds import Seeds
from fedpace.training.backend import Evaluation
from tests.flower import federation
from tests.flower.federation import RATE, START, as_vector, grid_with, strategy_on

ROUNDS, K, SEED = 25, 4, 3  # K is that of `strategy_on`


def flower_models(
    scheme: str, pilots: WarmUp | Pilots
) -> tuple[list[FloatArray], AdaptiveSampling]:
    models: list[FloatArray] = []

    def evaluate(_: int, arrays: ArrayRecord) -> MetricRecord:
        models.append(as_vector(arrays))
        loss, accuracy = federation.evaluated(models[-1])[:2]
        return MetricRecord({"loss": loss, "accuracy": accuracy})

    grid = grid_with()
    settings = {"pilots": pilots, "refresh": 5, "max_weight": 2.0, "largest_share": 1.0}
    strategy = strategy_on(grid, scheme=scheme, seed=SEED, **settings)
    strategy.start(grid, START, num_rounds=ROUNDS, evaluate_fn=evaluate)
    return models, strategy


@pytest.mark.parametrize("scheme", method_names(SCHEME, SAMPLER))
@pytest.mark.parametrize(
    "pilots", [WarmUp(5), Pilots((1.0,), rounds=4)], ids=["warm-up", "two pilots"]
)
def test_every_model_is_that_of_our_loop(scheme: str, pilots: WarmUp | Pilots) -> None:
    models, strategy = flower_models(scheme, pilots)
    seen: list[FloatArray] = []

    class Watched(Simulator):
        def evaluate(self, parameters: FloatArray, *, due: bool = True) -> Evaluation | None:
            seen.append(parameters)
            return super().evaluate(parameters, due=due)

    outcome = train(
        federation.simulator(Watched),
        sampler_for(scheme, K, learn=pilots, refresh=5, max_weight=2.0),
        schedule=constant(RATE),
        stop=Stop(rounds=ROUNDS),
        seeds=Seeds(SEED),
    )
    assert len(models) == len(seen) > ROUNDS
    np.testing.assert_allclose(models, seen, atol=1e-6, rtol=0)
    times = [row.seconds for row in outcome.history.rows]
    np.testing.assert_allclose([row.seconds for row in strategy.history.rows], times, rtol=1e-9)
    for mine, theirs in zip(strategy.history.rows, outcome.history.rows, strict=True):
        assert mine.phase == theirs.phase
        np.testing.assert_array_equal(mine.clients, theirs.clients)
        np.testing.assert_allclose(mine.weights, theirs.weights, rtol=1e-6)
