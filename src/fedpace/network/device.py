"""A device: joins a server, trains on its own data when asked, and keeps the data to itself."""

from __future__ import annotations

import json
import logging
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from typing import Any, NamedTuple

import grpc

from fedpace.errors import InputError
from fedpace.network.devices_pb2 import Asked, Said
from fedpace.network.tls import CERTIFICATE_WORDS, Certificates, check_private, target
from fedpace.network.trainer import Trainer, counted, trained
from fedpace.network.wire import METHOD, PLAIN_MESSAGES, ProtocolError, Reader, Received, written

# Seconds of silence after which the server is asked for a sign of life, and seconds to give it.
SILENCE = 30.0
# Seconds before a device tries again, doubled each time up to the second.
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0
# A server that refuses a certificate hangs up without a word; this often is no accident.
TURNED_AWAY = 4
# What gRPC says then; a server that is full hangs up earlier, during the handshake.
HUNG_UP, TOO_EARLY = ("Socket closed", "Connection reset"), "andshake"
# Numbers of a model that are believed: a gigabyte. What claims more is no server of ours.
MOST_FLOATS = 2**28
# Characters of a message about a wrong argument, file or setting that the server is told.
MESSAGE = 500
OPTIONS = [
    *PLAIN_MESSAGES,
    ("grpc.keepalive_time_ms", int(1000 * SILENCE)),
    ("grpc.keepalive_timeout_ms", int(1000 * SILENCE)),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.use_local_subchannel_pool", 1),  # no other device's connection
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
    ("grpc.service_config_disable_resolution", 1),
]

logger = logging.getLogger(__name__)

Prepare = Callable[[dict[str, Any]], Trainer]


class Pace(NamedTuple):
    """How fast a device is let send and receive, in bytes per second."""

    up: float
    down: float


def serve(
    host: str,
    port: int,
    name: str,
    prepare: Prepare,
    *,
    tls: Certificates | None = None,
    pace: Pace | None = None,
    patience: float | None = None,
    insecure: bool = False,
) -> None:
    """Join a server under a name, and train when asked, until told goodbye.

    A connection that breaks is made again, after 0.2 s to 5 s: servers may come and go. The data
    stay here. Only updates, counts, norms, losses, times and what went wrong are sent: of an
    `InputError` its message, of any other error its type, as its message may quote a sample.

    Parameters
    ----------
    host, port : str, int
        Where the server listens, or will.
    name : str
        One of the names that the server expects; with TLS the common name of the certificate.
    prepare : callable of a job
        Returns the Trainer for a job, a dict of JSON values. Called once for each new job: one
        that comes again, after a broken connection say, keeps its trainer.
    tls, insecure : Certificates, bool, optional
        See `fedpace.network.tls.Certificates.read`; needed unless the host is a loopback address,
        or a plain connection to another machine is allowed.
    pace : Pace, optional
        Bytes per second up and down that the device itself keeps to.
    patience : float > 0, optional
        Seconds without any server after which to give up; None for never.

    Raises
    ------
    InputError
        If the server refuses the name or the certificate, or none was there for `patience`.
    """
    check_private(host, tls, insecure=insecure)
    device = Device(name, prepare, pace)
    # Devices that lost their server together do not come back in the same moment.
    spread = 0.5 + zlib.crc32(name.encode()) / 2**32
    pause, alone_since = FIRST_PAUSE, time.monotonic()
    while not device.attend(host, port, tls):
        if device.welcomed:
            pause, alone_since = FIRST_PAUSE, time.monotonic()
        if patience is not None and time.monotonic() - alone_since > patience:
            raise InputError(
                f"address must be one where a server listens, got {host}:{port} without any "
                f"for {patience:g} s; start the server first"
            )
        time.sleep(pause * spread)
        pause = min(2 * pause, LONGEST_PAUSE)


