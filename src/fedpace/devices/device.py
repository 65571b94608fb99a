"""A device: joins a server, trains on its own data when asked, and keeps the data to itself."""

from __future__ import annotations

import csv
import json
import logging
import math
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from inspect import signature
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple, Protocol

import grpc
import numpy as np

from fedpace.backends.local import LocalEvaluation
from fedpace.checks import FloatArray, positive_count
from fedpace.devices.devices_pb2 import Asked, Said
from fedpace.devices.wire import (
    CERTIFICATE_WORDS,
    METHOD,
    PLAIN_MESSAGES,
    Certificates,
    MessageReader,
    ProtocolError,
    Received,
    check_private,
    encode,
    grpc_address,
)
from fedpace.errors import InputError

# Seconds of silence before a keepalive ping, and seconds for the server to answer it.
SILENCE = 30.0
# Seconds before the first reconnection, doubled each time up to the second.
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0
# A server that refuses a certificate hangs up without a reason; four times are no accident.
TURNED_AWAY = 4
# gRPC's words for that; a full server hangs up earlier, during the handshake.
HUNG_UP, TOO_EARLY = ("Socket closed", "Connection reset"), "andshake"
# Largest accepted model, a gigabyte: protects the device's memory.
MOST_FLOATS = 2**28
# Characters of an error message that are sent to the server.
MESSAGE = 500
OPTIONS = [
    *PLAIN_MESSAGES,
    ("grpc.keepalive_time_ms", int(1000 * SILENCE)),
    ("grpc.keepalive_timeout_ms", int(1000 * SILENCE)),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.use_local_subchannel_pool", 1),  # share no connection with another device
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
    ("grpc.service_config_disable_resolution", 1),
]

logger = logging.getLogger(__name__)


class Trainer(Protocol):
    """What trains on a device; `fedpace.backends.local.LocalTrainer` is one."""

    @property
    def samples(self) -> int:
        """n_i."""

    def train(
        self, parameters: FloatArray, *, round_index: int, learning_rate: float
    ) -> tuple[FloatArray, float]:
        """Return the update w_i − w and the gradient norm of one round.

        With an argument `local_steps` the server may choose how many steps are taken.
        """

    def loss(self, parameters: FloatArray) -> float:
        """Return F_i(w)."""

    def evaluate(self, parameters: FloatArray) -> LocalEvaluation:
        """Return the mean training loss, and how many held-out samples are classified right."""


Prepare = Callable[[dict[str, Any]], Trainer]


class RateLimit(NamedTuple):
    """Bytes per second that a device sends and receives at most."""

    up: float
    down: float


def serve(
    host: str,
    port: int,
    name: str,
    prepare: Prepare,
    *,
    tls: Certificates | None = None,
    rate_limit: RateLimit | None = None,
    patience: float | None = None,
    insecure: bool = False,
) -> None:
    """Join a server under a name, and train when asked, until the server says goodbye.

    A broken connection is made again after 0.2 s to 5 s. The data stay on the device: it sends only
    updates, counts, norms, losses, times and errors. Of an `InputError` it sends the message, of
    any other error the type, because its message may quote a sample.

    Parameters
    ----------
    host, port : str, int
        Address of the server, which may start later.
    name : str
        One of the names that the server expects; with TLS the common name of the certificate.
    prepare : callable of a job
        Returns the Trainer for a job, a dict of JSON values. Called once for each new job: if the
        same job comes again, for instance after a broken connection, its trainer is kept.
    tls, insecure : Certificates, bool, optional
        See `fedpace.devices.wire.Certificates.read`; needed unless the host is a loopback address,
        or a plain connection to another machine is allowed.
    rate_limit : RateLimit, optional
        Limit the device's own bandwidth.
    patience : float > 0, optional
        Seconds without any server after which to give up; None for never.

    Raises
    ------
    InputError
        If the server refuses the name or the certificate, or none was there for `patience`.
    """
    check_private(host, tls, insecure=insecure)
    device = Device(name, prepare, rate_limit)
    # Spread out the returns of devices that lost their server together.
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
    """A device's end of the protocol: `attend` serves over one connection."""

    def __init__(self, name: str, prepare: Prepare, rate_limit: RateLimit | None = None) -> None:
        self.welcomed = False
        self._name, self._prepare, self._rate_limit = name, prepare, rate_limit
        self._job = ""
        self._trainer: Trainer | None = None
        self._turned_away = 0

    def attend(self, host: str, port: int, tls: Certificates | None) -> bool:
        """Serve over one connection; return whether the server said goodbye."""
        self.welcomed = False
        with open_channel(host, port, tls) as channel:
            outbox: SimpleQueue[bytes | None] = SimpleQueue()
            outbox.put(self.hello)
            call = channel.stream_stream(METHOD)(self._send(outbox))
            try:
                reader = MessageReader(Asked)
                for data in call:
                    if self._rate_limit is not None:
                        time.sleep(len(data) / self._rate_limit.down)
                    for message in self.answer(reader, data):
                        outbox.put(message)
                return True
            except grpc.RpcError:
                self._stop_if_refused(call, encrypted=tls is not None)
                logger.info("no server at %s:%s, or not any more: %s", host, port, call.details())
            except ProtocolError as error:
                logger.warning("the server violates the protocol: %s", error)
            finally:
                outbox.put(None)
                call.cancel()
        return False

    @property
    def hello(self) -> bytes:
        """The first message."""
        (message,) = encode(Said(hello={"name": self._name}))
        return message

    def answer(self, reader: MessageReader, data: bytes) -> list[bytes]:
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
            return self._answer(asked)
        except Exception as error:  # any error of a trainer is reported
            logger.exception("%s failed", asked.kind)
            return encode(Said(task=asked.task, failed={"message": _error_message(error)}))

    def _answer(self, asked: Received) -> list[bytes]:
        if asked.kind == "job":
            if self._trainer is None or asked.fields.json != self._job:
                self._trainer = None  # before the next: two may not fit into memory
                self._trainer = self._prepare(json.loads(asked.fields.json))
                self._job = asked.fields.json
            return encode(Said(task=asked.task, ready={"samples": self._trainer.samples}))
        if self._trainer is None:
            raise InputError("a job must come before training and evaluation")
        respond = _evaluate if asked.kind == "evaluate" else _train
        return respond(self._trainer, asked)

    def _send(self, outbox: SimpleQueue[bytes | None]) -> Iterator[bytes]:
        for data in iter(outbox.get, None):
            if self._rate_limit is not None:
                time.sleep(len(data) / self._rate_limit.up)
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


