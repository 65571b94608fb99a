"""Devices at work without a barrier: each is sent out again as soon as there is room for it."""

import math
from pathlib import Path
from typing import Any

import numpy as np

from fedpace.devices.server import DeviceServer
from fedpace.samplers.build import sampler_for
from fedpace.seeds import Seeds
from fedpace.training.checkpoint import Checkpoint
from fedpace.training.history import Row
from fedpace.training.stopping import Stop, inverse
from fedpace.training.train import train
from tests.devices.fleet import N, Running, device, free_port, prepared, started, until
from tests.devices.lead import ABOUT


def streamed(devices: Any, rounds: int, **more: Any) -> list[Row]:
    how: dict[str, Any] = {"at_once": 2, "buffer": 2, "schedule": inverse(0.1)} | more
    how.setdefault("seeds", Seeds(0))
    sampler = sampler_for("uniform", 2, mode="asynchronous", buffer=2, times_known=False)
    stop = Stop(rounds=rounds)
    outcome = train(devices, sampler, mode="asynchronous", stop=stop, **how)
    return list(outcome.history.rows[1:])


def test_nobody_waits_for_the_slow(server: DeviceServer) -> None:
    for client in range(N):
        device(server.address[1], client, 0.6 if client == 3 else 0.05)
    rows = streamed(prepared(server, least=N), 12, evaluate_every=0)
    assert all(row.clients.size == 2 for row in rows)
    began = np.concatenate([row.began for row in rows])
    ended = began + np.concatenate([row.client_seconds for row in rows])
    clients = np.concatenate([row.clients for row in rows])
    assert set(clients.tolist()) == {0, 1, 2, 3}
    slow = np.flatnonzero(clients == 3)[0]
    during = (began >= began[slow]) & (ended <= ended[slow])
    assert during.sum() > 1  # others came back several times meanwhile
    for client in range(N):  # one task at a time
        mine = np.sort(np.flatnonzero(clients == client))
        assert (began[mine][1:] >= ended[mine][:-1] - 0.01).all()
    assert max(row.staleness.max() for row in rows) >= 1
    assert all(row.bytes_up.size == 2 for row in rows)


def test_devices_evaluate_after_as_many_updates_as_a_round_has(server: DeviceServer) -> None:
    for client in range(N):
        device(server.address[1], client, 0.02)
    sampler = sampler_for("uniform", 3, mode="asynchronous", buffer=1, times_known=False)
    how: dict[str, Any] = {"at_once": 3, "buffer": 1, "schedule": inverse(0.1), "seeds": Seeds(0)}
    # Every estimate promises this target, until it is checked.
    stop = Stop(rounds=10, loss=50.0, sustained=True)
    outcome = train(prepared(server, least=N), sampler, mode="asynchronous", stop=stop, **how)
    rows = outcome.history.rows
    assert [row.round for row in rows if row.evaluated] == [0, 3, 6, 9, 10]
    assert all(math.isfinite(row.loss) for row in rows)


def test_who_is_late_frees_its_slot_and_counts_when_it_answers(server: DeviceServer) -> None:
    for client in range(N):
        device(server.address[1], client, 1.0 if client == 3 else 0.2)
    rows = streamed(prepared(server, least=N, deadline=0.6), 16, evaluate_every=0)
    late = [row for row in rows if 3 in row.missing]
    assert late
    assert late[0].missing_seconds[late[0].missing.tolist().index(3)] > 0.5
    assert any(3 in row.clients for row in rows)
    assert all(row.clients.size + row.missing.size == 2 for row in rows)
    assert not any(row.refused.size for row in rows)


def test_a_late_answer_that_is_too_old_is_refused_and_counted(server: DeviceServer) -> None:
    for client in range(N):
        device(server.address[1], client, 1.0 if client == 3 else 0.1)
    rows = streamed(prepared(server, least=N, deadline=0.5), 16, evaluate_every=0, oldest=1)
    assert not any(3 in row.clients for row in rows)
    assert any(3 in row.refused for row in rows)


def test_goes_on_after_kill_9_at_any_moment(tmp_path: Path, processes: list[Running]) -> None:
    port, file = free_port(), tmp_path / "run.npz"
    devices = [device(port, client, 0.02) for client in range(N)]
    done = 0
    for _ in range(2):
        server = started("lead", port, file, 10**6, "asynchronous")
        processes.append(server)
        until(lambda done=done: file.exists() and rounds_in(file) > done + 3)  # type: ignore[misc]
        server.kill()
        server.wait()
        done = rounds_in(file)
    processes.append(started("lead", port, file, done + 5, "asynchronous"))
    assert processes[-1].wait(300) == 0
    found = Checkpoint(file, ABOUT).resume()
    assert found is not None
    assert [row.round for row in found.rows] == list(range(done + 6))
    assert np.all(np.diff([row.seconds for row in found.rows]) > 0)
    assert all(row.clients.size == 2 for row in found.rows[1:])
    for each in devices:
        each.join(300)
        assert not each.is_alive()  # the last server said goodbye


def rounds_in(file: Path) -> int:
    found = Checkpoint(file, ABOUT).resume()
    return 0 if found is None else found.state.round
