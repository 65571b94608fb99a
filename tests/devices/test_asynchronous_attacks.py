"""One device of seven lies in an asynchronous run; the model and the others are kept."""

import math
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from fedpace.devices.backend import DeviceBackend
from fedpace.devices.server import DeviceServer
from fedpace.devices.wire import Received
from fedpace.samplers.build import sampler_for
from fedpace.seeds import Seeds
from fedpace.training.history import Row
from fedpace.training.stopping import Stop, inverse
from fedpace.training.train import train
from tests.devices.fakes import Fake, honest
from tests.devices.fleet import MODEL

N = 7
LIAR = 2


@pytest.fixture
def server() -> Iterator[DeviceServer]:
    with DeviceServer([f"device-{i}" for i in range(N)]) as server:
        yield server


def fleet(server: DeviceServer, lie: Any, **prepared: Any) -> DeviceBackend:
    """Return a fleet whose liar answers at once, and the others after a while."""

    def slow(client: int) -> Any:
        def answer(asked: Received) -> list[bytes]:
            if asked.kind == "train":
                time.sleep(0.05)
            return honest(client, asked)

        return answer

    for client in range(N):
        Fake(server.address[1], client, lie if client == LIAR else slow(client))
    devices = DeviceBackend(server, MODEL, Seeds(0), deadline=60.0, patience=60.0, least=N)
    devices.prepare({}, **prepared)
    return devices


def lying(scale: float, **changes: Any) -> Any:
    """Multiply every update, and answer with these changes."""
    floats = np.full(MODEL.size, 0.01 * scale, dtype=np.float32)
    return lambda asked: (
        honest(LIAR, asked, floats=floats, **changes)
        if asked.kind == "train"
        else honest(LIAR, asked)
    )


def asynchronous(devices: DeviceBackend, at_once: int, rounds: int) -> tuple[Any, list[Row]]:
    sampler = sampler_for("uniform", at_once, mode="asynchronous", buffer=1, times_known=False)
    outcome = train(
        devices,
        sampler,
        mode="asynchronous",
        at_once=at_once,
        buffer=1,
        schedule=inverse(0.1),
        seeds=Seeds(0),
        stop=Stop(rounds=rounds),
        evaluate_every=0,
    )
    return outcome, list(outcome.history.rows[1:])


@pytest.mark.parametrize("at_once", [1, 2, N])
@pytest.mark.parametrize("scale", [1e37, 1e6])
def test_a_large_first_update_does_not_reach_the_model(
    server: DeviceServer, scale: float, at_once: int
) -> None:
    devices = fleet(server, lying(scale))
    outcome, rows = asynchronous(devices, at_once, 20)
    assert np.abs(outcome.parameters).max() < 1.0
    assert not any(LIAR in row.clients for row in rows)
    refused = {client for client, reason in server.refusals if reason == "update"}
    assert refused <= {LIAR}
    assert any(LIAR in row.refused for row in rows)


def test_after_a_restart_a_large_first_update_is_judged_at_once(server: DeviceServer) -> None:
    memory = {"lengths": {str(client): 0.1 for client in range(N)}}
    devices = fleet(server, lying(1e37), memory=memory)
    assert devices.memory["lengths"] == memory["lengths"]
    outcome, rows = asynchronous(devices, 1, N)
    assert np.abs(outcome.parameters).max() < 1.0
    assert rows[0].clients.size + rows[0].refused.size == 1


def test_a_fast_device_with_tiny_updates_shuts_nobody_out(server: DeviceServer) -> None:
    devices = fleet(server, lying(1e-30))
    _, rows = asynchronous(devices, 3, 40)
    assert not any(reason == "update" for _, reason in server.refusals)
    drawn = np.concatenate([row.clients for row in rows])
    assert {*drawn.tolist()} == {*range(N)}
    assert math.isfinite(rows[-1].seconds)


def test_an_update_of_a_thousand_usual_ones_moves_the_model_as_a_hundred(
    server: DeviceServer,
) -> None:
    devices = fleet(server, lying(1000))
    outcome, rows = asynchronous(devices, 2, 20)
    lied = sum(LIAR in row.clients for row in rows)
    assert server.refusals[LIAR, "update bounded"] == lied > 0
    heaviest = max(float(weight) for row in rows for weight in row.weights)
    moved = np.linalg.norm(outcome.parameters - devices.initial())
    usual = 0.01 * MODEL.size**0.5
    assert moved < 1.01 * heaviest * usual * (100 * lied + len(rows))
