"""The messages of devices.proto: numbers in parts, and what is accepted of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from fedpace.network.devices_pb2 import Asked, Said

Floats = NDArray[np.float32]

NO_FLOATS: Floats = np.empty(0, dtype=np.float32)
METHOD = "/fedpace.v1.Devices/Attend"
# Bytes of numbers in a message, and of a whole one: what is longer is refused unread.
PART = 1 << 20
LONGEST = PART + (64 << 10)
# Both sides: what is compressed may be a thousand times as long as it seems, so nothing is.
PLAIN_MESSAGES = [
    ("grpc.max_receive_message_length", LONGEST),
    ("grpc.max_send_message_length", LONGEST),
    ("grpc.compression_enabled_algorithms_bitset", 1),
    ("grpc.per_message_decompression", 0),
]


class ProtocolError(Exception):
    """What came is not in devices.proto, or too much; the connection is of no use any more."""


class Received(NamedTuple):
    """A whole message: its kind and fields, its numbers, and the bytes that crossed the wire."""

    kind: str = ""
    task: int = 0
    fields: Any = None
    floats: Floats = NO_FLOATS
    length: int = 0


def written(message: Asked | Said, floats: Floats = NO_FLOATS) -> list[bytes]:
    """Return the bytes of a message, and before them those of the parts that do not fit into it.

    >>> [len(part) for part in written(Said(task=1, update={"loss": 0.5}), np.zeros(300_000))]
    [1048584, 151443]
    """
    data = floats.astype("<f4").tobytes()
    first = list(range(0, max(len(data), 1), PART))
    kind = message.WhichOneof("kind")
    if data:
        getattr(message, kind).numbers = data[first[-1] :]
    ahead = [type(message)(part={"numbers": data[i : i + PART]}) for i in first[:-1]]
    return [each.SerializeToString() for each in (*ahead, message)]


class Reader:
    """Put messages of one kind, `Asked` or `Said`, together; `most_floats` limits their numbers."""

    def __init__(self, kind: type[Asked] | type[Said]) -> None:
        self.most_floats = 0
        self._kind = kind
        self._parts: list[bytes] = []
        self._length = 0

    def take(self, data: bytes) -> Received | None:
        """Return the message that these bytes complete, or None after a part.

        Raises
        ------
        ProtocolError
            If they are no message, or one with too many numbers.
        """
        try:
            message = self._kind.FromString(data)
        except DecodeError:
            raise ProtocolError("bytes that are no message") from None
        kind = message.WhichOneof("kind")
        if kind is None:
            raise ProtocolError("a message without a kind")
        fields = getattr(message, kind)
        self._length += len(data)
        self._parts.append(getattr(fields, "numbers", b""))
        if kind == "part" and len(self._parts[-1]) != PART:  # else there may be any number of them
            raise ProtocolError(f"a part of {len(self._parts[-1])} bytes, not {PART}")
        if (count := sum(map(len, self._parts))) > 4 * self.most_floats:
            allowed = f"at most {self.most_floats} are expected"
            raise ProtocolError(f"{count} bytes of numbers, where {allowed}")
        if kind == "part":
            return None
        if count % 4:
            raise ProtocolError(f"{count} bytes of numbers, of which each has four")
        floats = np.frombuffer(b"".join(self._parts), "<f4") if count else NO_FLOATS
        received = Received(kind, message.task, fields, floats, self._length)
        self._parts, self._length = [], 0
        return received
