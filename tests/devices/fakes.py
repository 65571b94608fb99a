"""A device that says what a test wants it to say."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any

import grpc
import numpy as np

from fedpace.devices.device import OPTIONS, open_channel
from fedpace.devices.devices_pb2 import Asked, Said
from fedpace.devices.wire import METHOD, NO_FLOATS, Certificates, MessageReader, Received, encode
from tests.devices.fleet import MODEL

# What a device that keeps to nothing may send.
BOUNDLESS = [*OPTIONS, ("grpc.max_send_message_length", -1)]
Answer = Callable[[Received], list[bytes] | None]


def hello(name: str) -> bytes:
    (message,) = encode(Said(hello={"name": name}))
    return message


def honest(client: int, asked: Received, **changes: Any) -> list[bytes]:
    """Return what an honest device answers, with changes; `floats` replaces the update."""
    task = changes.pop("task", asked.task)
    if asked.kind == "job":
        return encode(Said(task=task, ready={"samples": 10 * (client + 1)} | changes))
    if asked.kind == "evaluate":
        counts = {"loss": 1.0, "correct": 1, "held_out": 2}
        return encode(Said(task=task, counts=counts | changes))
    numbers = changes.pop("numbers", None)
    floats = changes.pop("floats", np.full(MODEL.size, 0.01, dtype=np.float32))
    said: dict[str, Any] = {"computing_seconds": 1e-6, "grad_norm": 1.0 + client, "loss": 1.0}
    if numbers is not None:
        said["numbers"], floats = numbers, NO_FLOATS
    return encode(Said(task=task, update=said | changes), floats)


class Line:
    """One call of a device, by hand: `say` sends, iterating over it receives."""

    def __init__(self, port: int, name: str | None, tls: Certificates | None = None) -> None:
        self._said: SimpleQueue[bytes | None] = SimpleQueue()
        self._channel = open_channel("127.0.0.1", port, tls, BOUNDLESS)
        self._call = self._channel.stream_stream(METHOD)(iter(self._said.get, None))
        self._reader = MessageReader(Asked)
        self._reader.most_floats = 10**6
        if name is not None:
            self.say(hello(name))

    def say(self, *messages: bytes) -> None:
        for message in messages:
            self._said.put(message)

    def __iter__(self) -> Iterator[Received]:
        for data in self._call:
            if (asked := self._reader.take(data)) is not None:
                yield asked

    def next(self) -> Received:
        return next(iter(self))

    @property
    def status(self) -> grpc.StatusCode:
        """How the call ended; waits until it has."""
        code: grpc.StatusCode = self._call.code()
        return code

    def close(self) -> None:
        self._call.cancel()
        self._said.put(None)
        self._channel.close()


class Fake(threading.Thread):
    """Connect, and answer every question by `answer`, which may send nothing by returning None."""

    def __init__(self, port: int, client: int, answer: Answer | None = None) -> None:
        super().__init__(daemon=True)
        self._line = Line(port, f"device-{client}")
        self._answer = answer or (lambda asked: honest(client, asked))
        self.told_goodbye = False
        self.start()

    def run(self) -> None:
        try:
            for asked in self._line:
                if asked.kind != "welcome" and (answer := self._answer(asked)):
                    self._line.say(*answer)
            self.told_goodbye = True
        except (grpc.RpcError, ConnectionError):
            pass
        finally:
            self._line.close()

    def close(self) -> None:
        self._line.close()
        self.join()
