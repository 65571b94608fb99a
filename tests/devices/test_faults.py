"""Devices that die, hang, come back or come late, as real processes; the run goes on."""

import signal
import threading
import time
from typing import Any

import numpy as np
import pytest

from fedpace.backends.remote import roster
from fedpace.devices.backend import DeviceBackend
from fedpace.devices.server import DeviceServer
from fedpace.devices.wire import Received
from fedpace.errors import InputError, TooFewClientsError
from fedpace.samplers.solve import Solve
from fedpace.sampling.schemes import SCHEMES
from fedpace.seeds import Seeds
from fedpace.training.stopping import Stop, inverse
from fedpace.training.train import train
from tests.devices.fakes import Fake, honest
from tests.devices.fleet import (
    MODEL,
    SEED,
    N,
    Running,
    evaluated,
    joined,
    prepared,
    present,
    run,
    until,
)

Processes = list[Running]


def test_goes_on_at_once_without_a_device_that_is_killed_mid_round(
    server: DeviceServer, processes: Processes
) -> None:
    processes += [
        joined(server.address[1], client, 1.0 if client == 1 else 0) for client in range(N)
    ]
    devices = prepared(server, deadline=60.0, least=3)
    threading.Timer(0.3, processes[1].kill).start()
    reply = run(devices, 0)
    assert reply.clients.tolist() == [0, 2, 3]
    assert reply.refused.size == 0
    assert reply.waited is not None
    assert reply.waited < 60.0  # the deadline was not waited for
    assert present(devices) == [True, False, True, True]


def test_does_without_a_device_that_hangs_until_it_answers_again(
    server: DeviceServer, processes: Processes
) -> None:
    processes += [joined(server.address[1], client) for client in range(N)]
    devices = prepared(server, deadline=1.0, least=3)
    processes[2].send_signal(signal.SIGSTOP)
    reply = run(devices, 0)
    assert reply.clients.tolist() == [0, 1, 3]
    assert reply.waited is not None
    assert reply.waited >= 1.0
    assert present(devices) == [True, True, False, True]
    assert run(devices, 1, [0, 1, 3]).waited is None  # the others are not held up any more
    processes[2].send_signal(signal.SIGCONT)
    until(lambda: all(present(devices)))
    assert devices.refusals == {(2, "late"): 1}
    assert run(devices, 2).clients.tolist() == [0, 1, 2, 3]


def test_drops_a_device_that_is_silent_for_too_long(processes: Processes) -> None:
    with DeviceServer([f"device-{i}" for i in range(N)], heartbeat=0.1, silence=0.5) as server:
        processes += [joined(server.address[1], client) for client in range(N)]
        devices = prepared(server, least=3)
        processes[0].send_signal(signal.SIGSTOP)
        until(lambda: 0 not in server.connected)
        assert present(devices) == [False, True, True, True]
        processes[0].send_signal(signal.SIGCONT)
        until(lambda: all(present(devices)))  # it connects again by itself


def test_takes_back_a_device_that_was_killed_and_started_again(
    server: DeviceServer, processes: Processes
) -> None:
    processes += [joined(server.address[1], client) for client in range(N)]
    devices = prepared(server, least=3)
    processes[3].kill()
    processes[3].wait()
    until(lambda: not present(devices)[3])
    processes.append(joined(server.address[1], 3))
    until(lambda: present(devices)[3])
    assert run(devices, 0).clients.tolist() == [0, 1, 2, 3]


def test_lets_a_new_connection_replace_the_old_one(server: DeviceServer) -> None:
    port = server.address[1]
    fakes = [Fake(port, client) for client in range(N)]
    devices = prepared(server, least=3)
    again = Fake(port, 1)  # the first is still open
    fakes[1].join()  # until the server hangs up on it
    until(lambda: present(devices)[1])
    assert run(devices, 0).clients.tolist() == [0, 1, 2, 3]
    again.close()
    until(lambda: not np.isin(1, server.connected))


