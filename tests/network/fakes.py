"""A device that says what a test wants it to say."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from fedpace.network.wire import LENGTH, encoded
from tests.network.fleet import MODEL

Answer = Callable[[dict[str, Any]], bytes | None]


def honest(client: int, header: dict[str, Any], **changes: Any) -> bytes:
    """Return what an honest device answers, with changes; `floats` replaces the update."""
    task = header["task"]
    if header["kind"] == "job":
        return encoded("ready", **{"task": task, "samples": 10 * (client + 1)} | changes)
    if header["kind"] == "evaluate":
        counts = {"loss": 1.0, "correct": 1, "held_out": 2}
        return encoded("counts", **{"task": task} | counts | changes)
    floats = changes.pop("floats", np.full(MODEL.size, 0.01, dtype=np.float32))
    said = {"task": task, "computing_seconds": 1e-6, "grad_norm": 1.0 + client, "loss": 1.0}
    return encoded("update", floats, **said | changes)


class Fake(threading.Thread):
    """Connect, and answer every frame by `answer`, which may send nothing by returning None."""

    def __init__(self, port: int, client: int, answer: Answer | None = None) -> None:
        super().__init__(daemon=True)
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._answer = answer or (lambda header: honest(client, header))
        self.told_goodbye = False
        self._socket.sendall(encoded("hello", name=f"device-{client}"))
        self.start()

    def run(self) -> None:
        try:
            while True:
                header = self._received()
                if header["kind"] == "ping":
                    self._socket.sendall(encoded("pong"))
                elif header["kind"] == "goodbye":
                    self.told_goodbye = True
                    break
                elif header["kind"] != "welcome" and (answer := self._answer(header)):
                    self._socket.sendall(answer)
        except OSError:
            pass
        finally:
            self._socket.close()

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self.join()

    def _received(self) -> dict[str, Any]:
        (length,) = LENGTH.unpack(self._exactly(LENGTH.size))
        header: dict[str, Any] = json.loads(self._exactly(length))
        self._exactly(4 * header["floats"])
        return header

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = self._socket.recv(count - len(data))
            if not piece:
                raise ConnectionResetError
            data += piece
        return data
