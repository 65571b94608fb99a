"""Send messages, and note when each reply arrives."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from flwr.app import Message
from flwr.serverapp import Grid

from fedpace.errors import InputError

# Seconds between looks for replies, from short to long as time passes: every stamp is right to a
# twentieth, or to the longest. Flower's own `send_and_receive` looks every three seconds.
SHORTEST_POLL, LONGEST_POLL = 0.01, 0.1


class Clock(NamedTuple):
    """What time it is, and how to wait; tests bring a clock that does not."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


WALL = Clock()


class Arrival(NamedTuple):
    """A reply, the node that was asked, and the seconds from sending to arrival."""

    node: int
    message: Message
    seconds: float


class Exchange(NamedTuple):
    """What arrived, how long was waited, and the node behind each message without a reply."""

    arrivals: list[Arrival]
    waited: float
    open: dict[str, int]


def exchanged(
    grid: Grid, messages: Iterable[Message], *, deadline: float, clock: Clock = WALL
) -> Exchange:
    """Send all messages at once and collect replies until all are there, or the deadline is over.

    A reply is known by the message that it answers, not by whom it claims to come from.
    """
    messages = list(messages)
    began = clock.now()
    waiting = _sent(list(grid.push_messages(messages)), messages)
    arrivals: list[Arrival] = []
    while waiting:
        for message in grid.pull_messages(set(waiting)):
            node = waiting.pop(message.metadata.reply_to_message_id, None)
            if node is not None:
                arrivals.append(Arrival(node, message, clock.now() - began))
        passed = clock.now() - began
        if not waiting or passed >= deadline:
            break
        poll = min(max(passed / 20, SHORTEST_POLL), LONGEST_POLL)
        clock.sleep(min(poll, deadline - passed))
    return Exchange(arrivals, clock.now() - began, waiting)


def _sent(names: Sequence[str | None], messages: Sequence[Message]) -> dict[str, int]:
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
