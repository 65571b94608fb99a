"""Send messages, time the replies, and convert records to vectors."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from io import SEEK_CUR, BytesIO
from typing import Any, NamedTuple, Self

import numpy as np
from flwr.app import Array, ArrayRecord, Message
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedpace.backends.remote.replies import ArrayLayout, write_typed
from fedpace.backends.remote.roster import WALL, Clock
from fedpace.backends.remote.screening import BadReplyError
from fedpace.checks import FloatArray
from fedpace.errors import InputError

# Seconds between polls for replies; the interval grows with the waiting time, so that each arrival
# time is exact to 5 % or 0.1 s. Flower's own `send_and_receive` polls every three seconds.
SHORTEST_POLL, LONGEST_POLL = 0.01, 0.1
# A node that is late by this many deadlines can be drawn again: its reply may be lost.
MOST_DEADLINES = 3.0
# Bytes of a saved array besides its numbers: type and shape as text.
LONGEST_HEADER = 4096


class Sent(NamedTuple):
    """An open message: its node, when it was sent, and the seconds allowed for the answer."""

    node: int
    when: float
    deadline: float


class Arrival(NamedTuple):
    """A reply, the node that was asked, and the seconds from sending to arrival."""

    node: int
    message: Message
    seconds: float


class Mailbox:
    """Send messages to nodes and collect the replies.

    A reply is matched by the message that it answers, not by the sender that it claims. Messages
    without a reply are `open`, and `late` after their deadline.
    """

    def __init__(self, grid: Grid, clock: Clock = WALL) -> None:
        self.grid, self.clock = grid, clock
        self.open: dict[str, Sent] = {}
        self.late: dict[str, Sent] = {}
        self.overdue: dict[str, Arrival] = {}  # replies that came after their deadline
        self._arrived: dict[str, Arrival] = {}

    @property
    def busy(self) -> set[int]:
        """The nodes that owe a reply."""
        return {sent.node for sent in (*self.open.values(), *self.late.values())}

    def send(self, messages: Iterable[Message], deadline: float) -> set[str]:
        """Send all messages at once; return the ids of those that could be sent."""
        messages, now = list(messages), self.clock.now()
        nodes = _sent_nodes(list(self.grid.push_messages(messages)), messages)
        self.open |= {name: Sent(node, now, deadline) for name, node in nodes.items()}
        return set(nodes)

    def collect(self, names: Collection[str], count: int | None = None) -> dict[str, Arrival]:
        """Wait until `count` of these messages, or all, are answered or late.

        Return the answers by the ids of their messages, in the order of arrival.
        """
        count = len(names) if count is None else min(count, len(names))
        while True:
            self.poll()
            if sum(name not in self.open for name in names) >= count:
                return {name: self._arrived.pop(name) for name in [*self._arrived] if name in names}
            self.clock.sleep(self._pause())

    def give_up(self, names: Collection[str]) -> None:
        """Count open messages as late from now on."""
        self.late |= {name: self.open.pop(name) for name in names if name in self.open}

    def exchange(self, messages: Iterable[Message], deadline: float) -> list[Arrival]:
        """Send messages, and wait until all of them are answered or late."""
        return list(self.collect(self.send(messages, deadline)).values())

    def poll(self) -> None:
        """Fetch the replies that have arrived, and mark messages as late."""
        if self.open or self.late:
            for message in self.grid.pull_messages({*self.open, *self.late}):
                name = message.metadata.reply_to_message_id
                if sent := self.late.pop(name, None):
                    self.overdue[name] = Arrival(sent.node, message, self._seconds_since(sent))
                if sent := self.open.pop(name, None):
                    self._arrived[name] = Arrival(sent.node, message, self._seconds_since(sent))
        for name in [
            n for n, each in self.open.items() if self._seconds_since(each) >= each.deadline
        ]:
            self.late[name] = self.open.pop(name)
        limit = 1 + MOST_DEADLINES
        self.late = {
            n: s for n, s in self.late.items() if self._seconds_since(s) < limit * s.deadline
        }

    def _pause(self) -> float:
        passed = max(map(self._seconds_since, self.open.values()))
        interval = min(max(passed / 20, SHORTEST_POLL), LONGEST_POLL)
        left = min(sent.deadline - self._seconds_since(sent) for sent in self.open.values())
        return max(0.0, min(interval, left))

    def _seconds_since(self, sent: Sent) -> float:
        return self.clock.now() - sent.when


def _sent_nodes(names: Sequence[str | None], messages: Sequence[Message]) -> dict[str, int]:
    """Return the node of each message that was sent, by the message's id.

    For a message that could not be sent, a SuperLink's grid returns None instead of an id, and the
    simulation's grid returns nothing: there the id is read from the message itself.
    """
    if len(names) != len(messages):
        known = set(names)
        messages = [each for each in messages if each.metadata.message_id in known]
        names = [each.metadata.message_id for each in messages]
    sent = zip(names, messages, strict=True)
    return {name: message.metadata.dst_node_id for name, message in sent if name}


class DrawnGrid:
    """A grid on which only the drawn nodes are connected; all else is the real grid's."""

    def __init__(self, grid: Grid, nodes: Sequence[int]) -> None:
        self._grid, self.nodes = grid, list(nodes)

    def get_node_ids(self) -> list[int]:
        """Return the drawn nodes."""
        return self.nodes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)


