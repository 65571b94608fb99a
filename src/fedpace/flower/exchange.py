"""Send messages, and note when each reply arrives."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from flwr.app import Message
from flwr.serverapp import Grid

from fedpace.errors import InputError
from fedpace.remote.waiting import WALL, Clock

# Seconds between looks for replies, from short to long as time passes: every stamp is right to a
# twentieth, or to the longest. Flower's own `send_and_receive` looks every three seconds.
SHORTEST_POLL, LONGEST_POLL = 0.01, 0.1
# A node that is late by this many deadlines is drawn again: its reply may be lost.
MOST_DEADLINES = 3.0


class Sent(NamedTuple):
    """A message on its way: to which node, since when, and the seconds for an answer."""

    node: int
    when: float
    deadline: float


class Arrival(NamedTuple):
    """A reply, the node that was asked, and the seconds from sending to arrival."""

    node: int
    message: Message
    seconds: float


class Mail:
    """Send messages to nodes, collect the replies, and know who owes one.

    A reply is known by the message that it answers, not by whom it claims to come from. Messages
    without one are `open`, and `late` beyond their deadline.
    """

    def __init__(self, grid: Grid, clock: Clock = WALL) -> None:
        self.grid, self.clock = grid, clock
        self.open: dict[str, Sent] = {}
        self.late: dict[str, Sent] = {}
        self.overdue: dict[str, Arrival] = {}  # what came after its deadline
        self._here: dict[str, Arrival] = {}

    @property
    def busy(self) -> set[int]:
        """The nodes that owe a reply; one that is very late is given up."""
        return {sent.node for sent in (*self.open.values(), *self.late.values())}

    def send(self, messages: Iterable[Message], deadline: float) -> set[str]:
        """Send all messages at once; return the names of those that could be sent."""
        messages, now = list(messages), self.clock.now()
        nodes = _pushed(list(self.grid.push_messages(messages)), messages)
        self.open |= {name: Sent(node, now, deadline) for name, node in nodes.items()}
        return set(nodes)

    def collect(self, names: Collection[str], count: int | None = None) -> dict[str, Arrival]:
        """Wait until `count` of these messages, or all, are answered or late.

        Return the answers by the names of their messages, in the order in which they came.
        """
        count = len(names) if count is None else min(count, len(names))
        while True:
            self.look()
            if sum(name not in self.open for name in names) >= count:
                return {name: self._here.pop(name) for name in [*self._here] if name in names}
            self.clock.sleep(self._pause())

    def exchange(self, messages: Iterable[Message], deadline: float) -> list[Arrival]:
        """Send messages, and wait until all of them are answered or late."""
        return list(self.collect(self.send(messages, deadline)).values())

    def look(self) -> None:
        """Take in the replies that are there, and see who is late."""
        if self.open or self.late:
            for message in self.grid.pull_messages({*self.open, *self.late}):
                name = message.metadata.reply_to_message_id
                if sent := self.late.pop(name, None):
                    self.overdue[name] = Arrival(sent.node, message, self._passed(sent))
                if sent := self.open.pop(name, None):
                    self._here[name] = Arrival(sent.node, message, self._passed(sent))
        for name in [n for n, each in self.open.items() if self._passed(each) >= each.deadline]:
            self.late[name] = self.open.pop(name)
        given_up = 1 + MOST_DEADLINES
        self.late = {
            name: each
            for name, each in self.late.items()
            if self._passed(each) < given_up * each.deadline
        }

    def _pause(self) -> float:
        passed = max(map(self._passed, self.open.values()))
        poll = min(max(passed / 20, SHORTEST_POLL), LONGEST_POLL)
        left = min(sent.deadline - self._passed(sent) for sent in self.open.values())
        return max(0.0, min(poll, left))

    def _passed(self, sent: Sent) -> float:
        return self.clock.now() - sent.when


def _pushed(names: Sequence[str | None], messages: Sequence[Message]) -> dict[str, int]:
    """Return the node behind each message that was sent.

    For one that could not be, Flower's grid of a SuperLink gives None instead of its name, and that
    of the simulation nothing at all: there a message is known by the name that is written on it.
    """
    if len(names) != len(messages):
        told = set(names)
        messages = [each for each in messages if each.metadata.message_id in told]
        names = [each.metadata.message_id for each in messages]
    sent = zip(names, messages, strict=True)
    return {name: message.metadata.dst_node_id for name, message in sent if name}


def refuse_strangers(messages: Iterable[Message], drawn: Iterable[int]) -> None:
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