class Device:
    """One device's end: `attend` serves over one connection, `answers` does what is asked."""

    def __init__(self, name: str, prepare: Prepare, pace: Pace | None = None) -> None:
        self.welcomed = False
        self._name, self._prepare, self._pace = name, prepare, pace
        self._job = ""
        self._trainer: Trainer | None = None
        self._turned_away = 0

    def attend(self, host: str, port: int, tls: Certificates | None) -> bool:
        """Serve over one connection; return whether the server said goodbye."""
        self.welcomed = False
        with opened(host, port, tls) as channel:
            said: SimpleQueue[bytes | None] = SimpleQueue()
            said.put(self.hello)
            call = channel.stream_stream(METHOD)(self._sent(said))
            try:
                reader = Reader(Asked)
                for data in call:
                    self._take_its_time(data)
                    for message in self.answers(reader, data):
                        said.put(message)
                return True
            except grpc.RpcError:
                self._stop_if_refused(call, encrypted=tls is not None)
                logger.info("no server at %s:%s, or not any more: %s", host, port, call.details())
            except ProtocolError as error:
                logger.warning("the server said what no server of ours says: %s", error)
            finally:
                said.put(None)
                call.cancel()
        return False

    @property
    def hello(self) -> bytes:
        """What the device says first."""
        (message,) = written(Said(hello={"name": self._name}))
        return message

    def answers(self, reader: Reader, data: bytes) -> list[bytes]:
        """Do what a message asks for; return the messages of the answer."""
        asked = reader.take(data)
        if asked is None:
            return []
        self.welcomed = True
        if asked.kind == "welcome":
            return []
        if asked.kind == "job":
            reader.most_floats = asked.fields.size
            if asked.fields.size > MOST_FLOATS:
                raise ProtocolError(f"a job for models of {asked.fields.size} numbers")
        try:
            return self._answered(asked)
        except Exception as error:  # whatever a trainer has to say; the server must learn it
            logger.exception("%s failed", asked.kind)
            return written(Said(task=asked.task, failed={"message": _told(error)}))

    def _answered(self, asked: Received) -> list[bytes]:
        if asked.kind == "job":
            if self._trainer is None or asked.fields.json != self._job:
                self._trainer = None  # before the next: two may not fit into memory
                self._trainer = self._prepare(json.loads(asked.fields.json))
                self._job = asked.fields.json
            return written(Said(task=asked.task, ready={"samples": self._trainer.samples}))
        if self._trainer is None:
            raise InputError("a job must come before what is to be done for it")
        do = counted if asked.kind == "evaluate" else trained
        return do(self._trainer, asked)

    def _take_its_time(self, data: bytes) -> None:
        if self._pace is not None:
            time.sleep(len(data) / self._pace.down)

    def _sent(self, said: SimpleQueue[bytes | None]) -> Iterator[bytes]:
        """Hand over what is to be sent, each when the last is on its way."""
        for data in iter(said.get, None):
            if self._pace is not None:
                time.sleep(len(data) / self._pace.up)
            yield data

    def _stop_if_refused(self, call: grpc.Call, *, encrypted: bool) -> None:
        code, details = call.code(), str(call.details())
        if code is grpc.StatusCode.PERMISSION_DENIED:
            raise InputError(
                f"name must be one that the server expects, got '{self._name}': "
                f"{details!r:.200}; ask for the right name and certificate"
            )
        if self.welcomed:
            self._turned_away = 0
        elif encrypted and TOO_EARLY not in details and any(each in details for each in HUNG_UP):
            self._turned_away += 1
        if self._turned_away == TURNED_AWAY or any(word in details for word in CERTIFICATE_WORDS):
            raise InputError(
                f"certificates must be accepted by both sides: {details!r:.300}; "
                "make them together with: fedpace lab certs"
            )


def opened(
    host: str, port: int, tls: Certificates | None, options: Sequence[tuple[str, int]] = OPTIONS
) -> grpc.Channel:
    """Return a channel to a server; it connects when it is first used."""
    address = target(host, port)
    if tls is None:
        return grpc.insecure_channel(address, options)
    return grpc.secure_channel(address, tls.for_device, options)


def _told(error: Exception) -> str:
    """Return what the server may know of an error.

    >>> _told(ValueError("no class for the sample [0.1, 0.7]"))
    'ValueError; the device has written down the rest'
    """
    if isinstance(error, InputError):
        return str(error)[:MESSAGE]
    return f"{type(error).__name__}; the device has written down the rest"
