"""What any server must keep to."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedpace.conformance.saying import must
from fedpace.rounds.backend import Reply
from fedpace.rounds.server import Server
from fedpace.rounds.state import packed, unpacked
from fedpace.sampling.design import Draw


def check_server(make: Callable[[], Server], *, size: int = 5, seed: int = 0) -> None:
    """Let a server apply made-up replies, and raise AssertionError where it breaks a rule.

    The rules: the new model is a finite vector as long as the old one, which stays as it is; the
    state can be stored, and is all that the next model depends on besides its arguments; it
    bears one reply as well as many, and clients that it has not seen before.

    Parameters
    ----------
    make : callable
        Returns a server; called twice, for a run and for the same run resumed.
    size : int ≥ 1
        The number of parameters.
    seed : int
        Of the made-up replies.

    Examples
    --------
    >>> from fedpace import Adam
    >>> check_server(lambda: Adam(rate=0.1))
    """
    rng = np.random.default_rng(seed)
    server = make()
    parameters = rng.normal(size=size)
    state = server.init(parameters)
    for index in range(10):
        draw, reply = _replies(1 + index % 4, size, rng, newest=3 + index)
        try:
            state = unpacked(packed(state))
            stored = unpacked({name: array.copy() for name, array in packed(state).items()})
        except ValueError as error:
            raise AssertionError(f"round {index}: the state must be storable: {error}") from None
        before = parameters.copy()
        after, next_state = server.apply(state, parameters, draw, reply)
        again, _ = make().apply(stored, before.copy(), draw, reply)
        must(np.array_equal(parameters, before), f"round {index}: the old model must stay as it is")
        must(
            after.shape == (size,) and bool(np.isfinite(after).all()),
            f"round {index}: the new model must be {size} finite numbers, got {after!r:.80}",
        )
        must(
            np.array_equal(after, again),
            f"round {index}: the same state must give the same model in a server made anew; keep "
            "in the state whatever the model depends on",
        )
        parameters, state = after, next_state


def _replies(count: int, size: int, rng: np.random.Generator, *, newest: int) -> tuple[Draw, Reply]:
    clients = np.sort(rng.choice(newest + 1, count, replace=False))
    ones = np.ones(count)
    reply = Reply(clients, rng.normal(size=(count, size)), ones, ones)
    return Draw(clients, rng.random(count) + 0.1), reply