def open_channel(
    host: str, port: int, tls: Certificates | None, options: Sequence[tuple[str, int]] = OPTIONS
) -> grpc.Channel:
    """Return a channel to a server; it connects when it is first used."""
    address = grpc_address(host, port)
    if tls is None:
        return grpc.insecure_channel(address, options)
    return grpc.secure_channel(address, tls.for_device, options)


def _train(trainer: Trainer, asked: Received) -> list[bytes]:
    parameters = asked.floats.astype(np.float64)
    start = time.perf_counter()
    loss = trainer.loss(parameters)
    fields = asked.fields
    more = {}
    if fields.local_steps > 0 and "local_steps" in signature(trainer.train).parameters:
        more["local_steps"] = int(fields.local_steps)
    update, grad_norm = trainer.train(
        parameters, round_index=fields.round, learning_rate=fields.learning_rate, **more
    )
    with np.errstate(over="ignore"):  # the server refuses a diverging update
        floats = update.astype(np.float32)
    said = {
        "computing_seconds": time.perf_counter() - start,
        "grad_norm": float(grad_norm),
        "loss": _finite(loss),
        **more,
    }
    return encode(Said(task=asked.task, update=said), floats)


def _evaluate(trainer: Trainer, asked: Received) -> list[bytes]:
    counts = trainer.evaluate(asked.floats.astype(np.float64))
    said = counts._asdict() | {"loss": _finite(counts.loss)}
    return encode(Said(task=asked.task, counts=said))


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _error_message(error: Exception) -> str:
    """Return what the server may know of an error.

    >>> _error_message(ValueError("no class for the sample [0.1, 0.7]"))
    'ValueError; see the log of the device'
    """
    if isinstance(error, InputError):
        return str(error)[:MESSAGE]
    return f"{type(error).__name__}; see the log of the device"


# A Linux bridge has 1024 ports; three digits fit into the name of an interface.
MOST_DEVICES = 1000
HEADER = ["name", "samples"]


def join(
    address: str,
    name: str,
    *,
    certs: Path | None = None,
    shards: Path | None = None,
    pace: float | None = None,
    patience: float | None = None,
    allow: Sequence[str] = (),
) -> None:
    """Act as one device until the server says goodbye; see `fedpace.devices.device.serve`.

    `certs` is the folder of the certificates, and `pace` limits the bytes per second in each
    direction. For `shards` and `allow` see `fedpace.devices.shard.OwnShard`.
    """
    from fedpace.devices.shard import OwnShard
    from fedpace.devices.wire import Certificates

    host, port = parse_address(address)
    serve(
        host,
        port,
        name,
        OwnShard(name, shards, allow=allow),
        tls=None if certs is None else Certificates.read(certs, name),
        rate_limit=None if pace is None else RateLimit(up=pace, down=pace),
        patience=patience,
    )


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of a text.

    >>> parse_address("[::1]:7100")
    ('::1', 7100)
    """
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise InputError(f"address must be HOST:PORT, got '{text}'; write 192.168.1.10:7100")
    return host.removeprefix("[").removesuffix("]"), int(port)


def device_names(count: int) -> list[str]:
    """Return the default names of devices.

    >>> device_names(3)
    ['device-00', 'device-01', 'device-02']
    """
    positive_count("--devices", count, "give a number of devices", MOST_DEVICES)
    width = max(2, len(str(count - 1)))
    return [f"device-{number:0{width}d}" for number in range(count)]


def parse_devices(text: str) -> list[str]:
    """Return the names of a text: a number of devices, or names with commas.

    >>> parse_devices("2"), parse_devices("kitchen, attic,kitchen")
    (['device-00', 'device-01'], ['kitchen', 'attic'])
    """
    if text.strip().isdecimal():
        return device_names(int(text))
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise InputError(f"--devices must be a number or names, got '{text}'; write 40")
    return names


def read_samples(path: Path) -> dict[str, int]:
    """Return the sample counts of devices from a CSV file with the columns name and samples."""
    try:
        lines = list(csv.reader(path.read_text(encoding="utf-8").splitlines(), strict=True))
    except (OSError, ValueError, csv.Error) as error:
        raise InputError(f"{path}: cannot be read: {error}; give a CSV file") from None
    if not lines or [each.strip() for each in lines[0]] != HEADER:
        raise InputError(f"{path}: line 1 must be 'name,samples', got {lines[:1]!r:.60}; write it")
    counts: dict[str, int] = {}
    for number, line in enumerate(lines[1:], start=2):
        if not line:
            continue
        name, count = line if len(line) == 2 else ("", "")
        if not name or name in counts or not count.strip().isdecimal() or int(count) < 1:
            raise InputError(
                f"{path}: line {number} must be a new name and a positive integer, got "
                f"{line!r:.60}; write kitchen,120"
            )
        counts[name] = int(count)
    return counts