def test_lets_a_device_join_late(server: DeviceServer, processes: Processes) -> None:
    processes += [joined(server.address[1], client) for client in range(N - 1)]
    devices = prepared(server, least=3, grace=0.1)
    assert present(devices) == [True, True, True, False]
    # Until it says how many samples it holds, it counts as the mean of the others.
    assert devices.weights[3] == pytest.approx(devices.weights[:3].mean())
    processes.append(joined(server.address[1], 3))
    until(lambda: all(present(devices)))
    assert run(devices, 0).clients.tolist() == [0, 1, 2, 3]


def test_waits_with_a_message_for_too_few_devices_and_then_says_so(server: DeviceServer) -> None:
    fakes = [Fake(server.address[1], client) for client in range(N)]
    said: list[str] = []
    devices = prepared(server, least=3, patience=0.3, say=said.append)
    for fake in fakes[:2]:
        fake.close()
    until(lambda: len(server.connected) == 2)
    with pytest.raises(
        TooFewClientsError, match=r"at least 3 of 4 .*, got 2 \(not device-0, device-1\) after"
    ):
        present(devices)
    assert said == [
        "waiting for clients: at least 3 of 4 devices must be ready, got 2 (not device-0, device-1)"
    ]


def test_waiting_for_a_device_counts_in_the_seconds_of_a_run(server: DeviceServer) -> None:
    port = server.address[1]
    fakes = [Fake(port, client) for client in range(N)]
    devices = prepared(server, least=N)
    assert devices.present(0, 0.0).waited == 0.0

    def leave_for(seconds: float) -> threading.Timer:
        fakes.pop().close()
        until(lambda: len(server.connected) == N - 1)
        timer = threading.Timer(seconds, lambda: fakes.append(Fake(port, N - 1)))
        timer.start()
        return timer

    timer = leave_for(0.3)
    assert devices.present(0, 0.0).waited > 0.2
    timer.join()
    timer = leave_for(0.3)  # the evaluation of the initial model waits, before the first draw
    outcome = train(
        devices,
        Solve(SCHEMES["uniform"], k=2),
        schedule=inverse(0.1),
        stop=Stop(rounds=2),
        seeds=Seeds(SEED),
    )
    timer.join()
    _, first, second = outcome.history.rows
    assert first.waiting_seconds > 0.2
    assert first.seconds == first.waiting_seconds + first.round_seconds
    assert second.waiting_seconds == 0.0
    assert second.seconds == first.seconds + second.round_seconds


def test_learns_from_a_late_reply_how_slow_a_device_has_become(server: DeviceServer) -> None:
    release = threading.Event()

    def slow(asked: Received) -> list[bytes]:
        if asked.kind == "train":
            release.wait(300)
        return honest(0, asked)

    Fake(server.address[1], 0, slow)
    devices = prepared(server, least=1, grace=0.0, deadline=0.2)
    assert run(devices, 0, [0]).clients.size == 0
    release.set()
    until(lambda: server.free == [0])
    run(devices, 1, [0])
    assert devices.measured_times[0] > 0.05


def test_leaves_the_model_as_it_is_when_nobody_answers(server: DeviceServer) -> None:
    for client in range(N):
        Fake(server.address[1], client, lambda asked, i=client: _silent(i, asked))  # type: ignore[misc]
    devices = prepared(server, deadline=0.2)
    reply = run(devices, 0)
    assert reply.clients.size == 0
    assert reply.updates.shape == (0, MODEL.size)
    assert reply.waited is not None
    assert reply.waited >= 0.2


def _silent(client: int, asked: Received) -> list[bytes] | None:
    return None if asked.kind == "train" else honest(client, asked)


def test_counts_a_drawn_client_that_has_just_left_as_missing(server: DeviceServer) -> None:
    fakes = [Fake(server.address[1], client) for client in range(N)]
    devices = prepared(server)
    fakes[1].close()
    until(lambda: 1 not in server.connected)
    reply = run(devices, 0)
    assert reply.clients.tolist() == [0, 2, 3]
    assert reply.refused.size == 0


