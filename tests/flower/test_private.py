"""The mod that adds noise, its account, and secure aggregation, which is refused."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.client.mod import secaggplus_mod

from fedpace.errors import TooFewClientsError
from fedpace.flower import Privacy, measure_mod, privacy_mod
from fedpace.report.notes import privacy_notes
from fedpace.report.setups import setups_of
from fedpace.studies.store import Store
from tests.flower.federation import START, grid_with, strategy_on


def test_updates_are_noisy_metrics_stay_behind_and_the_account_is_told(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    clip, noise = 0.5, 2.0
    grid = grid_with(mods=[privacy_mod(clip, noise), measure_mod])
    strategy = strategy_on(
        grid, scheme="pace", privacy=Privacy(clip, noise), evaluate_every=0, out=tmp_path
    )
    with caplog.at_level(logging.INFO, logger="flwr"):
        strategy.start(grid, START, num_rounds=6)
    rows = strategy.history.rows[1:]
    assert all(row.clients.size for row in rows)
    size = sum(array.numpy().size for array in START.values())
    for row in rows:  # of noise alone, but for the clip
        lengths = row.grad_norms
        assert (np.abs(lengths - clip * noise * np.sqrt(size)) < 6 * clip * noise + clip).all()
    assert "has ε = " in caplog.text
    (setup,) = setups_of(list(Store(tmp_path).runs()))
    notes = " ".join(privacy_notes(setup))
    assert "0.5" in notes
    assert "ε = " in notes
    assert "no sampling amplifies" in notes


def test_the_mod_releases_a_clipped_and_noisy_update() -> None:
    seen: list[np.ndarray] = []

    def spy(message: Any, context: Any, call_next: Any) -> Any:
        reply = call_next(message, context)
        if message.metadata.message_type == "train":
            arrays = [
                record.to_numpy_ndarrays()
                for record in (
                    next(iter(message.content.array_records.values())),
                    next(iter(reply.content.array_records.values())),
                )
            ]
            sent, back = (np.concatenate([a.ravel() for a in each]) for each in arrays)
            seen.append(back - sent)
            (metrics,) = reply.content.metric_records.values()
            assert set(metrics) <= {"num-examples", "computing-seconds", "local-steps"}
        return reply

    grid = grid_with(mods=[spy, privacy_mod(1e-3, 0.0), measure_mod])
    strategy_on(grid, scheme="uniform").start(grid, START, num_rounds=2)
    assert seen
    for update in seen:
        assert 0 < np.linalg.norm(update) <= 1.001e-3


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
def test_secure_aggregation_is_refused_with_the_reason(mode: str) -> None:
    grid = grid_with(mods=[secaggplus_mod])
    strategy = strategy_on(grid, scheme="uniform", mode=mode)
    with pytest.raises(TooFewClientsError, match="secaggplus_mod, which hides single updates"):
        strategy.start(grid, START, num_rounds=2)
