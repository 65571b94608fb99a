"""The gRPC server that devices join, with its limits, in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import resource
import socket
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import grpc

from fedpace.backends.remote.screening import verdict
from fedpace.checks import number
from fedpace.devices.connections import (
    HELLO,
    ConnectionTable,
    LogLimit,
    OnResponse,
    Question,
    Response,
)
from fedpace.devices.wire import (
    LONGEST,
    METHOD,
    PLAIN_MESSAGES,
    Certificates,
    Floats,
    Received,
    check_private,
    grpc_address,
)
from fedpace.errors import InputError

# Connections beyond one per device, for handshakes, returning devices and strangers. Any more are
# closed at once.
MORE, LEAST_MORE = 256, 8
# Files that the rest of the program may need at the same time.
OTHER_FILES = 64
# Bytes that gRPC reads at a time, and buffers per connection; its default is a complete update.
READ_BUFFER = 16 << 10
# A device may send keepalive pings at most this often, in milliseconds.
PINGS_APART = 10_000
# Seconds for devices to read the goodbye.
LEAVE = 5.0
# Seconds that gRPC can wait for a keepalive: it counts milliseconds in 32 bits.
LONGEST_SILENCE = 1e6

logger = logging.getLogger(__name__)
T = TypeVar("T")


class DeviceServer:
    """Listen for devices, ask them questions and report their answers.

    Parameters
    ----------
    names : sequence of str
        Names of the devices to admit; client i is the i-th.
    host, port : str, int
        Where to listen; port 0 takes a free one, see `address`.
    tls, insecure : Certificates, bool, optional
        See `fedpace.devices.wire.Certificates.read`; needed unless the host is a loopback address,
        or plain connections from other machines are allowed.
    heartbeat, silence : float > 0
        Seconds of silence before a keepalive ping, and before a device counts as gone.

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
        check_keepalive(heartbeat, silence)
        if not names or len(set(names)) != len(names):
            raise InputError(f"names must differ, got {list(names)!r:.80}; give one per device")
        self.names = list(names)
        self.refusals: Counter[tuple[int, str]] = Counter()
        self._changed = threading.Condition()
        self._log = LogLimit(logger)
        self._table = ConnectionTable(self.names, self.refuse, self._notify)
        self._task = 0
        self._closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="devices", daemon=True)
        self._thread.start()
        try:
            self._server, self.address = self._in_loop(
                self._listen(host, port, tls, heartbeat, silence)
            )
        except BaseException:
            self._stop()
            raise

    def __enter__(self) -> DeviceServer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(goodbye=kind is None)  # a failed run may resume with the same devices

    @property
    def connected(self) -> list[int]:
        """The connected clients, prepared or not."""
        return self._table.where(lambda _: True)

    @property
    def free(self) -> list[int]:
        """The clients that can be asked: connected, prepared for the job, owing no answer."""
        return self._table.where(lambda each: bool(each.prepared) and not each.busy)

    @property
    def preparing(self) -> list[int]:
        """The connected clients whose answer to the job is not checked yet."""
        return self._table.where(lambda each: each.prepared is None)

    def expected(self, grace: float) -> list[int]:
        """Return the unprepared clients that are worth waiting for: see `ConnectionTable`."""
        return self._table.expected(grace)

    def give(
        self, job: dict[str, Any], *, floats: int, accept: Callable[[int, Received], bool]
    ) -> None:
        """Send a job to all devices, now or when they join.

        `floats` is the length of the models to come. `accept` gets each client's answer, in the
        server's thread, and returns whether the client may take part.
        """
        text = json.dumps(job, separators=(",", ":"), allow_nan=False)
        if len(text.encode()) > LONGEST // 2:
            raise InputError(
                f"job must be at most {LONGEST // 2} bytes as JSON, got {len(text.encode())}; "
                "let devices read large things from files"
            )
        self._in_loop(self._table.give(text, floats, accept))

    def ask(
        self,
        kind: str,
        clients: Sequence[int],
        floats: Floats,
        on_response: OnResponse,
        *,
        seconds: float,
        most_floats: int = 0,
        **fields: object,
    ) -> int:
        """Ask clients without waiting for the answers; return the number of the task.

        `on_response` is called once for each, in the server's thread: when it has answered, with at
        most `most_floats` numbers, when it is gone, or after `seconds`.
        """
        self._task += 1
        question = Question.about(kind, self._task, floats, most_floats=most_floats, **fields)
        self._in_loop(self._table.ask(clients, question, on_response, seconds))
        return question.task

    def wait(self, seconds: float) -> None:
        """Wait until other clients may be free, at most `seconds`."""
        with self._changed:
            self._changed.wait(seconds)

    def late(self) -> list[Response]:
        """Return the answers that came too late, each once."""
        late, self._table.late = self._table.late, []
        return late

    def refuse(self, client: int, reason: str, details: str) -> None:
        """Count and log something that is refused or bounded."""
        with self._changed:
            self.refusals[client, reason] += 1
            name = self.names[client]
            self._log.warn(name, "%r: %s: %s", name, verdict(reason), details)

    def close(self, *, goodbye: bool = True) -> None:
        """Stop listening; with `goodbye` devices end, else they wait for the next server."""
        if not self._closed:
            self._in_loop(self._end(goodbye=goodbye))
            self._stop()

    async def _end(self, *, goodbye: bool) -> None:
        if goodbye:
            await self._table.end()
        await self._server.stop(LEAVE if goodbye else None)

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

    async def _listen(
        self, host: str, port: int, tls: Certificates | None, heartbeat: float, silence: float
    ) -> tuple[grpc.aio.Server, tuple[str, int]]:
        """Start the gRPC server; return it and its address."""
        server = grpc.aio.server(options=_options(len(self.names), heartbeat, silence))
        silent = SilentConnections(asyncio.get_running_loop(), HELLO)

        async def attend(unread: object, call: grpc.aio.ServicerContext) -> None:
            silent.note_call()
            await self._table.attend(unread, call)

        _, service, method = METHOD.split("/")
        handlers = {method: grpc.stream_stream_rpc_method_handler(attend)}
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, handlers)])
        if port:
            _check_free(host, port)
        address = grpc_address(host, port)
        try:
            if tls is None:
                port = server.add_insecure_port(address)
            else:
                port = server.add_secure_port(address, tls.for_server(silent.note_connection))
        except RuntimeError:
            raise _taken(host, port, "it cannot be bound") from None
        await server.start()
        return server, (host, port)


