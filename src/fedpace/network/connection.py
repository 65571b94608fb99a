"""The server's end of one device's line: at most one question at a time is open."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import grpc

from fedpace.network.devices_pb2 import Asked, Said
from fedpace.network.wire import NO_FLOATS, Floats, ProtocolError, Reader, Received, written

# What each kind of question is answered with.
ANSWERS = {"job": "ready", "train": "update", "evaluate": "counts"}
WELCOME = Asked(welcome={}).SerializeToString()
# Seconds in which what has been answered must have been read.
READ = 5.0


class Question(NamedTuple):
    """What a device is asked: the messages to send, and what the answer must be."""

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
        """Write the question down."""
        return cls(kind, task, written(Asked(task=task, **{kind: fields}), floats), most_floats)

    @property
    def length(self) -> int:
        """The bytes that cross the wire."""
        return sum(map(len, self.messages))


class Response(NamedTuple):
    """What came of a question, `seconds` after it was sent: a whole answer, or none.

    `problem` is empty, or says why no answer can be used: "lost", "late", or what is wrong with it.
    """

    client: int
    answer: Received
    seconds: float
    bytes_down: int
    problem: str = ""

    @classmethod
    def lost(cls, client: int) -> Response:
        """Return what comes of asking someone who is not there."""
        return cls(client, Received(), 0.0, 0, "lost")


Tell = Callable[[Response], object]


@dataclass
class _Open:
    question: Question
    tell: Tell
    sent: float = field(default_factory=time.monotonic)
    timer: asyncio.TimerHandle | None = None
    given_up: bool = False

    def close(self, response: Response) -> None:
        """Tell who asked, unless they were told that it is given up."""
        if self.timer is not None:
            self.timer.cancel()
        if not self.given_up:
            self.tell(response)


class Connection:
    """Ask a device, and match what it says with what it was asked.

    A device that did not answer in time owes the answer still: it is not asked again until the
    answer comes, late, or the connection ends. `line` is the context of the device's call. `refuse`
    is told of everything that is not accepted, `freed` when an answer has come and the device can
    be asked again.
    """

    def __init__(
        self,
        client: int,
        line: grpc.aio.ServicerContext,
        refuse: Callable[[int, str, str], None],
        freed: Callable[[Connection, Response], None],
    ) -> None:
        self.client = client
        self.job = 0  # the number of the job that it was given last
        self.prepared: bool | None = None  # for the job; None until its answer was looked at
        self._line = line
        self._reader = Reader(Said)
        self._refuse = refuse
        self._freed = freed
        self._open: _Open | None = None
        self._gone = False
        self._receiving = asyncio.create_task(self._receive())
        self._sending = asyncio.create_task(self._send([WELCOME]))

    @property
    def owes(self) -> bool:
        """Whether an answer is still to come."""
        return self._open is not None

    def ask(
        self, question: Question, tell: Tell = lambda _: None, seconds: float | None = None
    ) -> None:
        """Send the question; `tell` is called once: by `seconds`, or without them when it ends."""
        if self._gone or self.owes:
            tell(Response.lost(self.client))
            return
        self._open = _Open(question, tell)
        if seconds is not None:
            self._open.timer = asyncio.get_running_loop().call_later(seconds, self._give_up)
        self._reader.most_floats = question.most_floats
        self._sending = asyncio.create_task(self._send(question.messages, self._sending))

    async def attend(self) -> None:
        """Receive until the connection ends.

        Raises
        ------
        ProtocolError
            If the device does not keep to it.
        """
        await asyncio.wait([self._receiving])
        if not self._receiving.cancelled():
            self._receiving.result()

    def end(self, problem: str = "lost", *, politely: bool = False) -> None:
        """Close the line; who waits for an answer learns it at once.

        With `politely` what is being sent may still be read: see `drained`.
        """
        self._gone = True
        self.prepared = False
        self._receiving.cancel()
        if not politely:
            self._sending.cancel()
        opened, self._open = self._open, None
        if opened is not None:
            opened.close(self._response(opened, Received(), problem))

    async def drained(self) -> None:
        """Wait until what was sent has been read, but not for long: a call cannot end before."""
        await asyncio.wait([self._sending], timeout=READ)
        self._sending.cancel()

    async def _send(self, messages: list[bytes], after: asyncio.Task[None] | None = None) -> None:
        if after is not None:
            await after
        for each in messages:
            await self._line.write(each)  # waits while the device does not read

    async def _receive(self) -> None:
        while (data := await self._line.read()) is not grpc.aio.EOF:
            if self._open is None:
                raise ProtocolError("a message that was not asked for")
            if not self._sending.done():
                await self._read_by_the_device()
            if (answer := self._reader.take(data)) is not None and self._open is not None:
                self._take(self._open, answer)
            del data, answer  # they would be kept in memory until the next

    async def _read_by_the_device(self) -> None:
        """Wait until the device has read the question that it answers; it need not take long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(READ):
                await asyncio.shield(self._sending)
        if not self._sending.done():
            raise ProtocolError("an answer to what it has not read")

    def _give_up(self) -> None:
        """Stop waiting; the answer is refused when it comes."""
        assert self._open is not None
        self._open.given_up = True
        self._open.tell(self._response(self._open, Received(), "late"))

    def _take(self, opened: _Open, answer: Received) -> None:
        problem = self._problem(opened, answer)
        response = self._response(opened, answer, problem)
        if problem:
            # Quoted: a device that says lines of its own shall not forge a log.
            said = f"{answer.fields.message!r:.200}" if answer.kind == "failed" else answer.kind
            self._refuse(self.client, problem, said)
        self._open = None
        self._reader.most_floats = 0
        self._freed(self, response)
        opened.close(response)  # last: who asked may go on at once

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
