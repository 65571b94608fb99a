"""One node of an asynchronous Flower federation answers first, with a far too long update."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Array, Message

from tests.flower.federation import CLIENTS, START, client_app, strategy_on
from tests.flower.memory_grid import MemoryGrid

LIAR = 3


def enlarged(scale: float) -> Callable[[Message, int], None]:
    """Return how the liar's replies are changed: each array grows, and nothing else."""

    def change(reply: Message, client: int) -> None:
        if client == LIAR:
            arrays = reply.content.array_records["arrays"]
            for name in list(arrays):
                arrays[name] = Array(scale * (1 + np.abs(arrays[name].numpy())))

    return change


@pytest.mark.parametrize("scale", [1e37, 1e6])
@pytest.mark.parametrize("k", [1, 3, CLIENTS])
def test_a_large_first_update_does_not_reach_the_model(scale: float, k: int) -> None:
    app = client_app(change=enlarged(scale))
    grid = MemoryGrid(app, lambda i, _: 0.01 if i == LIAR else 1.0, partitions=range(CLIENTS))
    settings: dict[str, Any] = {
        "scheme": "uniform",
        "mode": "asynchronous",
        "buffer": 1,
        "evaluate_every": 0,
    }
    strategy = strategy_on(grid, k=k, **settings)
    strategy.start(grid, START, num_rounds=20)
    assert strategy.outcome is not None
    assert np.abs(strategy.outcome.parameters).max() < 100
    rows = strategy.history.rows
    assert not any(LIAR in row.clients for row in rows)
    assert {int(i) for row in rows for i in row.refused} <= {LIAR}


def test_a_long_update_counts_as_a_hundred_usual_ones_however_long_it_is() -> None:
    models = []
    for scale in (20.0, 40.0):
        grid = MemoryGrid(
            client_app(change=enlarged(scale)), lambda _, __: 1.0, partitions=range(CLIENTS)
        )
        strategy = strategy_on(grid, k=CLIENTS, scheme="full", evaluate_every=0)
        strategy.start(grid, START, num_rounds=1)
        assert strategy.outcome is not None
        assert LIAR in strategy.history.rows[1].clients
        models.append(strategy.outcome.parameters)
    assert models[0] == pytest.approx(models[1], rel=1e-3)
    assert np.linalg.norm(models[0]) < 20
