"""A recurrent network in NumPy that predicts the next character."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedpace.checks import FloatArray
from fedpace.models.model import AnyFloats, BaseModel, Labels

# Of scores and what was wanted.
Measure: TypeAlias = Callable[[AnyFloats, Labels], NDArray[Any]]
# Sequences that are evaluated at a time, to bound the memory.
CHUNK = 2048


class _Layers(NamedTuple):
    """Views of the parameters of m clients."""

    inputs: AnyFloats
    hidden: AnyFloats
    outputs: AnyFloats


class _Pass(NamedTuple):
    """What a pass computed, by time: states from the first, which is 0, gates, and n's part of h.

    `gates` are r, z and n of each time, side by side.
    """

    states: AnyFloats
    gates: AnyFloats
    recurrent: AnyFloats


@dataclass(frozen=True)
class Gru(BaseModel):
    """One layer of gated recurrent units and a linear layer, with the cross-entropy loss.

    From tokens x_1 … x_T, integers below `tokens`, it predicts the token after each [Cho14]:

        r = σ(A_x + h U_r), z = σ(B_x + h U_z), n = tanh(C_x + r (h U_n)), h ← (1 − z) n + z h.

    A sample's loss is its mean over the T places, and its accuracy the share that is right. All
    clients of a round train together. The parameters are the rows (A, B, C) of each token, U, and
    the linear layer with its intercepts in the last row.

    >>> Gru(tokens=65).size
    11457
    """

    tokens: int
    units: int = 32
    dtype: type[np.floating[Any]] = np.float32

    @property
    def size(self) -> int:
        """The number of parameters."""
        return sum(rows * columns for rows, columns in self._shapes)

    @property
    def _shapes(self) -> tuple[tuple[int, int], ...]:
        h, v = self.units, self.tokens
        return (v, 3 * h), (h, 3 * h), (h + 1, v)

    def initial(self, rng: np.random.Generator) -> FloatArray:
        """Return uniform numbers within ±1/√units, as PyTorch does."""
        start: FloatArray = rng.uniform(-1, 1, self.size) / np.sqrt(self.units)
        return start

    def gradients(self, parameters: AnyFloats, x: AnyFloats, y: Labels, out: AnyFloats) -> None:
        """Write the gradient of each of m clients."""
        m, batch, length = y.shape
        layers, to = self._layers(parameters), self._layers(out)
        made = self._forward(layers, x)
        # Time and batch as one axis of places.
        after = made.states[1:].transpose(1, 0, 2, 3).reshape(m, -1, self.units)
        back = _softmax(after @ layers.outputs[:, :-1] + layers.outputs[:, -1:])
        places = np.arange(length * batch)
        wanted = y.transpose(0, 2, 1).reshape(m, -1)
        back[np.arange(m)[:, None], places, wanted] -= 1
        back /= places.size
        np.matmul(after.transpose(0, 2, 1), back, out=to.outputs[:, :-1])
        to.outputs[:, -1] = back.sum(axis=1)
        back = back @ layers.outputs[:, :-1].transpose(0, 2, 1)
        by_time = back.reshape(m, length, batch, self.units).transpose(1, 0, 2, 3)
        gates, hidden = self._backward(layers, made, by_time)
        before = made.states[:-1].transpose(1, 0, 2, 3).reshape(m, -1, self.units)
        flat = hidden.transpose(1, 0, 2, 3).reshape(m, -1, 3 * self.units)
        np.matmul(before.transpose(0, 2, 1), flat, out=to.hidden)
        to.inputs[:] = 0
        whose: Any = np.arange(m)[:, None], x.transpose(0, 2, 1).reshape(m, -1)
        np.add.at(to.inputs, whose, gates.transpose(1, 0, 2, 3).reshape(flat.shape))

    def losses(self, parameters: FloatArray, x: AnyFloats, y: Labels) -> AnyFloats:
        """Return each sequence's mean of −log p(next token)."""
        return self._evaluated(parameters, x, y, _surprise)

    def correct(self, parameters: FloatArray, x: AnyFloats, y: Labels) -> NDArray[Any]:
        """Return the share of each sequence's next tokens with the largest score."""
        return self._evaluated(
            parameters, x, y, lambda scores, y: np.equal(scores.argmax(axis=-1), y)
        )

    def _layers(self, parameters: AnyFloats) -> _Layers:
        ends = np.cumsum([rows * columns for rows, columns in self._shapes])[:-1]
        parts = zip(np.split(parameters, ends, axis=1), self._shapes, strict=True)
        return _Layers(*(part.reshape(len(parameters), *shape) for part, shape in parts))

    def _forward(self, layers: _Layers, x: NDArray[Any]) -> _Pass:
        m, batch, length = x.shape
        h = self.units
        states = np.zeros((length + 1, m, batch, h), dtype=self.dtype)
        gates = np.empty((length, m, batch, 3 * h), dtype=self.dtype)
        recurrent = np.empty((length, m, batch, h), dtype=self.dtype)
        clients = np.arange(m)[:, None]
        for t in range(length):
            moved = states[t] @ layers.hidden
            gates[t] = layers.inputs[clients, x[:, :, t]]
            recurrent[t] = moved[..., 2 * h :]
            rz = gates[t, ..., : 2 * h]
            rz += moved[..., : 2 * h]
            rz[:] = 0.5 * np.tanh(0.5 * rz) + 0.5  # σ, without overflow
            r, z, n = np.split(gates[t], 3, axis=-1)
            np.tanh(n + r * recurrent[t], out=n)
            states[t + 1] = n + z * (states[t] - n)
        return _Pass(states, gates, recurrent)

    def _backward(
        self, layers: _Layers, made: _Pass, back: AnyFloats
    ) -> tuple[AnyFloats, AnyFloats]:
        """Return the derivatives by the inputs of the gates, and by h U, from those by h."""
        gates, hidden = np.empty_like(made.gates), np.empty_like(made.gates)
        h, to_state = self.units, np.zeros_like(back[0])
        across = layers.hidden.transpose(0, 2, 1)
        for t in reversed(range(len(back))):
            r, z, n = np.split(made.gates[t], 3, axis=-1)
            to_state = to_state + back[t]
            to_n = to_state * (1 - z) * (1 - n * n)
            gates[t, ..., :h] = to_n * made.recurrent[t] * r * (1 - r)
            gates[t, ..., h : 2 * h] = to_state * (made.states[t] - n) * z * (1 - z)
            gates[t, ..., 2 * h :] = to_n
            hidden[t] = gates[t]
            hidden[t, ..., 2 * h :] *= r
            to_state = to_state * z + hidden[t] @ across
        return gates, hidden

    def _evaluated(
        self, parameters: FloatArray, x: AnyFloats, y: Labels, measure: Measure
    ) -> FloatArray:
        layers = self._layers(parameters.astype(self.dtype)[None])
        found = np.empty(len(y))
        for first in range(0, len(y), CHUNK):
            rows = slice(first, first + CHUNK)
            states = self._forward(layers, x[None, rows]).states[1:, 0]
            scores = states @ layers.outputs[0, :-1] + layers.outputs[0, -1]
            found[rows] = measure(scores, y[rows].T).mean(axis=0)
        return found


def _softmax(scores: AnyFloats) -> AnyFloats:
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    return scores


def _surprise(scores: AnyFloats, y: Labels) -> AnyFloats:
    top = scores.max(axis=-1)
    chosen = np.take_along_axis(scores, y[..., None], axis=-1)[..., 0]
    found: AnyFloats = np.log(np.exp(scores - top[..., None]).sum(axis=-1)) + top - chosen
    return found
