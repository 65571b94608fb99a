"""A federation in this process: real ClientApps, and a clock that jumps to the next arrival."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import NamedTuple, NoReturn

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from fedpace.backends.remote.roster import Clock

NEVER = float("inf")


class _Pending(NamedTuple):
    due: float
    reply: Message


class MemoryGrid(Grid):
    """Run a ClientApp for every message; `seconds(partition, nth)` is how long the reply takes.

    `nth` counts the messages to all nodes of the same type and round, from the first round 0.
    """

    def __init__(
        self,
        app: ClientApp,
        seconds: Callable[[int, int], float],
        *,
        partitions: Iterable[int],
        first_id: int = 1000,
    ) -> None:
        _take_a_task()
        self.app, self.seconds = app, seconds
        # Ids that are in another order than the partitions.
        self.partitions = {first_id - partition: partition for partition in partitions}
        self.time = 0.0
        self.asked: list[tuple[str, list[int]]] = []
        self._pending: dict[str, _Pending] = {}
        self._contexts = {
            node: Context(1, node, {"partition-id": partition}, RecordDict(), {})
            for node, partition in self.partitions.items()
        }

    @property
    def clock(self) -> Clock:
        return Clock(lambda: self.time, self._sleep)

    def get_node_ids(self) -> Iterable[int]:
        return list(self.partitions)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        self.asked.append(
            (
                messages[0].metadata.message_type if messages else "",
                sorted(self.partitions[each.metadata.dst_node_id] for each in messages),
            )
        )
        return [self._push(message) for message in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        here = [name for name in message_ids if self._pending[name].due <= self.time]
        here.sort(key=lambda name: (self._due(name), name))  # not in the order of a set of texts
        return [self._pending.pop(name).reply for name in here]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        names = set(self.push_messages(messages))
        self.time = min(
            max(map(self._due, names), default=self.time),
            self.time + (NEVER if timeout is None else timeout),
        )
        return self.pull_messages(names)

    def _push(self, message: Message) -> str:
        name = f"message {len(self._pending)} at {self.time} to {message.metadata.dst_node_id}"
        message.metadata.__dict__["_message_id"] = name
        node = message.metadata.dst_node_id
        took = 0.0
        if message.metadata.message_type == "train":
            took = self.seconds(self.partitions[node], int(message.metadata.group_id or 1) - 1)
        reply = self._reply(message, node)
        message.metadata.__dict__["_created_at"] = self.time
        reply.metadata.__dict__["_created_at"] = self.time + took
        self._pending[name] = _Pending(self.time + took, reply)
        return name

    def _reply(self, message: Message, node: int) -> Message:
        try:
            return self.app(message, self._contexts[node])
        except Exception as error:
            return Message(Error(2, repr(error)), reply_to=message)

    def _due(self, name: str) -> float:
        return self._pending[name].due

    def _sleep(self, seconds: float) -> None:
        until = self.time + seconds
        coming = [each.due for each in self._pending.values() if self.time < each.due <= until]
        self.time = min(coming, default=until)

    def create_message(self, *args: object, **kwargs: object) -> NoReturn:
        raise NotImplementedError

    def set_run(self, run: object) -> NoReturn:
        raise NotImplementedError

    @property
    def run(self) -> NoReturn:
        raise NotImplementedError


def _take_a_task() -> None:
    """Make this a process that Flower has given a task: only such can make messages."""
    try:
        identity = import_module("flwr.supercore.task_identity").TaskIdentity
    except ImportError:  # in older versions everyone can
        return
    identity.task_id = identity.run_id = identity.node_id = 1
