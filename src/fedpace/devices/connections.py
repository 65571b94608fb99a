"""The table of connected devices; each has at most one open question."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import grpc

from fedpace.devices.certificates import certified_names
from fedpace.devices.devices_pb2 import Asked, Said
from fedpace.devices.wire import (
    NO_FLOATS,
    Floats,
    MessageReader,
    ProtocolError,
    Received,
    encode,
)

# The expected answer to each kind of question.
ANSWERS = {"job": "ready", "train": "update", "evaluate": "counts"}
WELCOME = Asked(welcome={}).SerializeToString()
# Seconds for a device to read a question that it has already answered.
READ = 5.0
# Seconds for a device to say hello.
HELLO = 20.0
# Three replaced connections within a minute suggest that two processes share a name.
OFTEN, WITHIN = 3, 60.0
# Lines of the log about one device in that time.
LINES = 20
# Wait for a device to prepare at most this many times as long as for the slowest other.
PREPARING_OVER_SLOWEST = 10.0

logger = logging.getLogger(__name__)


class LogLimit:
    """Log at most `LINES` lines a minute about each device, and one about all strangers together.

    >>> limit = LogLimit(logging.getLogger("quiet"), clock=lambda: 0.0)
    >>> sum(limit.warn("device-00", "again") for _ in range(100)) == LINES
    True
    """

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log, self._clock = log, clock
        self._when: dict[str, list[float]] = {}

    def warn(self, about: str, text: str, *values: object) -> bool:
        """Log a line unless there are too many; return whether it was logged."""
        now = self._clock()
        recent = [when for when in self._when.get(about, []) if now - when < WITHIN]
        self._when[about] = recent
        if len(recent) >= LINES:
            return False
        recent.append(now)
        self._log.warning(text, *values)
        if len(recent) == LINES:
            of = repr(about) if about else "strangers"
            self._log.warning("%s: further lines within a minute are left out", of)
        return True


class Question(NamedTuple):
    """A question as messages, and the most numbers that its answer may have."""

    kind: str
    task: int
    messages: list[bytes]
    most_floats: int = 0

    @classmethod
    def about(
        cls,
        kind: str,
        task: int,
        floats: Floats = NO_FLOATS,
        *,
        most_floats: int = 0,
        **fields: Any,
    ) -> Question:
        """Encode a question."""
        return cls(kind, task, encode(Asked(task=task, **{kind: fields}), floats), most_floats)

    @property
    def length(self) -> int:
        """The bytes that cross the wire."""
        return sum(map(len, self.messages))


class Response(NamedTuple):
    """The outcome of a question, `seconds` after it was sent: a complete answer, or none.

    `problem` is empty, or why the answer cannot be used: "lost", "late", or what is wrong with it.
    """

    client: int
    answer: Received
    seconds: float
    bytes_down: int
    problem: str = ""

    @classmethod
    def lost(cls, client: int) -> Response:
        """Return the outcome of asking a device that is not connected."""
        return cls(client, Received(), 0.0, 0, "lost")


# Called once with the response to a question.
OnResponse = Callable[[Response], object]


@dataclass
class _Open:
    question: Question
    on_response: OnResponse
    sent: float = field(default_factory=time.monotonic)
    timer: asyncio.TimerHandle | None = None
    given_up: bool = False

    def close(self, response: Response) -> None:
        """Report the response, unless a deadline was reported before."""
        if self.timer is not None:
            self.timer.cancel()
        if not self.given_up:
            self.on_response(response)


class Connection:
    """Ask one device questions, and match its answers.

    A device that misses a deadline still owes the answer: it is not asked again until the answer
    comes, late, or the connection ends.

    Parameters
    ----------
    client, call : int, ServicerContext
        The device's number, and its call.
    refuse : callable
        Gets client, reason and details of everything that is not accepted.
    on_answer : callable
        Gets this connection and the response when the device can be asked again.
    """

    def __init__(
        self,
        client: int,
        call: grpc.aio.ServicerContext,
        refuse: Callable[[int, str, str], None],
        on_answer: Callable[[Connection, Response], None],
    ) -> None:
        self.client = client
        self.job = 0  # the number of the latest job sent to it
        self.prepared: bool | None = None  # for the job; None until its answer is checked
        self._call = call
        self._reader = MessageReader(Said)
        self._refuse = refuse
        self._on_answer = on_answer
        self._open: _Open | None = None
        self._ended = False
        self._receiving = asyncio.create_task(self._receive())
        self._sending = asyncio.create_task(self._send([WELCOME]))

    @property
    def busy(self) -> bool:
        """Whether an answer is still to come."""
        return self._open is not None

    def ask(
        self,
        question: Question,
        on_response: OnResponse = lambda _: None,
        seconds: float | None = None,
    ) -> None:
        """Send a question; `on_response` is called after `seconds` at the latest, if given."""
        if self._ended or self.busy:
            on_response(Response.lost(self.client))
            return
        self._open = _Open(question, on_response)
        if seconds is not None:
            self._open.timer = asyncio.get_running_loop().call_later(seconds, self._give_up)
        self._reader.most_floats = question.most_floats
        self._sending = asyncio.create_task(self._send(question.messages, self._sending))

    async def receive(self) -> None:
        """Receive until the connection ends; ProtocolError if the device violates the protocol."""
        await asyncio.wait([self._receiving])
        if not self._receiving.cancelled():
            self._receiving.result()

    def end(self, problem: str = "lost", *, flush: bool = False) -> None:
        """Close the connection and report an open question as failed.

        With `flush` the device may still read what is being sent: see `drain`.
        """
        self._ended = True
        self.prepared = False
        self._receiving.cancel()
        if not flush:
            self._sending.cancel()
        opened, self._open = self._open, None
        if opened is not None:
            opened.close(self._response(opened, Received(), problem))

    async def drain(self) -> None:
        """Wait a few seconds for the device to read what was sent."""
        await asyncio.wait([self._sending], timeout=READ)
        self._sending.cancel()

    async def _send(self, messages: list[bytes], after: asyncio.Task[None] | None = None) -> None:
        if after is not None:
            await after
        for each in messages:
            await self._call.write(each)  # waits while the device does not read

    async def _receive(self) -> None:
        while (data := await self._call.read()) is not grpc.aio.EOF:
            if self._open is None:
                raise ProtocolError("a message that was not asked for")
            if not self._sending.done():
                await self._wait_until_read()
            if (answer := self._reader.take(data)) is not None and self._open is not None:
                self._take(self._open, answer)
            del data, answer  # free the memory before the next message

    async def _wait_until_read(self) -> None:
        """Refuse an answer to a question that the device does not read within seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(READ):
                await asyncio.shield(self._sending)
        if not self._sending.done():
            raise ProtocolError("an answer to what it has not read")

    def _give_up(self) -> None:
        assert self._open is not None
        self._open.given_up = True
        self._open.on_response(self._response(self._open, Received(), "late"))

    def _take(self, opened: _Open, answer: Received) -> None:
        problem = self._problem(opened, answer)
        response = self._response(opened, answer, problem)
        if problem:
            # Quoted, so that a device cannot forge log lines.
            said = f"{answer.fields.message!r:.200}" if answer.kind == "failed" else answer.kind
            self._refuse(self.client, problem, said)
        self._open = None
        self._reader.most_floats = 0
        self._on_answer(self, response)
        opened.close(response)  # last, because the next question may follow at once

    def _problem(self, opened: _Open, answer: Received) -> str:
        if answer.kind == "failed":
            return "failed"
        if answer.task != opened.question.task:
            return "another round"
        if answer.kind != ANSWERS[opened.question.kind]:
            return "another answer"
        return "late" if opened.given_up else ""

    def _response(self, opened: _Open, answer: Received, problem: str) -> Response:
        seconds = time.monotonic() - opened.sent
        return Response(self.client, answer, seconds, opened.question.length, problem)