class SilentConnections:
    """Count connections without a call, and log their number at most once in `within` seconds.

    gRPC does not report certificates that it refuses. `note_connection` may be called in any
    thread, `note_call` in the event loop `loop`.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, within: float) -> None:
        self._loop, self._within = loop, within
        self._latest = self._before = 0  # connections without a call, of this period and the last
        self._scheduled = False

    def note_connection(self) -> None:
        """Count a connection before its TLS handshake."""
        with contextlib.suppress(RuntimeError):  # the server has just closed
            self._loop.call_soon_threadsafe(self._count)

    def note_call(self) -> None:
        """Count one connection less: it has led to a call."""
        if self._before:
            self._before -= 1
        elif self._latest:
            self._latest -= 1

    def _count(self) -> None:
        self._latest += 1
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_later(self._within, self._report)

    def _report(self) -> None:
        if self._before:
            logger.warning(
                "connections without a call: %d; certificates that were refused, or strangers; "
                "gRPC writes each reason to standard error",
                self._before,
            )
        self._before, self._latest = self._latest, 0
        self._scheduled = self._before > 0
        if self._scheduled:
            self._loop.call_later(self._within, self._report)


def check_keepalive(heartbeat: float, silence: float) -> None:
    """Refuse keepalive seconds that gRPC cannot keep, or that leave no time to answer."""
    for name, value in (("heartbeat", heartbeat), ("silence", silence)):
        if not 0.001 <= number(name, value, "give seconds") <= LONGEST_SILENCE:
            raise InputError(
                f"{name} must be from 0.001 to {LONGEST_SILENCE:g} seconds, got {value:g}; "
                "leave it out"
            )
    if silence <= heartbeat:
        raise InputError(
            f"silence must be longer than heartbeat, {heartbeat:g} s, got {silence:g} s; a device "
            "that is asked for a sign of life needs time to give it"
        )


def _options(devices: int, heartbeat: float, silence: float) -> list[tuple[str, int]]:
    answer = max(1, round(1000 * (silence - heartbeat)))
    return [
        *PLAIN_MESSAGES,
        ("grpc.max_allowed_incoming_connections", devices + _allowed_more(devices)),
        ("grpc.max_concurrent_streams", 1),
        ("grpc.max_metadata_size", 8 << 10),
        ("grpc.experimental.tcp_max_read_buffer_size", READ_BUFFER),
        ("grpc.server_handshake_timeout_ms", int(1000 * HELLO)),
        ("grpc.max_connection_idle_ms", int(1000 * HELLO)),  # without a call
        ("grpc.keepalive_time_ms", int(1000 * heartbeat)),
        ("grpc.keepalive_timeout_ms", answer),
        ("grpc.http2.ping_timeout_ms", answer),
        ("grpc.http2.max_pings_without_data", 0),  # that the server itself may send
        ("grpc.http2.min_ping_interval_without_data_ms", PINGS_APART),
        ("grpc.so_reuseport", 0),  # else a second server could take the same port
    ]


def _check_free(host: str, port: int) -> None:
    """Try to listen, because gRPC does not report why it cannot."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        with socket.create_server((host, port), family=family):
            pass
    except OSError as error:
        raise _taken(host, port, error.strerror or str(error)) from None


def _taken(host: str, port: int, reason: str) -> InputError:
    return InputError(
        f"address must be free to listen on, got {host}:{port}: {reason}; choose another"
    )


def _allowed_more(devices: int) -> int:
    """Return how many connections beyond one per device are allowed; raise the file limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = devices + MORE + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY:
        return MORE
    more = min(MORE, soft - devices - OTHER_FILES)
    if more < LEAST_MORE:
        least = devices + LEAST_MORE + OTHER_FILES
        raise InputError(
            f"open files must be at least {least} for {devices} devices, got a limit of {soft}; "
            f"raise it with: ulimit -n {least}"
        )
    return more
