"""The server dies, or its disk is full: what was done stays done."""

import threading
from pathlib import Path

import numpy as np
import pytest

from fedpace.devices.backend import DeviceBackend
from fedpace.devices.server import DeviceServer
from fedpace.errors import InputError, TooFewClientsError
from fedpace.seeds import Seeds
from fedpace.training.checkpoint import Checkpoint
from fedpace.training.history import Row
from tests.devices.fakes import Fake, honest
from tests.devices.fleet import (
    MODEL,
    NAMES,
    SEED,
    N,
    Running,
    device,
    free_port,
    joined,
    prepared,
    present,
    simulator,
    started,
    until,
)
from tests.devices.lead import ABOUT, trained

ROUNDS = 30


def rows_in(file: Path) -> list[Row]:
    found = Checkpoint(file, ABOUT).resume()
    return [] if found is None else list(found.rows)


@pytest.mark.parametrize(
    "moments",
    [(0.05, 0.2), pytest.param((0.11, 0.34), marks=pytest.mark.slow)],
    ids=["early", "later"],
)
def test_goes_on_from_its_checkpoint_after_kill_9_at_any_moment(
    tmp_path: Path, processes: list[Running], moments: tuple[float, float]
) -> None:
    port, file = free_port(), tmp_path / "run.npz"
    devices = [device(port, client, 0.02) for client in range(N)]
    for moment in moments:
        before = len(rows_in(file)) if file.exists() else 0
        server = started("lead", port, file, ROUNDS)
        processes.append(server)
        until(lambda before=before: file.exists() and len(rows_in(file)) > before)  # type: ignore[misc]
        threading.Event().wait(moment)
        server.kill()
        server.wait()
    assert 0 < len(rows_in(file)) < ROUNDS
    processes.append(started("lead", port, file, ROUNDS))
    assert processes[-1].wait(300) == 0
    rows = rows_in(file)
    assert [row.round for row in rows] == list(range(ROUNDS + 1))
    assert np.all(np.diff([row.seconds for row in rows]) > 0)
    expected = trained(simulator(), tmp_path / "simulated.npz", ROUNDS)
    assert [row.clients.tolist() for row in rows] == [row.clients.tolist() for row in expected]
    np.testing.assert_allclose(
        [row.loss for row in rows], [row.loss for row in expected], rtol=1e-5
    )
    for each in devices:
        each.join(300)
        assert not each.is_alive()  # the last server said goodbye


def test_stops_with_its_state_saved_when_too_few_devices_are_left(
    server: DeviceServer, tmp_path: Path
) -> None:
    fakes = [Fake(server.address[1], client) for client in range(N)]
    devices = prepared(server, least=3, patience=0.5)
    file = tmp_path / "run.npz"
    leave = [threading.Timer(0.2, fake.close) for fake in fakes[:2]]
    for timer in leave:
        timer.start()
    with pytest.raises(TooFewClientsError, match="run the same command again to go on"):
        trained(devices, file, rounds=10**6)
    for timer in leave:
        timer.join()
    done = rows_in(file)
    assert [row.round for row in done] == list(range(len(done)))
    for client in range(2):
        Fake(server.address[1], client)
    until(lambda: len(server.free) == N)
    rows = trained(devices, file, rounds=len(done) + 5)
    assert [row.round for row in rows] == list(range(len(done) + 6))


def test_a_full_disk_stops_training_and_leaves_the_previous_checkpoint(
    server: DeviceServer, small_disk: Path
) -> None:
    for client in range(N):
        Fake(server.address[1], client)
    devices = prepared(server)
    file = small_disk / "run.npz"
    with pytest.raises(InputError, match=r"run.npz: cannot be written: No space left on device"):
        trained(devices, file, rounds=10**6)  # the rows fill it
    done = rows_in(file)
    assert len(done) > 3
    assert [row.round for row in done] == list(range(len(done)))
    assert list(small_disk.iterdir()) == [file]


def test_devices_outlive_servers_that_close_without_a_goodbye(
    processes: list[Running],
) -> None:
    port = free_port()
    processes += [joined(port, client) for client in range(2)]
    for _ in range(2):
        server = DeviceServer([f"device-{i}" for i in range(2)], port=port)
        until(lambda server=server: server.connected == [0, 1])  # type: ignore[misc]
        server.close(goodbye=False)
    with DeviceServer([f"device-{i}" for i in range(2)], port=port) as server:
        until(lambda: server.connected == [0, 1])
    assert [process.wait(300) for process in processes] == [0, 0]


def test_devices_outlive_a_server_that_ends_with_an_error() -> None:
    server = DeviceServer(["device-0"])
    fake = Fake(server.address[1], 0)
    until(lambda: server.connected == [0])
    with pytest.raises(InputError), server:
        raise InputError("no space left")
    fake.join()
    assert not fake.told_goodbye
    with DeviceServer(["device-0"]) as server:
        fake = Fake(server.address[1], 0)
        until(lambda: server.connected == [0])
    fake.join()
    assert fake.told_goodbye


def test_weights_and_counts_outlive_a_server() -> None:
    with DeviceServer(NAMES) as server:
        for client in range(N):
            Fake(server.address[1], client)
        before = prepared(server)
    with DeviceServer(NAMES) as server:
        for client in range(N - 2):
            Fake(server.address[1], client)
        settings = {"least": N - 2, "patience": 20.0, "grace": 0.0}
        after = DeviceBackend(server, MODEL, Seeds(SEED), **settings)  # type: ignore[arg-type]
        after.prepare({"seed": SEED}, before.samples)
        np.testing.assert_array_equal(after.weights, before.weights)
        assert after.samples == before.samples == dict(zip(NAMES, (10, 20, 30, 40), strict=True))
        Fake(server.address[1], 2, lambda asked: honest(2, asked, samples=10**6))
        Fake(server.address[1], 3)
        until(lambda: after.refusals[2, "samples"] and present(after)[3])
        assert present(after) == [True, True, False, True]


def test_weights_of_a_run_do_not_change_when_others_are_there_after_a_restart() -> None:
    with DeviceServer(NAMES) as server:
        for client in range(N - 1):
            Fake(server.address[1], client)
        before = prepared(server, least=N - 1, grace=0.0)
    with DeviceServer(NAMES) as server:
        for client in range(N):
            Fake(server.address[1], client)
        after = DeviceBackend(server, MODEL, Seeds(SEED), least=N, patience=300.0)
        after.prepare({"seed": SEED}, before.samples)
        np.testing.assert_array_equal(after.weights, before.weights)
        with pytest.raises(InputError, match="those that the run began with, got none named 'x'"):
            after.prepare({"seed": SEED}, {"x": 3})


def test_says_which_address_is_taken(server: DeviceServer) -> None:
    port = server.address[1]
    with pytest.raises(InputError, match=rf"got 127.0.0.1:{port}: .*; choose another"):
        DeviceServer(["device-0"], port=port)