class Absences:
    """Decide how long to wait for each of n clients before training starts on a job.

    Only the first time counts that a client leaves or starts to prepare: a device that comes and
    goes, or that never answers, delays the start no more than another.

    >>> now = 0.0
    >>> absences = Absences(2, clock=lambda: now)
    >>> absences.is_over(0, connected=False, grace=5.0)
    False
    >>> now = 6.0
    >>> absences.connect(0)  # it prepares
    >>> [absences.is_over(i, connected=i == 0, grace=5.0) for i in (0, 1)]
    [False, True]
    """

    def __init__(self, n: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._gone = dict.fromkeys(range(n), clock())  # when each was last connected
        self._left = dict(self._gone)
        self._came: dict[int, float] = {}
        self._longest = 0.0

    def begin(self, connected: Iterable[int]) -> None:
        """Start with a new job, which the connected clients get now."""
        self._came = dict.fromkeys(connected, self._clock())
        self._left = {i: when for i, when in self._gone.items() if i not in self._came}
        self._longest = 0.0

    def connect(self, client: int) -> None:
        """Note that a client is connected and gets the job."""
        self._came.setdefault(client, self._clock())

    def disconnect(self, client: int) -> None:
        """Note that a client is gone."""
        self._gone[client] = self._clock()
        self._left.setdefault(client, self._gone[client])

    def finish(self, client: int) -> None:
        """Note that a client is prepared."""
        self._longest = max(self._longest, self._clock() - self._came[client])

    def is_over(self, client: int, *, connected: bool, grace: float) -> bool:
        """Return whether an unprepared client has been waited for long enough."""
        if not connected:
            return self._clock() - self._left[client] >= grace
        most = max(grace, PREPARING_OVER_SLOWEST * self._longest)
        return self._clock() - self._came[client] >= most


class Assignment(NamedTuple):
    """The job that devices prepare for; `accept` checks the answer of each."""

    number: int
    question: Question
    accept: Callable[[int, Received], bool]


class ConnectionTable:
    """Admit devices by name, give them the job and ask them questions, in one event loop.

    `refuse` gets client, reason and details of everything that is not accepted; `changed` is called
    when other devices may have become free.
    """

    def __init__(
        self,
        names: Sequence[str],
        refuse: Callable[[int, str, str], None],
        changed: Callable[[], None],
    ) -> None:
        self.connections: dict[int, Connection] = {}
        self.late: list[Response] = []
        self._numbers = {name: client for client, name in enumerate(names)}
        self._absences = Absences(len(names))
        self._refuse = refuse
        self._changed = changed
        self._assignment: Assignment | None = None
        self._closing = False
        self._replaced: dict[int, list[float]] = {}
        self._log = LogLimit(logger)

    def where(self, condition: Callable[[Connection], bool]) -> list[int]:
        """Return the connected clients for which a condition holds; any thread may call it."""
        return sorted(i for i, each in self.connections.copy().items() if condition(each))

    def expected(self, grace: float) -> list[int]:
        """Return the unprepared clients that are still worth waiting for.

        These are clients that left less than `grace` seconds ago, and clients that prepare: for as
        long, and for up to ten times as long as the slowest other took.
        """
        prepared = {i: each.prepared for i, each in self.connections.copy().items()}
        return [
            i
            for i in self._numbers.values()
            if prepared.get(i) is None
            and not self._absences.is_over(i, connected=i in prepared, grace=grace)
        ]

    async def give(self, job: str, floats: int, accept: Callable[[int, Received], bool]) -> None:
        """Replace the job: connected devices get it now, others when they join."""
        number = self._assignment.number + 1 if self._assignment is not None else 1
        question = Question.about("job", -number, json=job, size=floats)
        self._assignment = Assignment(number, question, accept)
        self._absences.begin(self.connections)
        for connection in self.connections.values():
            connection.prepared = None
            self._offer(connection)

    async def ask(
        self, clients: Iterable[int], question: Question, on_response: OnResponse, seconds: float
    ) -> None:
        """Ask clients without waiting; `on_response` is called once for each."""
        for client in clients:
            if client in self.connections:
                self.connections[client].ask(question, on_response, seconds)
            else:
                on_response(Response.lost(client))

    async def end(self) -> None:
        """Say goodbye to all devices, and admit no more."""
        self._closing = True
        for connection in self.connections.values():
            connection.end(flush=True)

    async def attend(self, _: object, call: grpc.aio.ServicerContext) -> None:
        """Serve a device for the duration of its call: the method of devices.proto."""
        client = await self._admit(call)
        connection = Connection(client, call, self._refuse, self._on_answer)
        if client in self.connections:  # it came back before its loss was noticed
            self.connections[client].end()
            self._note_replaced(client)
        self.connections[client] = connection
        self._absences.connect(client)
        self._offer(connection)
        problem, status = "lost", grpc.StatusCode.ABORTED
        try:
            await connection.receive()
        except ProtocolError as error:
            problem, status = "protocol", grpc.StatusCode.INVALID_ARGUMENT
            self._refuse(client, problem, str(error))
        finally:
            connection.end(problem, flush=self._closing)
            if self.connections.get(client) is connection:
                self._absences.disconnect(client)
                del self.connections[client]
            self._changed()
        if not self._closing:
            await call.abort(status, "this connection is closed")
        await connection.drain()  # then the call ends with status OK, which means goodbye

    async def _admit(self, call: grpc.aio.ServicerContext) -> int:
        """Return the client that says hello; abort the call unless its name is its own."""
        if self._closing:
            await call.abort(grpc.StatusCode.UNAVAILABLE, "the server is closing")
        name = ""
        try:
            async with asyncio.timeout(HELLO):
                data = await call.read()
            if data is not grpc.aio.EOF and (said := MessageReader(Said).take(data)) is not None:
                name = said.fields.name if said.kind == "hello" else ""
        except TimeoutError:
            await call.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "no hello")
        except ProtocolError as error:
            await call.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        # Not gRPC's x509_common_name, which ends at a NUL and leaves out further names.
        certified = call.auth_context().get("x509_pem_cert")
        if name not in self._numbers:
            reason = "this name is not expected"
        elif certified is not None and [*map(certified_names, certified)] != [[name]]:
            reason = "the certificate is for another name"
        else:
            return self._numbers[name]
        about = name if name in self._numbers else ""
        self._log.warn(about, "a device named %.40r is not admitted: %s", name, reason)
        await call.abort(grpc.StatusCode.PERMISSION_DENIED, reason)
        raise AssertionError  # abort raises

    def _note_replaced(self, client: int) -> None:
        now = time.monotonic()
        recent = [when for when in self._replaced.get(client, []) if now - when < WITHIN]
        self._replaced[client] = recent = [*recent, now]
        if len(recent) >= OFTEN:
            self._replaced[client] = []
            said = f"{OFTEN} new connections within {WITHIN:g} s, each while the last was open"
            self._refuse(client, "two at once", f"{said}; do two processes use its name?")

    def _offer(self, connection: Connection) -> None:
        """Send the job to a device that does not have it yet."""
        given = self._assignment
        if given is not None and connection.job != given.number and not connection.busy:
            connection.job = given.number
            connection.ask(given.question)

    def _on_answer(self, connection: Connection, response: Response) -> None:
        given = self._assignment
        if given is not None and connection.prepared is None and connection.job == given.number:
            ready = not response.problem
            connection.prepared = ready and given.accept(connection.client, response.answer)
            if connection.prepared:
                self._absences.finish(connection.client)
        if response.problem == "late":
            self.late.append(response)
        self._offer(connection)
        self._changed()
