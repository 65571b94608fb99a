"""Devices over loopback, each a process that holds its own samples."""

import math
import re
import threading
from typing import Any

import numpy as np
import pytest

from fedpace.conformance import check_backend
from fedpace.devices.backend import DeviceBackend
from fedpace.devices.device import Prepare, RateLimit, Trainer
from fedpace.devices.server import DeviceServer
from fedpace.devices.wire import Received
from fedpace.errors import InputError, TooFewClientsError
from fedpace.sampling.design import WithReplacement
from fedpace.seeds import Seeds
from tests.devices.fakes import Answer, Fake, honest
from tests.devices.fleet import (
    MODEL,
    NAMES,
    SEED,
    N,
    Running,
    device,
    evaluated,
    joined,
    prepared,
    run,
    simulator,
    task,
    trainer,
    until,
)


def test_gives_the_numbers_of_the_simulator(server: DeviceServer, processes: list[Running]) -> None:
    processes += [joined(server.address[1], client) for client in range(N)]
    devices = prepared(server, least=N)
    twin = simulator()
    np.testing.assert_array_equal(devices.weights, twin.weights)
    parameters = devices.initial()
    design = WithReplacement(np.full(N, 1 / N), 3, devices.weights)
    rng = np.random.default_rng(0)
    for index in range(3):
        draw = design.draw(rng)
        given = task(parameters, draw.clients.tolist(), index)
        devices.submit(given)
        twin.submit(given)
        reply, expected = devices.collect(), twin.collect()
        np.testing.assert_array_equal(reply.clients, expected.clients)
        np.testing.assert_array_equal(reply.updates, expected.updates)
        np.testing.assert_allclose(reply.grad_norms, expected.grad_norms, rtol=1e-6)
        # The next model has digits that float32 has not.
        parameters = parameters + draw.weights @ reply.updates
    parameters = parameters.astype(np.float32).astype(np.float64)
    here, there = evaluated(devices, parameters), twin.evaluate(parameters)
    assert there is not None
    assert here.loss == pytest.approx(there.loss, rel=1e-6)
    assert here.accuracy == there.accuracy


class Fixed:
    """A trainer of a device whose local steps cannot be chosen."""

    def __init__(self, made: Trainer) -> None:
        self.samples, self.loss, self.evaluate = made.samples, made.loss, made.evaluate
        self._made = made

    def train(self, parameters: Any, *, round_index: int, learning_rate: float) -> Any:
        return self._made.train(parameters, round_index=round_index, learning_rate=learning_rate)


def test_takes_as_many_local_steps_as_the_server_asks_for(server: DeviceServer) -> None:
    for client in range(N):
        device(server.address[1], client)
    devices, twin = prepared(server, least=N), simulator()
    given = task(devices.initial(), [0, 1], 0)
    for steps in (2, 7):
        asked = given._replace(local_steps=np.array([steps, steps]))
        devices.submit(asked)
        reply = devices.collect()
        np.testing.assert_array_equal(reply.local_steps, asked.local_steps)
        np.testing.assert_array_equal(reply.updates, twin.train_task(asked).updates)
    with pytest.raises(InputError, match="must be the same for all clients of a round"):
        devices.submit(given._replace(local_steps=np.array([2, 3])))
    devices.submit(given)
    assert not devices.collect().local_steps.size


def test_a_device_that_cannot_choose_its_local_steps_does_not_confirm_them(
    server: DeviceServer,
) -> None:
    def fixed(client: int) -> Prepare:
        return lambda job: Fixed(trainer(client, job["seed"]))

    for client in range(N):
        device(server.address[1], client, prepare=fixed(client))
    devices, twin = prepared(server, least=N), simulator()
    given = task(devices.initial(), [0, 1], 0)
    devices.submit(given._replace(local_steps=np.array([2, 2])))
    reply = devices.collect()
    assert not reply.local_steps.size
    np.testing.assert_array_equal(reply.updates, twin.train_task(given).updates)


def test_keeps_the_rules_of_a_backend(server: DeviceServer) -> None:
    for client in range(N):
        device(server.address[1], client)
    check_backend(lambda: prepared(server))


def test_measures_seconds_and_bytes_of_each_reply(server: DeviceServer) -> None:
    for client in range(N):
        device(server.address[1], client, 0.2 if client else 0.02)
    devices = prepared(server, least=N)
    reply = run(devices, 0)
    assert (reply.seconds[1:] >= 0.2).all()
    assert (reply.computing_seconds[1:] >= 0.2).all()
    assert (reply.computing_seconds <= reply.seconds).all()
    assert reply.waited is None
    np.testing.assert_array_equal(devices.measured_times, reply.seconds)
    for crossed in (reply.bytes_down, reply.bytes_up):
        assert ((4 * MODEL.size < crossed) & (crossed < 4 * MODEL.size + 300)).all()
    assert reply.losses == pytest.approx(np.log(3), rel=1e-6)  # of the model sent, all zeros


