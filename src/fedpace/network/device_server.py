"""Whom devices join: an event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from fedpace.errors import InputError
from fedpace.network.connection import Question, Response, Tell
from fedpace.network.listening import LEAVE, check_signs_of_life, listen
from fedpace.network.lobby import Lobby
from fedpace.network.tls import Certificates, check_private
from fedpace.network.wire import LONGEST, Floats, Received
from fedpace.remote.screening import verdict

logger = logging.getLogger(__name__)
T = TypeVar("T")


class DeviceServer:
    """Listen for devices, know who is there, ask them things and wait for the answers.

    Parameters
    ----------
    names : sequence of str
        Of the devices that are let in; client i is the i-th.
    host, port : str, int
        Where to listen; port 0 takes a free one, see `address`.
    tls, insecure : Certificates, bool, optional
        See `fedpace.network.tls.Certificates.read`; needed unless the host is a loopback address,
        or plain connections from other machines are allowed.
    heartbeat, silence : float > 0
        Seconds without a sign of life after which one is asked for, and after which, later, a
        device is taken for gone.

    Attributes
    ----------
    address, refusals : (str, int), Counter of (client, reason)
        Where it listens, and how often something was refused.
    """

    def __init__(
        self,
        names: Sequence[str],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: Certificates | None = None,
        insecure: bool = False,
        heartbeat: float = 5.0,
        silence: float = 60.0,
    ) -> None:
        check_private(host, tls, insecure=insecure)
        check_signs_of_life(heartbeat, silence)
        if not names or len(set(names)) != len(names):
            raise InputError(f"names must differ, got {list(names)!r:.80}; give one per device")
        self.names = list(names)
        self.refusals: Counter[tuple[int, str]] = Counter()
        self._changed = threading.Condition()
        self._lobby = Lobby(self.names, self.refuse, self._notify)
        self._task = 0
        self._closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="devices", daemon=True)
        self._thread.start()
        listening = listen(
            self._lobby.welcome,
            host,
            port,
            tls,
            devices=len(names),
            heartbeat=heartbeat,
            silence=silence,
        )
        try:
            self._listening, self.address = self._in_loop(listening)
        except BaseException:
            self._stop()
            raise

    def __enter__(self) -> DeviceServer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(goodbye=kind is None)  # what failed may go on later, with the same devices

    @property
    def connected(self) -> list[int]:
        """The clients that are connected, prepared or not."""
        return sorted(self._lobby.connections.copy())

    @property
    def free(self) -> list[int]:
        """The clients that can be asked: connected, prepared for the job, owing no answer."""
        connections = self._lobby.connections.copy()
        return sorted(i for i, each in connections.items() if each.prepared and not each.owes)

    @property
    def preparing(self) -> list[int]:
        """The clients that are connected, and whose answer to the job is not looked at yet."""
        connections = self._lobby.connections.copy()
        return sorted(i for i, each in connections.items() if each.prepared is None)

    def waited_for(self, grace: float) -> list[int]:
        """Return the clients that may still become ready, and are worth waiting for.

        That is whoever left less than `grace` seconds ago, and whoever is preparing: at least for
        as long, and for up to ten times as long as the slowest of the others took.
        """
        connections, awaited = self._lobby.connections.copy(), self._lobby.awaited
        there = {client: each.prepared for client, each in connections.items()}
        return [
            client
            for client in range(len(self.names))
            if there.get(client) is None
            and not awaited.is_over(client, there=client in there, grace=grace)
        ]

    def give(
        self, job: dict[str, Any], *, floats: int, accept: Callable[[int, Received], bool]
    ) -> None:
        """Send a job to all devices, now or when they join.

        `floats` is the length of the models that will be sent, `accept` looks at the answer of
        each and says whether it may take part; it is called in the server's thread.
        """
        text = json.dumps(job, separators=(",", ":"), allow_nan=False)
        if len(text.encode()) > LONGEST // 2:
            raise InputError(
                f"job must be at most {LONGEST // 2} bytes as JSON, got {len(text.encode())}; "
                "let devices read large things from files"
            )
        self._in_loop(self._lobby.give(text, floats, accept))

    def ask(
        self,
        kind: str,
        clients: Sequence[int],
        floats: Floats,
        tell: Tell,
        *,
        seconds: float,
        most_floats: int = 0,
        **fields: object,
    ) -> int:
        """Ask clients, and do not wait for the answers; return the number of the task.

        `tell` is called once for each in the server's thread: when it has answered, with at most
        `most_floats` numbers, when it is gone, or when `seconds` are over.
        """
        self._task += 1
        question = Question.about(kind, self._task, floats, most_floats=most_floats, **fields)
        self._in_loop(self._lobby.ask(clients, question, tell, seconds))
        return question.task

    def wait(self, seconds: float) -> None:
        """Wait until who can be asked may have changed, at most `seconds`."""
        with self._changed:
            self._changed.wait(seconds)

    def late(self) -> list[Response]:
        """Return the answers that came too late, each once."""
        late, self._lobby.late = self._lobby.late, []
        return late

    def refuse(self, client: int, reason: str, details: str) -> None:
        """Count and log something that is not accepted, or not as it is."""
        with self._changed:
            self.refusals[client, reason] += 1
        logger.warning("%r: %s: %s", self.names[client], verdict(reason), details)

    def close(self, *, goodbye: bool = True) -> None:
        """Stop listening; with `goodbye` devices end, else they wait for the next server."""
        if not self._closed:
            self._in_loop(self._end(goodbye=goodbye))
            self._stop()

    async def _end(self, *, goodbye: bool) -> None:
        if goodbye:
            await self._lobby.end()
        await self._listening.stop(LEAVE if goodbye else None)

    def _stop(self) -> None:
        self._closed = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _in_loop(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()
