"""From the name of a server to the server; averaging of entries that are not trained."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpace.adapt import defines
from fedpace.checks import FloatArray, IntArray
from fedpace.errors import InputError
from fedpace.lookup import find
from fedpace.registry import SERVERS, Entry
from fedpace.training.backend import BaseBackend
from fedpace.training.sampler import BaseSampler
from fedpace.training.server import BaseServer, as_server
from fedpace.training.updates import RoundUpdates

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
        return _load_server(SERVERS["average"]) if preferred is None else as_server(preferred)
    kind, colon, number = name.partition(":")
    entry = SERVERS.get(kind)
    if entry is not None and entry.parameter is not None and (colon or entry.parameter.required):
        return _with_number(entry, number)
    server: Any = find(name, SERVERS, argument="server", group="fedpace.servers")
    if isinstance(server, Entry):
        return _load_server(server)
    if isinstance(server, type) or (callable(server) and not defines(server, BaseServer, "apply")):
        server = _make(server, name)
    return as_server(server, argument=f"server '{name}'")


def _load_server(entry: Entry) -> BaseServer:
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


@dataclass(frozen=True, eq=False)
class AverageBuffers(BaseServer):
    """Set buffers to w + Σ weights_i (w_i − w) / max(1, Σ weights); another server does the rest.

    The weights sum to 1 on average only. Where they sum to more, w + Σ weights_i (w_i − w) may lie
    beyond all w_i: a step for a parameter, but a variance may become negative and the model NaN.
    Divided by their sum, a buffer stays between w and what the clients sent. That is no longer
    unbiased; a running mean forgets the error, as it does the past. The `inner` server makes the
    entries that are `trained`. In asynchronous training a parameter takes the update as it was
    made, but a buffer moves from its current value.

    >>> from fedpace.sampling.design import Draw
    >>> from fedpace.training.backend import Reply
    >>> one = np.array([1.0])
    >>> reply = Reply(np.array([0]), np.array([[4.0, -0.9]]), one, one)
    >>> updates = RoundUpdates(np.ones(2), 1.0, Draw(np.array([0]), np.array([3.0])), reply, one)
    >>> AverageBuffers(BaseServer(), np.array([True, False])).step(None, updates)[0].round(6)
    array([13. ,  0.1])

    With weight 3 a variance of 1 becomes 1 + 3 · (−0.3) = 0.1, not 1 − 2.7.
    """

    inner: BaseServer
    trained: NDArray[np.bool_]
    _buffers: IntArray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "oldest", self.inner.oldest)
        object.__setattr__(self, "needs_rounds", self.inner.needs_rounds)
        object.__setattr__(self, "scales", self.inner.scales)
        object.__setattr__(self, "_buffers", np.flatnonzero(~self.trained))

    def init(self, parameters: FloatArray) -> Any:
        """Return the inner server's state."""
        return self.inner.init(parameters)

    def weigh(self, updates: RoundUpdates) -> FloatArray:
        """Return the inner server's weights."""
        return self.inner.weigh(updates)

    def residual_norms(self, state: Any, updates: RoundUpdates) -> FloatArray:
        """Return the lengths of what the inner server weights."""
        return self.inner.residual_norms(state, updates)

    def step(self, state: Any, updates: RoundUpdates) -> tuple[FloatArray, Any]:
        """Return the inner server's model, but for the buffers."""
        after, state = self.inner.step(state, updates)
        buffers, weights = self._buffers, updates.draw.weights
        if buffers.size:  # Adam, for one, would not keep a variance positive
            moves = _moves(updates, buffers) / max(1.0, weights.sum())
            after = after.copy() if after is updates.parameters else after
            after[buffers] = updates.parameters[buffers] + weights @ moves
        return after, state


def keep_buffers(server: BaseServer, backend: BaseBackend) -> BaseServer:
    """Return the server, which averages what the backend marks as not trained."""
    trained = backend.trained_entries
    return server if trained is None else AverageBuffers(server, trained)


def _moves(updates: RoundUpdates, buffers: IntArray) -> FloatArray:
    """Return w_i − w; in asynchronous training w is newer than the client's start."""
    moves = updates.reply.updates[:, buffers].astype(np.float64)
    if updates.started is not None:
        moves = moves + [model[buffers] for model in updates.models] - updates.parameters[buffers]
    return moves
