"""What becomes of the replies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypedDict, cast

import numpy as np
from numpy.typing import NDArray

from fedpace.checks import FloatArray, IntArray
from fedpace.errors import InputError
from fedpace.lookup import found
from fedpace.rounds.backend import Reply
from fedpace.rounds.memory import Memory, residuals
from fedpace.rounds.robust import Clipped, Krum, Trimmed
from fedpace.rounds.seen import Seen, Started
from fedpace.rounds.state import State
from fedpace.sampling.design import Draw

# Floor on the estimated response rate; limits the correction for missing replies to 5×.
LEAST_CHANCE = 0.2


class Server(Protocol):
    """Makes the next model from the replies; its state is as free as a sampler's."""

    def init(self, parameters: FloatArray) -> Any:
        """Return the state before the first round."""

    def apply(
        self, state: Any, parameters: FloatArray, draw: Draw, reply: Reply
    ) -> tuple[FloatArray, Any]:
        """Return the new model and the new state.

        `draw` holds the clients that answered, in the order of `reply`, and their weights. It is
        not called for a round in which nobody answered. A server that has `informed = True` also
        gets `seen=`, a `Seen` with the learning rate and p_i. One with `weigh(seen)` weights the
        updates itself.
        """


@dataclass(frozen=True)
class Average:
    """w ← w + Σ_i weights_i (w_i − w) [Luo22, Lemma 1].

    Never renormalised: that the weights sum to 1 only on average is what keeps it unbiased.
    """

    def init(self, parameters: FloatArray) -> None:
        """Return None: an average needs no memory."""

    def apply(
        self,
        state: None,
        parameters: FloatArray,
        draw: Draw,
        reply: Reply,
    ) -> tuple[FloatArray, None]:
        """Return the average."""
        return parameters + draw.weights @ reply.updates, state


@dataclass(frozen=True)
class Mean(Average):
    """w ← w + Σ_i weights_i (w_i − w) / Σ_i weights_i: the mean of those who answered.

    As in FedAvg. Biased: who is drawn more often, or answers more often, counts for more.
    """

    def apply(
        self,
        state: None,
        parameters: FloatArray,
        draw: Draw,
        reply: Reply,
    ) -> tuple[FloatArray, None]:
        """Return the mean."""
        return parameters + (draw.weights / draw.weights.sum()) @ reply.updates, state


class Moments(TypedDict):
    """Running means of the aggregate and of its square."""

    first: FloatArray
    second: FloatArray


@dataclass(frozen=True)
class Adam:
    """FedAdam: Adam on the server, with the aggregate as the gradient [Reddi21, Alg. 2].

    With u = Σ weights_i (w_i − w): m ← β₁ m + (1 − β₁) u, v ← β₂ v + (1 − β₂) u², and
    w ← w + η m / (√v + τ). The aggregate is unbiased; Adam's step is not linear in it, so the
    model is as unbiased as Adam itself is.

    Parameters
    ----------
    rate : float > 0
        η, the server's learning rate.
    betas : two floats in [0, 1)
        β₁ and β₂.
    floor : float > 0
        τ, which also is where √v begins, as in the paper.
    """

    rate: float = 0.01
    betas: tuple[float, float] = (0.9, 0.99)
    floor: float = 1e-3

    def init(self, parameters: FloatArray) -> Moments:
        """Return m = 0 and v = τ²."""
        return Moments(
            first=np.zeros_like(parameters), second=np.full_like(parameters, self.floor**2)
        )

    def apply(
        self, state: Moments, parameters: FloatArray, draw: Draw, reply: Reply
    ) -> tuple[FloatArray, Moments]:
        """Return the model after one step of Adam."""
        update = draw.weights @ reply.updates
        first = self.betas[0] * state["first"] + (1 - self.betas[0]) * update
        second = self._second(state["second"], update**2)
        step = self.rate * first / (np.sqrt(second) + self.floor)
        return parameters + step, Moments(first=first, second=second)

    def _second(self, second: FloatArray, square: FloatArray) -> FloatArray:
        return self.betas[1] * second + (1 - self.betas[1]) * square


@dataclass(frozen=True)
class Yogi(Adam):
    """FedYogi: Adam whose second moment falls no faster than it rises [Reddi21, Alg. 2].

    v ← v − (1 − β₂) u² sign(v − u²).
    """

    def _second(self, second: FloatArray, square: FloatArray) -> FloatArray:
        moved: FloatArray = second - (1 - self.betas[1]) * square * np.sign(second - square)
        return moved


def next_model(server: Server, state: Any, seen: Seen) -> tuple[FloatArray, Any]:
    """Return what a server makes of a round, and its state after it."""
    more = {"seen": seen} if getattr(server, "informed", False) else {}
    return server.apply(state, seen.parameters, seen.draw, seen.reply, **more)