def check_recipients(messages: Iterable[Message], drawn: Iterable[int]) -> None:
    """Refuse messages to nodes that were not drawn, and more than one to a node."""
    left = set(drawn)
    for message in messages:
        node = message.metadata.dst_node_id
        if node not in left:
            raise InputError(
                "configure_train must keep to the nodes drawn, one message to each, got another to "
                f"node {node}; call super().configure_train and change the messages it returns"
            )
        left.remove(node)


class Layout(ArrayLayout):
    """The positions of a model's arrays in one vector, for Flower's records.

    >>> layout = Layout.of(ArrayRecord([np.array([1.5, 2.0], np.float32), np.array(7)]))
    >>> layout.vector(layout.record(np.array([0.5, 1.0, 7.6])))
    array([0.5, 1. , 8. ])
    """

    @classmethod
    def of(cls, arrays: ArrayRecord) -> Self:
        """Return the layout of a model; refuse arrays that cannot be averaged."""
        values = {name: array.numpy() for name, array in arrays.items()}
        return cls.of_arrays(values, argument="initial_arrays")

    def vector(self, arrays: ArrayRecord) -> FloatArray:
        """Return the arrays concatenated in float64; raise BadReplyError if they do not fit."""
        return self.vector_of(arrays, _open_array)

    def opened(self, arrays: ArrayRecord) -> list[NDArray[Any]]:
        """Return the arrays as vectors, without copies; raise BadReplyError if they do not fit."""
        return self.parts_of(arrays, _open_array)

    def record(self, vector: FloatArray) -> ArrayRecord:
        """Return the arrays of a vector, each in its own shape and type."""
        packed = map(_pack, self.split(vector), self.shapes, self.types)
        return ArrayRecord(dict(zip(self.names, packed, strict=True)))


def _open_array(name: str, array: Array, size: int) -> NDArray[Any]:
    # Checked before it is opened: a few bytes can claim to be an array of any size.
    if not 0 <= len(array.data) - size <= 16 * size + LONGEST_HEADER:
        raise BadReplyError(f"array {name!r:.80} has {len(array.data)} bytes, too many or too few")
    try:
        return _unpack(array)
    except Exception as error:  # NumPy raises many kinds for invalid bytes
        raise BadReplyError(f"array {name!r:.80} cannot be read: {error!s:.80}") from None


def _pack(values: FloatArray, shape: tuple[int, ...], kind: np.dtype[Any]) -> Array:
    """Return values as Flower packs an array of this shape and type, written once."""
    data = BytesIO()
    described = {"descr": np.lib.format.dtype_to_descr(kind), "fortran_order": False}
    np.lib.format.write_array_header_1_0(data, described | {"shape": shape})
    header = data.tell()
    if count := values.size * kind.itemsize:
        data.seek(count - 1, SEEK_CUR)
        data.write(b"\0")  # grows in place
    write_typed(values, np.frombuffer(data.getbuffer(), kind, values.size, header))
    return Array(str(kind), shape, "numpy.ndarray", data.getvalue())


def _unpack(array: Array) -> NDArray[Any]:
    """Return the numbers of an array: a view of its bytes where these are laid out as usual."""
    start = BytesIO(array.data[:LONGEST_HEADER])
    if array.stype != "numpy.ndarray" or np.lib.format.read_magic(start) != (1, 0):
        return array.numpy()
    shape, fortran, kind = np.lib.format.read_array_header_1_0(start)
    if fortran or kind.hasobject:
        return array.numpy()
    count = math.prod(shape)
    return np.frombuffer(array.data, kind, count, start.tell()).reshape(shape)


def arrays_of(message: Message) -> ArrayRecord:
    """Return the one record of arrays in a message."""
    records = list(message.content.array_records.values())
    if len(records) != 1:
        raise BadReplyError(f"the reply holds {len(records)} ArrayRecords, not one")
    return records[0]


def drop_arrays(message: Message) -> None:
    """Release the arrays of a message that was read."""
    for name in [*message.content.array_records]:
        del message.content[name]


def metrics_of(message: Message) -> dict[str, Any]:
    """Return all metrics of a message in one dictionary."""
    records = message.content.metric_records.values()
    return {name: value for record in records for name, value in record.items()}


def size_of(message: Message) -> int:
    """Return the bytes of a message's records."""
    return sum(record.count_bytes() for record in message.content.values())
