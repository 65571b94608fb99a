"""Who is there: lets devices in, gives them the job, asks them, and notices who is gone."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import grpc

from fedpace.network.awaited import Awaited
from fedpace.network.connection import Connection, Question, Response, Tell
from fedpace.network.devices_pb2 import Said
from fedpace.network.wire import ProtocolError, Reader, Received
from fedpace.remote.roster import Roster

# Seconds for a device to say hello; then it is not let in.
HELLO = 20.0
# Replacing a connection so often within these seconds is no device that comes back.
OFTEN, WITHIN = 3, 60.0

logger = logging.getLogger(__name__)


class Assignment(NamedTuple):
    """The job that devices are to prepare for; `accept` looks at the answer of each."""

    number: int
    question: Question
    accept: Callable[[int, Received], bool]


class Lobby:
    """Keep the connections of all devices that are let in by name; lives in one event loop.

    `refuse` is told client, reason and details of everything that is not accepted; `changed` is
    called when who can be asked may have changed.
    """

    def __init__(
        self,
        names: Sequence[str],
        refuse: Callable[[int, str, str], None],
        changed: Callable[[], None],
    ) -> None:
        self.connections: dict[int, Connection] = {}
        self.late: list[Response] = []
        self.awaited = Awaited(len(names))
        self._roster = Roster(names)
        self._refuse = refuse
        self._changed = changed
        self._assignment: Assignment | None = None
        self._closing = False
        self._replaced: dict[int, list[float]] = {}

    async def give(self, job: str, floats: int, accept: Callable[[int, Received], bool]) -> None:
        """Replace the job: those who are there get it now, others when they come."""
        number = self._assignment.number + 1 if self._assignment is not None else 1
        question = Question.about("job", -number, json=job, size=floats)
        self._assignment = Assignment(number, question, accept)
        self.awaited.begin(set(self.connections))
        for connection in self.connections.values():
            connection.prepared = None
            self._offer(connection)

    async def ask(
        self, clients: Iterable[int], question: Question, tell: Tell, seconds: float
    ) -> None:
        """Ask clients, and do not wait: `tell` is called with what came of it, once for each."""
        for client in clients:
            if client in self.connections:
                self.connections[client].ask(question, tell, seconds)
            else:
                tell(Response.lost(client))

    async def end(self) -> None:
        """Take leave of all devices, and let nobody in any more."""
        self._closing = True
        for connection in self.connections.values():
            connection.end(politely=True)

    async def welcome(self, _: object, line: grpc.aio.ServicerContext) -> None:
        """Attend to a device for as long as its call lasts; this is the method of devices.proto."""
        client = await self._admitted(line)
        connection = Connection(client, line, self._refuse, self._freed)
        if client in self.connections:  # it came back before we noticed that it was gone
            self.connections[client].end()
            self._note_replaced(client)
        self.connections[client] = connection
        self.awaited.came(client)
        self._offer(connection)
        problem, status = "lost", grpc.StatusCode.ABORTED
        try:
            await connection.attend()
        except ProtocolError as error:
            problem, status = "protocol", grpc.StatusCode.INVALID_ARGUMENT
            self._refuse(client, problem, str(error))
        finally:
            connection.end(problem, politely=self._closing)
            if self.connections.get(client) is connection:
                self.awaited.left(client)
                del self.connections[client]
            self._changed()
        if not self._closing:
            await line.abort(status, "this connection is closed")
        await connection.drained()  # then it ends well, which is our goodbye

    async def _admitted(self, line: grpc.aio.ServicerContext) -> int:
        """Return which client says hello; end the call if it is not who it says."""
        if self._closing:
            await line.abort(grpc.StatusCode.UNAVAILABLE, "the server is closing")
        name = ""
        try:
            async with asyncio.timeout(HELLO):
                data = await line.read()
            if data is not grpc.aio.EOF and (said := Reader(Said).take(data)) is not None:
                name = said.fields.name if said.kind == "hello" else ""
        except TimeoutError:
            await line.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "no hello")
        except ProtocolError as error:
            await line.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        certified = line.auth_context().get("x509_common_name")
        if name not in self._roster:
            reason = "this name is not expected"
        elif certified is not None and certified != [name.encode()]:
            reason = "the certificate is for another name"
        else:
            return self._roster.number(name)
        logger.warning("a device that calls itself %.40r is not let in: %s", name, reason)
        await line.abort(grpc.StatusCode.PERMISSION_DENIED, reason)
        raise AssertionError  # abort raises

    def _note_replaced(self, client: int) -> None:
        """Say that two processes seem to have one name, if they replace each other."""
        now = time.monotonic()
        recent = [when for when in self._replaced.get(client, []) if now - when < WITHIN]
        self._replaced[client] = recent = [*recent, now]
        if len(recent) >= OFTEN:
            self._replaced[client] = []
            said = f"{OFTEN} new connections within {WITHIN:g} s, each while the last was open"
            self._refuse(client, "two at once", f"{said}; do two processes use its name?")

    def _offer(self, connection: Connection) -> None:
        """Give the job to a device that does not have it yet."""
        given = self._assignment
        if given is not None and connection.job != given.number and not connection.owes:
            connection.job = given.number
            connection.ask(given.question)

    def _freed(self, connection: Connection, response: Response) -> None:
        """Look at an answer; the device can be asked again."""
        given = self._assignment
        if given is not None and connection.prepared is None and connection.job == given.number:
            ready = not response.problem
            connection.prepared = ready and given.accept(connection.client, response.answer)
            if connection.prepared:
                self.awaited.prepared(connection.client)
        if response.problem == "late":
            self.late.append(response)
        self._offer(connection)
        self._changed()