def applied(
    state: State,
    server: Server,
    came: Draw,
    reply: Reply,
    *,
    asked: IntArray,
    weights: FloatArray,
    learning_rate: float,
    shown: bool = False,
    started: Started | None = None,
    step_rate: float | None = None,
    present: NDArray[np.bool_] | None = None,
    corrected: bool = True,
) -> tuple[State, Seen]:
    """Let the server make the next model; return the state after it, and what was seen.

    `came` holds those who answered, in the order of `reply`, `asked` all who were asked: without a
    barrier some may be there twice. Client i's update is weighted by weights_i / π_i, where π_i is
    the chance that it answers as estimated from *earlier* rounds, (answers + 1) / (draws + 1) and
    at least 0.2. If answering is independent of what the update says, and π_i right, the aggregate
    is unbiased: see docs/method.md. If nobody answers the model stays as it is. `weights` are p_i
    of all clients, and `present` says who could be drawn. Residuals are made only where they are to
    be `shown` to a sampler. Unless weights are to be `corrected`, π_i is taken to be 1.
    """
    draws, answers = _grown(state.asked, weights.size), _grown(state.answered, weights.size)
    chances = (answers[came.clients] + 1) / (draws[came.clients] + 1) if corrected else 1.0
    used = Draw(came.clients, came.weights / np.maximum(chances, LEAST_CHANCE))
    seen = Seen(state.parameters, usable(learning_rate), used, reply, weights)
    seen = seen._replace(
        started=started,
        step_rate=None if step_rate is None else usable(step_rate),
        version=state.round,
        present=present,
    )
    if reply.clients.size:
        if hasattr(server, "weigh"):
            seen = seen._replace(draw=used._replace(weights=server.weigh(seen)))
        if shown:
            seen = seen._replace(residuals=residuals(server, state.server, seen))
        parameters, memory = next_model(server, state.server, seen)
        state = state._replace(parameters=parameters, server=memory)
    np.add.at(draws, asked, 1)
    np.add.at(answers, reply.clients, 1)
    seconds = state.seconds + reply.lasted
    return state._replace(
        round=state.round + 1, seconds=seconds, asked=draws, answered=answers
    ), seen


def usable(learning_rate: float) -> float:
    """Return the rate; where nobody knows it, it is taken to be 1 in every round."""
    return learning_rate if 0 < learning_rate < np.inf else 1.0


def _grown(counts: IntArray, n: int) -> IntArray:
    """Return the counts, with zeros for clients that have come since: no copy in most rounds."""
    more = n - counts.size
    return np.append(counts, np.zeros(more, dtype=np.int64)) if more > 0 else counts


SERVERS: dict[str, Callable[[], Any]] = {
    "average": Average,
    "mean": Mean,
    "memory": Memory,
    "fedvarp": partial(Memory, beta=1.0),
    "adam": Adam,
    "yogi": Yogi,
    "clip": Clipped,
    "trimmed": Trimmed,
    "krum": Krum,
}
# Those that take a number: what it is called, the largest, and what is made of it.
WITH_NUMBER: dict[str, tuple[str, float, Callable[[float], Server]]] = {
    "adam": ("RATE", np.inf, Adam),
    "yogi": ("RATE", np.inf, Yogi),
    "clip": ("FACTOR", np.inf, Clipped),
    "trimmed": ("SHARE", 0.499, Trimmed),
    "krum": ("COUNT", np.inf, Krum),
    "fedstale": ("BETA", 1.0, lambda beta: cast(Server, Memory(beta=beta))),
}
# Stands for the server that the sampler draws best with, or the average.
AUTO = "auto"


def server_named(text: str, sampler: object = None) -> Server:
    """Return the server of a text, or of `file.py:name`.

    average, mean, memory, fedvarp, fedstale:BETA, adam:RATE, yogi:RATE.

    Against clients that send something wrong: clip:FACTOR, trimmed:SHARE, krum:COUNT.

    "auto" is the one that the sampler draws best with, else the average. What a name of your own
    stands for is a server, or a class or function that returns one.

    >>> server_named("adam:0.1")
    Adam(rate=0.1, betas=(0.9, 0.99), floor=0.001)
    """
    if text == AUTO:
        preferred: Server | None = getattr(sampler, "server", None)
        return Average() if preferred is None else preferred
    name, colon, rate = text.partition(":")
    if name in WITH_NUMBER and (colon or name not in SERVERS):
        return _with_number(name, rate)
    server: Any = found(text, SERVERS, argument="server", group="fedpace.servers")
    if callable(server) and (isinstance(server, type) or not hasattr(server, "apply")):
        server = _made(server, text)
    if not (hasattr(server, "init") and hasattr(server, "apply")):
        raise InputError(
            f"server must have init and apply, got '{text}', a {type(server).__name__}; "
            "see docs/extend.md"
        )
    return server  # type: ignore[no-any-return]


def _with_number(name: str, text: str) -> Server:
    what, most, make = WITH_NUMBER[name]
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not (0 < value <= most and value < np.inf):
        got = f"'{name}:{text}'; write {name}:{_example(what)}"
        raise InputError(f"server must be {name}:{what}, got {got}")
    return make(value)


def _example(what: str) -> str:
    return {"BETA": "0.5", "FACTOR": "2", "SHARE": "0.1", "COUNT": "1"}.get(what, "0.01")


def _made(make: Callable[[], Any], text: str) -> Any:
    try:
        return make()
    except Exception as error:  # whatever a user's own raises
        raise InputError(
            f"server must be made without arguments, got '{text}': {type(error).__name__}: "
            f"{error}; see docs/extend.md"
        ) from None
