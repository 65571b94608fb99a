"""Any order of comings, goings, answers and nonsense, against a real server on loopback."""

from collections import Counter
from queue import Empty, SimpleQueue
from typing import Any

import grpc
import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from fedpace.devices.connections import Response
from fedpace.devices.devices_pb2 import Said
from fedpace.devices.server import DeviceServer
from fedpace.devices.wire import NO_FLOATS, encode
from tests.devices.fakes import Line
from tests.devices.fleet import until

NAMES = ["attic", "cellar", "kitchen"]
SIZE = 5
UPDATE = np.ones(SIZE, dtype=np.float32)
WRONG = {
    "another round": lambda task: Said(task=task + 7, update={}),
    "another answer": lambda task: Said(task=task, counts={}),
    "failed": lambda task: Said(task=task, failed={"message": "no"}),
}
NONSENSE = {
    "no_message": [b"\xff\xff"],
    "no_kind": [b""],
    "too_much": encode(Said(update={}), np.ones(SIZE + 1, dtype=np.float32)),
    "short_part": encode(Said(part={"numbers": b"abcd"})),
}
clients = st.integers(0, len(NAMES) - 1)


class Protocol(RuleBasedStateMachine):
    """What the server must know, beside what it says that it knows."""

    @initialize()
    def begin(self) -> None:
        self.server = DeviceServer(NAMES)
        self.server.give({}, floats=SIZE, accept=lambda _, said: bool(said.fields.samples > 0))
        self.lines: dict[int, Line] = {}
        self.preparing: set[int] = set()
        self.ready: set[int] = set()
        self.owed: dict[int, tuple[int, bool]] = {}  # the task, and whether it was given up
        self.refusals: Counter[tuple[int, str]] = Counter()
        self.told: SimpleQueue[Response] = SimpleQueue()
        self.late = 0

    def teardown(self) -> None:
        if hasattr(self, "server"):
            self.server.close()
            for line in self.lines.values():
                assert line.status is grpc.StatusCode.OK  # a goodbye
                line.close()

    @rule(client=clients)
    def comes(self, client: int) -> None:
        line = Line(self.server.address[1], NAMES[client])
        assert line.next().kind == "welcome"
        asked = line.next()
        assert (asked.kind, asked.task) == ("job", -1)
        if client in self.lines:  # the new line replaces the old
            old = self.lines.pop(client)
            assert old.status is grpc.StatusCode.ABORTED
            old.close()
            self.gone(client, "lost")
        self.lines[client] = line
        self.preparing.add(client)

    @rule(name=st.text(max_size=30).filter(lambda name: name not in NAMES))
    def a_stranger_comes(self, name: str) -> None:
        stranger = Line(self.server.address[1], name)
        assert stranger.status is grpc.StatusCode.PERMISSION_DENIED
        stranger.close()

    @precondition(lambda self: self.preparing)
    @rule(data=st.data(), samples=st.sampled_from([1, 10, 0]))
    def is_ready(self, data: Any, samples: int) -> None:
        client = data.draw(st.sampled_from(sorted(self.preparing)))
        self.preparing.remove(client)
        self.lines[client].say(*encode(Said(task=-1, ready={"samples": samples})))
        if samples:
            self.ready.add(client)
        else:  # it is not let in for this job, but stays
            until(lambda: client not in self.server.preparing)

    @rule(client=clients, seconds=st.sampled_from([60.0, 60.0, 0.01]))
    def is_asked(self, client: int, seconds: float) -> None:
        self.settled()
        model = np.zeros(SIZE, dtype=np.float32)
        free = client in self.lines and client not in self.preparing and client not in self.owed
        task = self.server.ask(
            "train", [client], model, self.told.put, seconds=seconds, most_floats=SIZE
        )
        if not free:
            return self.is_told(client, "lost")
        asked = self.lines[client].next()
        assert (asked.kind, asked.task, asked.floats.size) == ("train", task, SIZE)
        if seconds < 1:
            self.is_told(client, "late")
        self.owed[client] = task, seconds < 1
        return None

    @precondition(lambda self: self.owed)
    @rule(data=st.data(), problem=st.sampled_from(["", "", *WRONG]))
    def answers(self, data: Any, problem: str) -> None:
        client = data.draw(st.sampled_from(sorted(self.owed)))
        task, given_up = self.owed.pop(client)
        said = WRONG[problem](task) if problem else Said(task=task, update={})
        self.lines[client].say(*encode(said, UPDATE if not problem else NO_FLOATS))
        problem = problem or ("late" if given_up else "")
        self.refusals.update([(client, problem)] if problem else [])
        self.late += problem == "late"
        if not given_up:
            self.is_told(client, problem)

    @precondition(lambda self: self.lines)
    @rule(data=st.data(), what=st.sampled_from(sorted(NONSENSE)))
    def talks_nonsense(self, data: Any, what: str) -> None:
        client = data.draw(st.sampled_from(sorted(self.lines)))
        line = self.lines.pop(client)
        line.say(*NONSENSE[what])
        assert line.status is grpc.StatusCode.INVALID_ARGUMENT
        line.close()
        self.refusals[client, "protocol"] += 1
        self.gone(client, "protocol")

    @precondition(lambda self: self.lines)
    @rule(data=st.data())
    def leaves(self, data: Any) -> None:
        client = data.draw(st.sampled_from(sorted(self.lines)))
        self.lines.pop(client).close()
        self.gone(client, "lost")

    @invariant()
    def settled(self) -> None:
        """What the server knows becomes what is so."""
        if not hasattr(self, "server"):
            return
        until(lambda: self.server.connected == sorted(self.lines))
        until(lambda: self.server.free == sorted(self.ready - self.owed.keys()))
        until(lambda: set(self.server.preparing) == self.preparing)
        until(lambda: self._refused() == self.refusals)
        assert self.told.empty()
        self.late -= len(self.server.late())
        assert self.late == 0

    def gone(self, client: int, problem: str) -> None:
        self.preparing.discard(client)
        self.ready.discard(client)
        _, given_up = self.owed.pop(client, (0, True))
        if not given_up:
            self.is_told(client, problem)

    def is_told(self, client: int, problem: str) -> None:
        """Whoever asked is told once, and of nothing else."""
        try:
            response = self.told.get(timeout=300)
        except Empty:
            raise AssertionError(f"nobody was told: {problem}") from None
        assert (response.client, response.problem) == (client, problem)

    def _refused(self) -> Counter[tuple[int, str]]:
        """Return what was refused; how often one came back too soon depends on the clock."""
        with_clock = self.server.refusals.copy()
        return Counter({key: n for key, n in with_clock.items() if key[1] != "two at once"})


@pytest.mark.slow
def test_the_server_knows_what_is_so_whatever_devices_do() -> None:
    how = settings(max_examples=15, stateful_step_count=20, deadline=None)
    run_state_machine_as_test(Protocol, settings=how)
