"""What becomes of the replies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypedDict

import numpy as np

from fedpace.checks import FloatArray
from fedpace.errors import InputError
from fedpace.lookup import found
from fedpace.rounds.backend import Reply
from fedpace.sampling.design import Draw


class Server(Protocol):
    """Makes the next model from the replies; its state is as free as a sampler's."""

    def init(self, parameters: FloatArray) -> Any:
        """Return the state before the first round."""

    def apply(
        self, state: Any, parameters: FloatArray, draw: Draw, reply: Reply
    ) -> tuple[FloatArray, Any]:
        """Return the new model and the new state.

        `draw` holds the clients that answered, in the order of `reply`, and their weights. It is
        not called for a round in which nobody answered.
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


SERVERS = {"average": Average, "adam": Adam, "yogi": Yogi}


def server_named(text: str) -> Server:
    """Return the server of a text: average, adam:RATE, yogi:RATE, or `file.py:name` for your own.

    What a name of your own stands for is a server, or a class or function that returns one.

    >>> server_named("adam:0.1")
    Adam(rate=0.1, betas=(0.9, 0.99), floor=0.001)
    """
    name, _, rate = text.partition(":")
    if name in ("adam", "yogi") and rate:
        try:
            value = float(rate)
        except ValueError:
            value = 0.0
        if not 0 < value < np.inf:
            raise InputError(f"server must be {name}:RATE, got '{text}'; write {name}:0.01")
        return Adam(value) if name == "adam" else Yogi(value)
    server: Any = found(text, SERVERS, argument="server", group="fedpace.servers")
    is_one = hasattr(server, "apply") and not isinstance(server, type)
    return server if is_one else server()  # type: ignore[no-any-return]
