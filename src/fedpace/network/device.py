"""A device: joins a server, trains on its own data when asked, and keeps the data to itself."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import time
import zlib
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

from fedpace.errors import InputError
from fedpace.network.tls import check_private, refused_for_good
from fedpace.network.trainer import Trainer, counted, trained
from fedpace.network.wire import LONG_HEADER, Channel, Frame, FrameError, Pace, encoded

# A server that listens says something every few seconds; one that is silent this long is gone.
SILENCE = 60.0
# Seconds between signs of life.
BEAT = 5.0
# Seconds before a device tries again, doubled each time up to the second.
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0
# A server that refuses a certificate hangs up without a word; this often is no accident.
TURNED_AWAY = 3
# Numbers of a model that are believed: a gigabyte. What claims more is no server of ours.
MOST_FLOATS = 2**28
# Characters of a message about a wrong argument, file or setting that the server is told.
MESSAGE = 500
PONG = encoded("pong")
GONE = (OSError, EOFError, TimeoutError, FrameError)

logger = logging.getLogger(__name__)

Prepare = Callable[[dict[str, Any]], Trainer]


def serve(
    host: str,
    port: int,
    name: str,
    prepare: Prepare,
    *,
    tls: ssl.SSLContext | None = None,
    pace: Pace | None = None,
    patience: float | None = None,
    insecure: bool = False,
) -> None:
    """Join a server under a name, and train when asked, until told goodbye.

    A connection that breaks is made again, after 0.2 s to 5 s: servers may come and go. The data
    stay here. Only updates, counts, norms, losses, times and what went wrong are sent: of an
    `InputError` its message, of any other error its type, as its message may quote a sample.

    Parameters
    ----------
    host, port : str, int
        Where the server listens, or will.
    name : str
        One of the names that the server expects; with TLS the common name of the certificate.
    prepare : callable of a job
        Returns the Trainer for a job, a dict of JSON values. Called once for each new job: one
        that comes again, after a broken connection say, keeps its trainer.
    tls, insecure : ssl.SSLContext, bool, optional
        See `fedpace.network.tls.client_context`; needed unless the host is a loopback address, or
        a plain connection to another machine is allowed.
    pace : Pace, optional
        Bytes per second up and down that the device itself keeps to.
    patience : float > 0, optional
        Seconds without any server after which to give up; None for never.

    Raises
    ------
    InputError
        If the server refuses the name or the certificate, or none was there for `patience`.
    """
    check_private(host, tls, insecure=insecure)
    with ThreadPoolExecutor(max_workers=1) as executor:
        device = Device(name, prepare, executor, pace=pace)
        asyncio.run(device.attend(host, port, tls=tls, patience=patience))


class Device:
    """One device's end: `attend` keeps it connected, the executor's thread trains."""

    def __init__(
        self, name: str, prepare: Prepare, executor: Executor, *, pace: Pace | None = None
    ) -> None:
        self._name, self._prepare = name, prepare
        self._executor, self._pace = executor, pace
        self._job: dict[str, Any] | None = None
        self._trainer: Trainer | None = None
        self._greeted = False
        self._turned_away = 0

    async def attend(
        self,
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
        patience: float | None = None,
    ) -> None:
        """Connect, serve, and connect again, until told goodbye."""
        # Devices that lost their server together do not come back in the same moment.
        spread = 0.5 + zlib.crc32(self._name.encode()) / 2**32
        pause, alone_since = FIRST_PAUSE, time.monotonic()
        while not await self._served(host, port, tls):
            if self._greeted:
                pause, alone_since = FIRST_PAUSE, time.monotonic()
            if patience is not None and time.monotonic() - alone_since > patience:
                raise InputError(
                    f"address must be one where a server listens, got {host}:{port} without any "
                    f"for {patience:g} s; start the server first"
                )
            await asyncio.sleep(pause * spread)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _served(self, host: str, port: int, tls: ssl.SSLContext | None) -> bool:
        """Serve over one connection; return whether the server said goodbye."""
        self._greeted = False
        try:
            async with asyncio.timeout(SILENCE):
                reader, writer = await asyncio.open_connection(host, port, ssl=tls)
        except GONE as error:
            self._stop_if_refused(error)
            logger.info("no server at %s:%s yet: %r", host, port, error)
            return False
        channel = Channel(
            reader, writer, longest_header=LONG_HEADER, silence=SILENCE, pace=self._pace
        )
        try:
            return await self._conversed(channel)
        except GONE as error:
            if self._greeted:
                self._turned_away = 0
            elif channel.is_encrypted and isinstance(error, ConnectionError):
                self._turned_away += 1
            self._stop_if_refused(error)
            logger.warning("the connection was lost: %r", error)
            return False
        finally:
            channel.abort()

    async def _conversed(self, channel: Channel) -> bool:
        await channel.send(encoded("hello", name=self._name))
        tasks = [asyncio.create_task(_beat(channel))]
        try:
            while True:
                frame = await channel.receive()
                if frame.kind == "goodbye":
                    return True
                if frame.kind == "refused":
                    raise InputError(
                        f"name must be one that the server expects, got '{self._name}': "
                        f"{frame.header.get('message')!r:.200}; ask for the right name and "
                        "certificate"
                    )
                self._greeted = True
                if frame.kind == "ping":
                    await channel.send(PONG)
                elif frame.kind != "welcome":
                    if frame.kind == "job":
                        channel.most_floats = _size(frame)
                    # The server asks one thing at a time, so the last answer is out.
                    tasks[1:] = [asyncio.create_task(self._answer(channel, frame))]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _answer(self, channel: Channel, frame: Frame) -> None:
        loop = asyncio.get_running_loop()
        try:
            answer = await loop.run_in_executor(self._executor, self._answered, frame)
        except Exception as error:  # whatever a trainer has to say; the server must learn it
            logger.exception("%.20r failed", frame.kind)
            answer = encoded("failed", task=frame.header.get("task"), message=_told(error))
        with contextlib.suppress(OSError):  # the reader notices it too
            await channel.send(answer)

    def _answered(self, frame: Frame) -> bytes:
        """Do what a frame asks for; this runs in the executor's thread."""
        if frame.kind == "job":
            job = frame.header["job"]
            if self._trainer is None or job != self._job:
                self._trainer = None  # before the next: two may not fit into memory
                self._trainer = self._prepare(job)
                self._job = job
            return encoded("ready", task=frame.header["task"], samples=self._trainer.samples)
        assert self._trainer is not None
        do = counted if frame.kind == "evaluate" else trained
        return do(self._trainer, frame)

    def _stop_if_refused(self, error: BaseException) -> None:
        if refused_for_good(error) or self._turned_away == TURNED_AWAY:
            raise InputError(
                f"certificates must be accepted by both sides: {error}; "
                "make them together with: fedpace lab certs"
            ) from error


def _size(frame: Frame) -> int:
    """Return how many numbers the models of a job have, or say that this is none."""
    size = frame.header.get("size")
    if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= MOST_FLOATS:
        raise FrameError(f"a job for models of {size!r:.40} numbers")
    return size


def _told(error: Exception) -> str:
    """Return what the server may know of an error.

    >>> _told(ValueError("no class for the sample [0.1, 0.7]"))
    'ValueError; the device has written down the rest'
    """
    if isinstance(error, InputError):
        return str(error)[:MESSAGE]
    return f"{type(error).__name__}; the device has written down the rest"


async def _beat(channel: Channel) -> None:
    """Give signs of life also while a long model is being received, and no ping gets through."""
    while True:
        await asyncio.sleep(BEAT)
        await channel.send(PONG)
