"""Frames: the length of a header, a JSON header, raw numbers. Nothing in them is executed."""

from __future__ import annotations

import asyncio
import json
import struct
import time
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

NO_FLOATS: Floats = np.empty(0, dtype=np.float32)
# What a device says beside its update fits easily; what it is told includes a whole study.
SHORT_HEADER = 4 << 10
LONG_HEADER = 1 << 20
MOST_DIGITS = 19
# Bytes read at a time: each piece is a sign of life, however slow the line.
PIECE = 64 << 10
LENGTH = struct.Struct("!I")


class FrameError(Exception):
    """What came is no frame, or one that is too long; the connection is of no use any more."""


class Frame(NamedTuple):
    """A header with a `kind`, and numbers; `length` counts the bytes that crossed the wire."""

    header: dict[str, Any]
    floats: Floats = NO_FLOATS
    length: int = 0

    @property
    def kind(self) -> str:
        """What the frame is."""
        return str(self.header["kind"])


class Pace(NamedTuple):
    """How fast a device is let send and receive, in bytes per second."""

    up: float
    down: float


def encoded(kind: str, floats: Floats = NO_FLOATS, **fields: Any) -> bytes:
    """Return the bytes of a frame.

    >>> frame = encoded("pong")
    >>> len(frame), frame[4:].decode()
    (48, '{"kind":"pong","dtype":"float32","floats":0}')
    """
    header = {"kind": kind, **fields, "dtype": "float32", "floats": floats.size}
    text = json.dumps(header, separators=(",", ":"), allow_nan=False).encode()
    return LENGTH.pack(len(text)) + text + floats.astype("<f4").tobytes()


class Channel:
    """Send and receive frames over one connection, and know when the other side was last heard.

    `most_floats` limits what a frame may bring: a longer one is refused by its header, before
    any memory is taken for it. More than `silence` seconds without a byte are an error.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        longest_header: int = SHORT_HEADER,
        silence: float | None = None,
        pace: Pace | None = None,
    ) -> None:
        self.most_floats = 0
        self.heard = time.monotonic()
        self._reader, self._writer = reader, writer
        self._longest_header, self._silence = longest_header, silence
        self._sending = asyncio.Lock()  # frames must not mingle
        self._up = _Bucket(pace.up) if pace else None
        self._down = _Bucket(pace.down) if pace else None

    def post(self, frame: bytes) -> None:
        """Hand a frame over for sending, without waiting."""
        if not self._writer.is_closing():
            self._writer.write(frame)

    async def send(self, frame: bytes) -> None:
        """Send a frame at the channel's pace."""
        async with self._sending:
            size = len(frame) if self._up is None else self._up.piece
            for first in range(0, len(frame), size):
                piece = frame[first : first + size]
                if self._up is not None:
                    await self._up.take(len(piece))
                self._writer.write(piece)
            await self._writer.drain()

    async def receive(self) -> Frame:
        """Return the next frame.

        Raises
        ------
        FrameError
            If the frame is malformed or longer than allowed.
        OSError
            If the other side is gone, or silent for too long.
        """
        (length,) = LENGTH.unpack(await self._exactly(LENGTH.size))
        if length > self._longest_header:
            raise FrameError(f"a header of {length} bytes, more than {self._longest_header}")
        header = _header(await self._exactly(length))
        count = header["floats"]
        if count > self.most_floats:
            raise FrameError(f"{count} numbers, where at most {self.most_floats} are expected")
        floats = np.frombuffer(await self._exactly(4 * count), "<f4") if count else NO_FLOATS
        return Frame(header, floats, LENGTH.size + length + 4 * count)

    @property
    def is_encrypted(self) -> bool:
        """Whether the connection is one over TLS."""
        return self._writer.get_extra_info("ssl_object") is not None

    @property
    def certificate(self) -> dict[str, Any] | None:
        """The other side's certificate, as `getpeercert` gives it."""
        certificate: dict[str, Any] | None = self._writer.get_extra_info("peercert")
        return certificate

    async def closed(self) -> None:
        """Close the connection, and wait until what was sent is out."""
        self._writer.close()
        await self._writer.wait_closed()

    def abort(self) -> None:
        """Close the connection at once."""
        self._writer.transport.abort()

    async def _exactly(self, count: int) -> bytearray:
        data = bytearray(count)
        filled = 0
        while filled < count:
            most = PIECE if self._down is None else self._down.piece
            async with asyncio.timeout(self._silence):
                piece = await self._reader.read(min(most, count - filled))
            if not piece:
                raise ConnectionResetError("the other side closed the connection")
            data[filled : filled + len(piece)] = piece
            filled += len(piece)
            self.heard = time.monotonic()
            if self._down is not None:
                await self._down.take(len(piece))
        return data


class _Bucket:
    """Let `rate` bytes pass per second, in pieces of a fiftieth of a second."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._free = 0.0
        self.piece = max(256, min(PIECE, int(rate / 50)))

    async def take(self, count: int) -> None:
        now = time.monotonic()
        self._free = max(now, self._free) + count / self._rate
        await asyncio.sleep(self._free - now)


def _integer(digits: str) -> int:
    if len(digits.removeprefix("-")) > MOST_DIGITS:  # more would not even fit into a float
        raise ValueError
    return int(digits)


def _header(data: bytearray) -> dict[str, Any]:
    try:
        header = json.loads(data, parse_int=_integer)
    except (ValueError, RecursionError):
        raise FrameError("a header that is no JSON") from None
    if not isinstance(header, dict) or not isinstance(header.get("kind"), str):
        raise FrameError("a header without a kind")
    count = header.get("floats")
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise FrameError(f"a header with {count!r:.40} numbers")
    if header.get("dtype") != "float32":
        raise FrameError(f"numbers of type {header.get('dtype')!r:.40}, not float32")
    return header
