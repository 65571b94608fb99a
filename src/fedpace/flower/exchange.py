"""Send messages, and note when each reply arrives."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from flwr.app import Message
from flwr.serverapp import Grid

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
    sent = zip(grid.push_messages(messages), messages, strict=True)
    # Flower gives None for a message that could not be sent.
    waiting = {name: message.metadata.dst_node_id for name, message in sent if name}
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
