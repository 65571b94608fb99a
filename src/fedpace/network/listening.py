"""Where devices call: a gRPC server, and what it bears from those who do."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import grpc

from fedpace.checks import number
from fedpace.errors import InputError
from fedpace.network.callers import Callers
from fedpace.network.lobby import HELLO
from fedpace.network.tls import Certificates, target
from fedpace.network.wire import METHOD, PLAIN_MESSAGES

# Connections beyond one per device: those that shake hands, that come back before the old one is
# noticed to be gone, and strangers. More are closed at once.
MORE, LEAST_MORE = 256, 8
# Files that the rest of the program may need at the same time.
OTHER_FILES = 64
# Bytes that are read from a connection at a time, and that each keeps ready for the next read: gRPC
# would make it as many as a whole update has.
READ = 16 << 10
# A device may ask for signs of life so often, in milliseconds; more often is a flood.
PINGS_APART = 10_000
# Seconds that devices are given to read the goodbye.
LEAVE = 5.0
# Seconds that gRPC, which counts milliseconds in 32 bits, can wait for a sign of life.
LONGEST_SILENCE = 1e6

Attend = Callable[[object, grpc.aio.ServicerContext], Coroutine[Any, Any, None]]


def check_signs_of_life(heartbeat: float, silence: float) -> None:
    """Refuse seconds in which no sign of life could be asked for, or none given."""
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


async def listen(
    attend: Attend,
    host: str,
    port: int,
    tls: Certificates | None,
    *,
    devices: int,
    heartbeat: float,
    silence: float,
) -> tuple[grpc.aio.Server, tuple[str, int]]:
    """Begin to listen; return the server, and the address."""
    answer = max(1, round(1000 * (silence - heartbeat)))
    options = [
        *PLAIN_MESSAGES,
        ("grpc.max_allowed_incoming_connections", devices + _allowed_more(devices)),
        ("grpc.max_concurrent_streams", 1),
        ("grpc.max_metadata_size", 8 << 10),
        ("grpc.experimental.tcp_max_read_buffer_size", READ),
        ("grpc.server_handshake_timeout_ms", int(1000 * HELLO)),
        ("grpc.max_connection_idle_ms", int(1000 * HELLO)),  # without a call
        ("grpc.keepalive_time_ms", int(1000 * heartbeat)),
        ("grpc.keepalive_timeout_ms", answer),
        ("grpc.http2.ping_timeout_ms", answer),
        ("grpc.http2.max_pings_without_data", 0),  # that the server itself may send
        ("grpc.http2.min_ping_interval_without_data_ms", PINGS_APART),
        ("grpc.so_reuseport", 0),  # else a second server could take the same port
    ]
    server = grpc.aio.server(options=options)
    callers = Callers(asyncio.get_running_loop(), HELLO)

    async def attend_caller(unread: object, line: grpc.aio.ServicerContext) -> None:
        callers.called()
        await attend(unread, line)

    _, service, method = METHOD.split("/")
    handlers = {method: grpc.stream_stream_rpc_method_handler(attend_caller)}
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, handlers)])
    if port:
        _check_free(host, port)
    address = target(host, port)
    try:
        if tls is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, tls.for_server(callers.came))
    except RuntimeError:
        raise _taken(host, port, "it cannot be bound") from None
    await server.start()
    return server, (host, port)


def _check_free(host: str, port: int) -> None:
    """Try to listen, for gRPC does not say why it cannot."""
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
    """Return how many more connections than one per device there may be; make room for them."""
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