def test_stops_when_nobody_ever_answers_an_evaluation(server: DeviceServer) -> None:
    def mute(client: int) -> Any:
        return lambda asked: None if asked.kind == "evaluate" else honest(client, asked)

    for client in range(N):
        Fake(server.address[1], client, mute(client))
    devices = prepared(server, deadline=0.1, patience=0.5)
    with pytest.raises(TooFewClientsError, match="run the same command again to go on"):
        evaluated(devices)


def evaluating_for(seconds: float, client: int) -> Any:
    """Take so long over an evaluation, and no time over anything else."""

    def answer(asked: Received) -> list[bytes]:
        if asked.kind == "evaluate":
            time.sleep(seconds)
        return honest(client, asked)

    return answer


def test_gives_an_evaluation_twice_as_long_each_time(server: DeviceServer) -> None:
    for client in range(N):
        Fake(server.address[1], client, evaluating_for(0.8, client))
    devices = prepared(server, deadline=0.025)
    with pytest.raises(TooFewClientsError, match=r"the last of 0\.1 s; .* with --deadline"):
        evaluated(devices)
    devices = prepared(server, deadline=0.3)  # the third attempt has 1.2 s
    assert evaluated(devices).accuracy == 0.5
    assert {reason for _, reason in devices.refusals} == {"late"}


def test_learns_from_late_answers_how_long_an_evaluation_takes(
    server: DeviceServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roster, "UNKNOWN", 0.05)  # 0.2 s in the third attempt
    for client in range(N):
        Fake(server.address[1], client, evaluating_for(0.3, client))
    devices = prepared(server, deadline=None)
    assert evaluated(devices).accuracy == 0.5


def test_says_what_is_wrong_with_its_arguments(server: DeviceServer) -> None:
    with pytest.raises(InputError, match="least must be from 1 to 4"):
        prepared(server, least=5)
    with pytest.raises(InputError, match="weights must be known, got none yet; call prepare"):
        DeviceBackend(server, MODEL, Seeds(0)).weights  # noqa: B018
    with pytest.raises(InputError, match=r"names must differ, got \['a', 'a'\]"):
        DeviceServer(["a", "a"])


def test_waits_for_those_who_left_just_now_but_not_for_those_long_away(
    server: DeviceServer,
) -> None:
    until(lambda: not server.expected(0.2))
    fakes = [Fake(server.address[1], client) for client in range(N)]
    until(lambda: len(server.connected) == N)
    fakes[3].close()
    until(lambda: 3 not in server.connected)
    server.give({}, floats=MODEL.size, accept=lambda *_: True)
    until(lambda: len(server.free) == N - 1)
    assert server.expected(1000.0) == [3]
    assert present(prepared(server, least=3, grace=0.2)) == [True, True, True, False]


def test_a_mute_device_does_not_hold_up_a_run_until_patience_ends(server: DeviceServer) -> None:
    for client in range(N):
        Fake(server.address[1], client, (lambda _: None) if client == 1 else None)
    for _ in range(2):  # each run
        devices = prepared(server, least=3, grace=0.2, patience=1000.0)
        assert present(devices) == [True, False, True, True]


def test_a_flapping_device_does_not_hold_up_a_run_until_patience_ends(
    server: DeviceServer,
) -> None:
    for client in range(N - 1):
        Fake(server.address[1], client)
    stop = threading.Event()

    def flap() -> None:
        while not stop.is_set():
            fake = Fake(server.address[1], N - 1, lambda _: None)
            until(lambda: N - 1 in server.connected or stop.is_set())
            fake.close()

    flapping = threading.Thread(target=flap)
    flapping.start()
    try:
        for _ in range(2):
            devices = prepared(server, least=3, grace=0.5, patience=1000.0)
            assert present(devices) == [True, True, True, False]
    finally:
        stop.set()
        flapping.join()