def test_sends_every_client_the_learning_rate(server: DeviceServer) -> None:
    rates: dict[int, float] = {}

    def noting(client: int) -> Answer:
        def answer(asked: Received) -> list[bytes]:
            rates[client] = getattr(asked.fields, "learning_rate", 0.0)
            return honest(client, asked)

        return answer

    for client in range(N):
        Fake(server.address[1], client, noting(client))
    run(prepared(server), 0)
    assert rates == dict.fromkeys(range(N), 0.1)


def test_names_whom_it_waits_for(server: DeviceServer) -> None:
    silent = threading.Event()

    def late(asked: Received) -> list[bytes]:
        assert asked.kind != "train" or silent.wait(600)
        return honest(1, asked)

    waiting = DeviceBackend(server, MODEL, Seeds(SEED), least=N)
    assert waiting.awaited == NAMES  # to join
    for client in range(N):
        Fake(server.address[1], client, late if client == 1 else None)
    devices = prepared(server)
    devices.submit(task(devices.initial(), range(N)))
    until(lambda: devices.awaited == [NAMES[1]])
    silent.set()
    devices.collect()
    assert devices.awaited == []


def test_keeps_to_the_pace_that_a_device_sets_itself() -> None:
    bytes_each_way = 4 * MODEL.size
    pace = RateLimit(up=bytes_each_way / 0.2, down=bytes_each_way / 0.3)
    with DeviceServer(NAMES) as server:
        device(server.address[1], 0, rate_limit=pace)
        devices = prepared(server, least=1, grace=0.0)
        reply = run(devices, 0, [0])
    assert reply.seconds[0] - reply.computing_seconds[0] >= 0.5


def test_goes_from_one_job_to_the_next(server: DeviceServer) -> None:
    device(server.address[1], 0)
    device(server.address[1], 1)
    first = prepared(server, least=2, grace=0.0)
    np.testing.assert_array_equal(first.weights[:2] / first.weights[0], [1, 35 / 20])
    for seed in (SEED, SEED + 1):
        devices = DeviceBackend(server, MODEL, Seeds(seed), least=2, grace=0.2, deadline=300.0)
        devices.prepare({"seed": seed})
        expected = run(simulator(seed), 0, [0, 1])
        np.testing.assert_array_equal(run(devices, 0, [0, 1]).updates, expected.updates)


def test_tells_why_a_device_cannot_prepare(server: DeviceServer) -> None:
    def broken(job: dict[str, Any]) -> Trainer:
        raise FileNotFoundError("no images here")

    device(server.address[1], 0, prepare=broken)
    until(lambda: server.connected)
    with pytest.raises(TooFewClientsError, match=r"at least 1 of 4 devices .* got 0"):
        prepared(server, least=1, patience=0.5)
    until(lambda: server.refusals[0, "failed"] == 1)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (InputError("data must be here, got none; fetch them"), "data must be here, got none"),
        (ValueError("sample [0.7, 0.1] has no class"), "ValueError; see the log of the device"),
    ],
    ids=["input", "other"],
)
def test_a_failure_says_nothing_of_the_samples(
    server: DeviceServer, caplog: pytest.LogCaptureFixture, error: Exception, said: str
) -> None:
    def broken(job: dict[str, Any]) -> Trainer:
        raise error

    device(server.address[1], 0, prepare=broken)
    until(lambda: server.connected)
    with pytest.raises(TooFewClientsError):
        prepared(server, least=1, patience=0.3)

    def lines() -> list[str]:
        server_says = "fedpace.devices.server"
        return [each.getMessage() for each in caplog.records if each.name == server_says]

    until(lines)
    (line,) = lines()
    assert said in line
    assert "0.7" not in line


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        ({"silence": 4}, "silence must be longer than heartbeat, 5 s, got 4 s"),
        ({"heartbeat": 60}, "silence must be longer than heartbeat, 60 s, got 60 s"),
        ({"heartbeat": 0}, "heartbeat must be from 0.001 to 1e+06 seconds, got 0; leave it out"),
        ({"silence": math.inf}, "silence must be from 0.001 to 1e+06 seconds, got inf"),
        ({"silence": math.nan}, "silence must be from 0.001 to 1e+06 seconds, got nan"),
        ({"heartbeat": "often"}, "heartbeat must be a number, got 'often'; give seconds"),
    ],
)
def test_refuses_seconds_in_which_no_sign_of_life_can_be_given(
    seconds: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        DeviceServer(["device-0"], **seconds)
