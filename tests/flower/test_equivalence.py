"""The strategy is our loop: with the same luck, the same models."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import ArrayRecord, MetricRecord

from fedpace.checks import FloatArray
from fedpace.estimation.adaptive import Live, Pilots, WarmUp, run_adaptive, run_known
from fedpace.flower import AdaptiveSampling
from fedpace.rounds.schedules import constant
from fedpace.rounds.stopping import Stop
from fedpace.sampling.schemes import SCHEMES
from fedpace.seeds import Seeds
from tests.flower import federation
from tests.flower.federation import CLIENTS, RATE, as_record, as_vector, client_app, steady
from tests.flower.memory_grid import MemoryGrid

ROUNDS, K, SEED = 25, 4, 3


def evaluation(models: list[FloatArray], server_round: int, arrays: ArrayRecord) -> MetricRecord:
    del server_round
    models.append(as_vector(arrays))
    loss, accuracy = federation.simulator().evaluate(models[-1])
    return MetricRecord({"loss": loss, "accuracy": accuracy})


def flower_models(
    scheme: str, pilots: WarmUp | Pilots
) -> tuple[list[FloatArray], AdaptiveSampling]:
    grid = MemoryGrid(client_app(), steady, partitions=range(CLIENTS))
    strategy = AdaptiveSampling(
        K, scheme, seed=SEED, pilots=pilots, refresh=5, min_available_nodes=CLIENTS,
        fraction_evaluate=0.0, max_weight=2.0, clock=grid.clock,
    )  # fmt: skip
    models: list[FloatArray] = []
    strategy.start(
        grid,
        as_record(federation.simulator().initial()),
        num_rounds=ROUNDS,
        evaluate_fn=lambda index, arrays: evaluation(models, index, arrays),
    )
    return models, strategy


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(
    "pilots", [WarmUp(5), Pilots((1.0,), rounds=4)], ids=["warm-up", "two pilots"]
)
def test_every_model_is_that_of_our_loop(scheme: str, pilots: WarmUp | Pilots) -> None:
    models, strategy = flower_models(scheme, pilots)
    seen: list[FloatArray] = []

    class Watched(federation.MeasuredSimulator):
        def evaluate(self, parameters: FloatArray):  # type: ignore[no-untyped-def]
            seen.append(parameters)
            return super().evaluate(parameters)

    ours = federation.simulator()
    backend = Watched(
        ours.data, ours.model, ours.times, ours.seeds,
        local_steps=ours.local_steps, batch=ours.batch,
    )  # fmt: skip
    common = {
        "k": K, "schedule": constant(RATE), "stop": Stop(rounds=ROUNDS), "seeds": Seeds(SEED),
        "max_weight": 2.0, "live": Live(refresh=5),
    }  # fmt: skip
    if scheme in ("full", "uniform", "weighted"):
        outcome = run_known(backend, SCHEMES[scheme], None, **common)  # type: ignore[arg-type]
    else:
        outcome = run_adaptive(backend, SCHEMES[scheme], pilots=pilots, **common)  # type: ignore[arg-type]
    assert len(models) == len(seen) > ROUNDS
    np.testing.assert_allclose(models, seen, atol=1e-6, rtol=0)
    times = [row.seconds for row in outcome.history.rows]
    np.testing.assert_allclose([row.seconds for row in strategy.history.rows], times, rtol=1e-9)
    for mine, theirs in zip(strategy.history.rows, outcome.history.rows, strict=True):
        np.testing.assert_array_equal(mine.clients, theirs.clients)
        np.testing.assert_allclose(mine.weights, theirs.weights, rtol=1e-6)
