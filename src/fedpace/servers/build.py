"""From the name of a server to the server."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedpace.adapt import defines
from fedpace.errors import InputError
from fedpace.lookup import find
from fedpace.registry import SERVERS, Entry
from fedpace.training.sampler import BaseSampler
from fedpace.training.server import BaseServer, as_server

# Stands for the sampler's own server, or the average.
AUTO = "auto"


def server_for(name: str, sampler: BaseSampler | None = None) -> BaseServer:
    """Return the server of that name.

    average, mean, memory, fedvarp, fedstale:BETA, adam:RATE, yogi:RATE; against clients that send
    wrong updates clip:FACTOR, trimmed:SHARE, krum:COUNT. "auto" is the sampler's own server, or the
    average. `file.py:name` stands for a server of yours, or a class or function that returns one.

    >>> server_for("adam:0.1")
    Adam(rate=0.1, betas=(0.9, 0.99), floor=0.001)
    """
    if name == AUTO:
        preferred = None if sampler is None else sampler.server
        return _registered(SERVERS["average"]) if preferred is None else as_server(preferred)
    kind, colon, number = name.partition(":")
    entry = SERVERS.get(kind)
    if entry is not None and entry.parameter is not None and (colon or entry.parameter.required):
        return _with_number(entry, number)
    server: Any = find(name, SERVERS, argument="server", group="fedpace.servers")
    if isinstance(server, Entry):
        return _registered(server)
    if isinstance(server, type) or (callable(server) and not defines(server, BaseServer, "apply")):
        server = _make(server, name)
    return as_server(server, argument=f"server '{name}'")


def _registered(entry: Entry) -> BaseServer:
    made: BaseServer = entry.load()()
    return made


def _with_number(entry: Entry, text: str) -> BaseServer:
    parameter = entry.parameter
    assert parameter is not None
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not (0 < value <= parameter.largest and value < np.inf):
        got = f"'{entry.name}:{text}'; write {entry.name}:{parameter.example}"
        raise InputError(f"server must be {entry.name}:{parameter.name}, got {got}")
    make = entry.load()
    made: BaseServer = make(**{parameter.argument: value}) if parameter.argument else make(value)
    return made


def _make(make: Any, name: str) -> Any:
    try:
        return make()
    except Exception as error:  # of a user's own code
        raise InputError(
            f"server must be made without arguments, got '{name}': {type(error).__name__}: "
            f"{error}; see docs/extend.md"
        ) from None
