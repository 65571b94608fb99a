"""The server's end of one device's line: at most one question at a time is open."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from fedpace.network.wire import NO_FLOATS, Channel, Floats, Frame, FrameError, encoded

# What each kind of question is answered with.
ANSWERS = {"job": "ready", "train": "update", "evaluate": "counts"}
PING = encoded("ping")


class Question(NamedTuple):
    """What a device is asked: the bytes to send, and what the answer must be."""

    kind: str
    task: int
    frame: bytes
    most_floats: int = 0

    @classmethod
    def about(
        cls,
        kind: str,
        task: int,
        floats: Floats = NO_FLOATS,
        *,
        most_floats: int = 0,
        **fields: object,
    ) -> Question:
        """Write the question down."""
        return cls(kind, task, encoded(kind, floats, task=task, **fields), most_floats)


class Response(NamedTuple):
    """What came of a question, `seconds` after it was sent: a whole answer, or none.

    `problem` is empty, or says why no frame can be used: "lost", "late", or what is wrong with it.
    """

    client: int
    frame: Frame
    seconds: float
    bytes_down: int
    problem: str = ""

    @classmethod
    def lost(cls, client: int) -> Response:
        """Return what comes of asking someone who is not there."""
        return cls(client, Frame({}), 0.0, 0, "lost")


Tell = Callable[[Response], object]


@dataclass
class _Open:
    question: Question
    tell: Tell
    sent: float
    until: float
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
    answer comes, late, or the connection ends. `refuse` is told of everything that is not
    accepted, `freed` when an answer has come and the device can be asked again.
    """

    def __init__(
        self,
        client: int,
        channel: Channel,
        refuse: Callable[[int, str, str], None],
        freed: Callable[[Connection, Response], None],
    ) -> None:
        self.client = client
        self.channel = channel
        self.job = 0  # the number of the job that it was given last
        self.prepared: bool | None = None  # for the job; None until its answer was looked at
        self._refuse = refuse
        self._freed = freed
        self._open: _Open | None = None
        self._gone = False

    @property
    def owes(self) -> bool:
        """Whether an answer is still to come."""
        return self._open is not None

    def ask(
        self, question: Question, tell: Tell = lambda _: None, seconds: float | None = None
    ) -> None:
        """Send the question; `tell` is called once: by `seconds`, or without them when it ends."""
        now = time.monotonic()
        if self._gone or self.owes:
            tell(Response.lost(self.client))
            return
        self._open = _Open(question, tell, now, now + (seconds or 0.0))
        if seconds is not None:
            self._open.timer = asyncio.get_running_loop().call_later(seconds, self._give_up)
        self.channel.most_floats = question.most_floats
        self.channel.post(question.frame)

    def beat(self, silence: float) -> bool:
        """Ask for a sign of life; return False if there was none for too long."""
        now = time.monotonic()
        until = self._open.until if self._open is not None else 0.0
        if now > max(until, self.channel.heard + silence):
            return False
        self.channel.post(PING)
        return True

    async def attend(self) -> None:
        """Receive until the connection ends."""
        while True:
            # No name for the frame: it would keep an update in memory until the next one.
            self._take(await self.channel.receive())

    def end(self, problem: str = "lost") -> None:
        """Close the line; who waits for an answer learns it at once."""
        self._gone = True
        self.prepared = False
        self.channel.abort()
        opened, self._open = self._open, None
        if opened is not None:
            opened.close(self._response(opened, Frame({}), problem))

    def _give_up(self) -> None:
        """Stop waiting; the answer is refused when it comes."""
        assert self._open is not None
        self._open.given_up = True
        self._open.tell(self._response(self._open, Frame({}), "late"))

    def _take(self, frame: Frame) -> None:
        opened = self._open
        if frame.kind == "pong":
            return
        if opened is None:
            raise FrameError(f"a frame {frame.kind!r:.20} that was not asked for")
        problem = self._problem(opened, frame)
        response = self._response(opened, frame, problem)
        if problem:
            said = frame.header.get("message")
            # Quoted: a device that says lines of its own shall not forge a log.
            self._refuse(
                self.client,
                problem,
                f"a frame {frame.kind!r:.20}" if said is None else f"{said!r:.200}",
            )
        self._open = None
        self.channel.most_floats = 0
        self._freed(self, response)
        opened.close(response)  # last: who asked may go on at once

    def _problem(self, opened: _Open, frame: Frame) -> str:
        if frame.kind == "failed":
            return "failed"
        if frame.header.get("task") != opened.question.task:
            return "another round"
        if frame.kind != ANSWERS[opened.question.kind]:
            return "another answer"
        return "late" if opened.given_up else ""

    def _response(self, opened: _Open, frame: Frame, problem: str) -> Response:
        seconds = time.monotonic() - opened.sent
        return Response(self.client, frame, seconds, len(opened.question.frame), problem)
