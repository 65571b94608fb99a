"""Who is there: lets devices in, gives them the job, asks them, and notices who is gone."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from fedpace.network.connection import Connection, Question, Response, Tell
from fedpace.network.tls import certified_name
from fedpace.network.wire import Channel, Frame, FrameError, encoded
from fedpace.remote.roster import Roster

# Seconds for the TLS handshake, and for the device to say hello; then it is not let in.
HELLO = 20.0
# Devices that may knock at the same moment.
BACKLOG = 1024
# Replacing a connection so often within these seconds is no device that comes back.
OFTEN, WITHIN = 3, 60.0
# Seconds that devices are given to read the goodbye.
LEAVE = 5.0
GONE = (OSError, EOFError, TimeoutError)

logger = logging.getLogger(__name__)


class Assignment(NamedTuple):
    """The job that devices are to prepare for; `accept` looks at the answer of each."""

    number: int
    question: Question
    accept: Callable[[int, Frame], bool]


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
        self.away_since = dict.fromkeys(range(len(names)), time.monotonic())
        self._roster = Roster(names)
        self._refuse = refuse
        self._changed = changed
        self._assignment: Assignment | None = None
        self._closing = False
        self._replaced: dict[int, list[float]] = {}

    async def listen(
        self, host: str, port: int, tls: ssl.SSLContext | None, *, heartbeat: float, silence: float
    ) -> tuple[str, int]:
        """Begin to listen; return the address."""
        self._server = await asyncio.start_server(
            self._welcome,
            host,
            port,
            ssl=tls,
            backlog=BACKLOG,
            ssl_handshake_timeout=None if tls is None else HELLO,
        )
        self._heart = asyncio.create_task(self._beat(heartbeat, silence))
        address = self._server.sockets[0].getsockname()
        return str(address[0]), int(address[1])

    async def give(
        self, job: dict[str, Any], floats: int, accept: Callable[[int, Frame], bool]
    ) -> None:
        """Replace the job: those who are there get it now, others when they come."""
        number = self._assignment.number + 1 if self._assignment is not None else 1
        question = Question.about("job", -number, job=job, size=floats)
        self._assignment = Assignment(number, question, accept)
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

    async def end(self, *, goodbye: bool) -> None:
        """Take leave of all devices, stop listening, and close every connection."""
        self._closing = True
        self._server.close()
        for connection in self.connections.values() if goodbye else ():
            connection.channel.post(encoded("goodbye"))
        # The devices hang up: if we did, a sign of life on its way would reset the line, and the
        # goodbye would be lost.
        until = time.monotonic() + LEAVE
        while goodbye and self.connections and time.monotonic() < until:
            await asyncio.sleep(0.01)
        # The loop is ours alone: left are connections, some at their handshake, and the heartbeat.
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await self._server.wait_closed()
        await asyncio.sleep(0)  # until the last socket is closed

    async def _beat(self, heartbeat: float, silence: float) -> None:
        while True:
            await asyncio.sleep(heartbeat)
            for connection in list(self.connections.values()):
                if not connection.beat(silence):
                    logger.warning("%r: silent for too long", self._roster.names[connection.client])
                    connection.end()

    async def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        channel = Channel(reader, writer)
        try:
            if self._closing:  # it was at its handshake when we began to
                return
            async with asyncio.timeout(HELLO):
                client = await self._admitted(channel)
            if client is not None:
                await self._attend(client, channel)
        except (FrameError, *GONE) as error:
            logger.info("a connection ended: %r", error)
        except asyncio.CancelledError:
            pass  # the server is closing
        finally:
            channel.abort()

    async def _admitted(self, channel: Channel) -> int | None:
        """Return which client says hello, or None if it is not who it says."""
        frame = await channel.receive()
        name = str(frame.header.get("name"))
        reason = ""
        if frame.kind != "hello" or name not in self._roster:
            reason = "this name is not expected"
        elif channel.is_encrypted and certified_name(channel.certificate) != name:
            reason = "the certificate is for another name"
        if not reason:
            return self._roster.number(name)
        logger.warning("a device that calls itself %.40r is not let in: %s", name, reason)
        await channel.send(encoded("refused", message=reason))
        with contextlib.suppress(*GONE):
            await channel.closed()
        return None

    async def _attend(self, client: int, channel: Channel) -> None:
        connection = Connection(client, channel, self._refuse, self._freed)
        if client in self.connections:  # it came back before we noticed that it was gone
            self.connections[client].end()
            self._note_replaced(client)
        self.connections[client] = connection
        channel.post(encoded("welcome"))
        self._offer(connection)
        problem = "lost"
        try:
            await connection.attend()
        except FrameError as error:
            problem = "frame"
            self._refuse(client, problem, str(error))
        finally:
            connection.end(problem)
            if self.connections.get(client) is connection:
                self.away_since[client] = time.monotonic()
                del self.connections[client]
            self._changed()

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
            connection.prepared = ready and given.accept(connection.client, response.frame)
        if response.problem == "late":
            self.late.append(response)
        self._offer(connection)
        self._changed()
