"""Asynchronous tasks: given out one after another, collected as the replies come."""

import threading
import time

from fedpace.devices.devices_pb2 import Said
from fedpace.devices.server import DeviceServer
from fedpace.devices.wire import Received, encode
from tests.devices.fakes import Answer, Fake, honest
from tests.devices.fleet import KNOWN, MODEL, N, prepared, present, task


class Gates:
    """Let each client answer a task only when its gate is opened."""

    def __init__(self) -> None:
        self.gates = [threading.Semaphore(0) for _ in range(N)]
        self.rounds: list[tuple[int, int]] = []

    def open(self, *clients: int) -> None:
        for client in clients:
            self.gates[client].release()

    def answer(self, client: int) -> Answer:
        def answer(asked: Received) -> list[bytes]:
            if asked.kind == "train":
                self.rounds.append((client, asked.fields.round))
                assert self.gates[client].acquire(timeout=300)
            return honest(client, asked)

        return answer


def gated(server: DeviceServer) -> Gates:
    gates = Gates()
    for client in range(N):
        Fake(server.address[1], client, gates.answer(client))
    return gates


def test_a_device_is_preparing_until_its_answer_was_looked_at(server: DeviceServer) -> None:
    seen: list[list[int]] = []
    looked = threading.Event()

    def accept(client: int, answer: Received) -> bool:
        seen.append(server.preparing)
        looked.set()
        return True

    Fake(server.address[1], 0)
    server.give({}, floats=MODEL.size, accept=accept)
    assert looked.wait(300)
    assert seen == [[0]]


def test_tasks_of_single_clients_come_back_one_at_a_time(server: DeviceServer) -> None:
    gates = gated(server)
    devices = prepared(server, memory=KNOWN)
    began = time.monotonic()
    for client in range(N):
        devices.submit(task(devices.initial(), [client], round_index=client))
    waited = 0.0
    for client in (2, 0, 3, 1):
        gates.open(client)
        reply = devices.collect(1)
        assert reply.clients.tolist() == [client]
        assert reply.updates.shape == (1, MODEL.size)
        assert reply.waited is not None
        waited += reply.waited
    # The clock misses nothing and counts nothing twice.
    assert 0 < waited <= time.monotonic() - began
    assert sorted(gates.rounds) == [(client, client) for client in range(N)]
    assert devices.collect().lasted == 0.0


def test_a_client_that_answered_gets_the_next_task_while_others_are_at_work(
    server: DeviceServer,
) -> None:
    gates = gated(server)
    devices = prepared(server, memory=KNOWN)  # those at work are there
    devices.submit(task(devices.initial(), range(N)))
    gates.open(2)
    assert devices.collect(1).clients.tolist() == [2]
    assert present(devices) == [False, False, True, False]
    devices.submit(task(devices.initial(), [2], round_index=1))
    gates.open(2)
    assert devices.collect(1).clients.tolist() == [2]
    gates.open(0, 1, 3)
    rest = devices.collect()
    assert rest.clients.tolist() == [0, 1, 3]
    assert rest.waited is not None
    assert (2, 1) in gates.rounds


def test_the_next_two_replies_are_collected_and_then_the_rest(server: DeviceServer) -> None:
    gates = gated(server)
    devices = prepared(server, memory=KNOWN)
    devices.submit(task(devices.initial(), range(N)))
    gates.open(1, 3)
    assert devices.collect(2).clients.tolist() == [1, 3]
    gates.open(0, 2)
    assert devices.collect(5).clients.tolist() == [0, 2]


def test_who_fails_is_lost_or_late_counts_as_collected(server: DeviceServer) -> None:
    def failing(asked: Received) -> list[bytes] | None:
        return encode(Said(task=asked.task, failed={})) if asked.kind == "train" else None

    def leaving(asked: Received) -> list[bytes] | None:
        if asked.kind == "train":
            raise ConnectionResetError
        return None

    def silent(asked: Received) -> list[bytes] | None:
        return [] if asked.kind == "train" else None

    for client, bad in enumerate((None, failing, leaving, silent)):
        Fake(
            server.address[1],
            client,
            lambda asked, i=client, bad=bad: _or_honest(i, asked, bad),  # type: ignore[misc]
        )
    devices = prepared(server, deadline=2.0, memory=KNOWN)
    for client in range(N):
        devices.submit(task(devices.initial(), [client]))
    replies = [devices.collect(1) for _ in range(N)]
    assert sorted(reply.clients.tolist() for reply in replies) == [[], [], [], [0]]
    assert sorted(reply.refused.tolist() for reply in replies) == [[], [], [], [1]]
    assert replies[-1].clients.size == 0  # the silent one, at its deadline
    assert sum(reply.lasted for reply in replies) >= 2.0


def _or_honest(client: int, asked: Received, bad: Answer | None) -> list[bytes] | None:
    answer = None if bad is None else bad(asked)
    return honest(client, asked) if answer is None else answer


def test_nobody_is_asked_for_an_evaluation_that_is_not_due(server: DeviceServer) -> None:
    kinds: list[str] = []

    def noting(asked: Received) -> list[bytes]:
        kinds.append(asked.kind)
        return honest(0, asked)

    Fake(server.address[1], 0, noting)
    devices = prepared(server, least=1, grace=0.0)
    assert devices.evaluate(devices.initial(), due=False) is None
    assert kinds == ["job"]


def test_the_first_replies_are_held_until_all_but_one_have_answered(server: DeviceServer) -> None:
    gates = gated(server)
    devices = prepared(server)
    for client in range(N):
        devices.submit(task(devices.initial(), [client]))
    for client in range(2):
        gates.open(client)
        reply = devices.collect(1)
        assert (reply.clients.tolist(), reply.missing.tolist()) == ([], [])
        assert reply.held.tolist() == list(range(client + 1))
    assert present(devices) == [False] * N  # held clients are not drawn again
    gates.open(2)
    assert devices.collect(1).clients.tolist() == [0, 1, 2]
    gates.open(3)
    assert devices.collect(1).clients.tolist() == [3]


def test_collecting_all_hands_over_what_is_held(server: DeviceServer) -> None:
    gates = gated(server)
    devices = prepared(server)
    devices.submit(task(devices.initial(), [0, 1]))
    gates.open(0)
    assert devices.collect(1).held.tolist() == [0]
    gates.open(1)
    reply = devices.collect()
    assert (reply.clients.tolist(), reply.held.tolist()) == ([0, 1], [])
