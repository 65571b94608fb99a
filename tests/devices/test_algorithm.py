"""The whole of Algorithm 2 on devices: pilots, measured norms and times, solve, go on."""

from pathlib import Path
from typing import Any

import numpy as np

from fedpace.devices.server import DeviceServer
from fedpace.samplers.build import Pilots, sampler_for
from fedpace.samplers.pace import Pace
from fedpace.sampling.design import WithReplacement
from fedpace.sampling.schemes import SCHEMES
from fedpace.sampling.tiers import Tiered
from fedpace.seeds import Seeds
from fedpace.training.backend import BaseBackend
from fedpace.training.checkpoint import Checkpoint
from fedpace.training.stopping import Stop, inverse
from fedpace.training.train import train
from fedpace.training.training import Outcome
from tests.devices.fleet import SEED, N, device, prepared, simulator

SLOW = 3


def piloted(
    backend: BaseBackend,
    *,
    evaluate_every: int = 1,
    refresh: int | None = None,
    journal: Checkpoint | None = None,
) -> Outcome:
    return train(
        backend,
        sampler_for("optimal-max", 2, learn=Pilots((0.5,), 8), refresh=refresh),
        schedule=inverse(0.1),
        stop=Stop(rounds=10),
        seeds=Seeds(SEED),
        evaluate_every=evaluate_every,
        callbacks=[] if journal is None else [journal],
    )


def test_learns_norms_and_times_from_devices_and_draws_the_slow_one_less(
    server: DeviceServer, tmp_path: Path
) -> None:
    for client in range(N):
        device(server.address[1], client, 0.1 if client == SLOW else 0.0)
    journal = Checkpoint(tmp_path / "run.npz", {})
    outcome = piloted(prepared(server), evaluate_every=2, refresh=4, journal=journal)
    assert outcome.state.ended == "rounds"
    profile = outcome.profile
    assert profile.times.argmax() == SLOW
    assert profile.times[SLOW] >= 0.1
    # The fleet's gradient norms, as the same pilots measure them in the simulator.
    simulated = piloted(simulator())
    np.testing.assert_allclose(profile.grad_norms, simulated.profile.grad_norms, rtol=0.3)
    assert isinstance(outcome.design, WithReplacement)
    blind = SCHEMES["statistical"](profile, 2)
    assert isinstance(blind, WithReplacement)
    assert outcome.design.q[SLOW] < blind.q[SLOW]
    rows = [row for row in outcome.history.rows if row.phase == "train"]
    assert all(np.isfinite(row.loss_estimate) for row in rows)
    assert all(row.bytes_up.size == row.clients.size for row in rows)


def test_pace_sees_updates_of_devices_and_draws_those_of_like_speed_together(
    server: DeviceServer,
) -> None:
    for client in range(N):
        device(server.address[1], client, 0.15 if client in (1, 2) else 0.0)
    how: dict[str, Any] = {"schedule": inverse(0.1), "stop": Stop(rounds=16), "seeds": Seeds(SEED)}
    devices = train(prepared(server), Pace(k=2, c_over_s0=1.0), **how)
    last = devices.history.rows[-1]
    assert last.why.startswith("2 tiers, c = 1 S₀: as given; rounds of weight ")
    assert isinstance(devices.design, Tiered)
    np.testing.assert_array_equal(devices.design.tiers, [0, 1, 1, 0])
    # In the warm-up, where nothing depends on times, all is as in the simulator.
    simulated = train(simulator(), Pace(k=2, c_over_s0=1.0), **how)
    for mine, theirs in zip(devices.history.rows[:4], simulated.history.rows[:4], strict=True):
        np.testing.assert_array_equal(mine.clients, theirs.clients)
        np.testing.assert_allclose(mine.weights, theirs.weights)
