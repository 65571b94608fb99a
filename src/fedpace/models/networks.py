"""Models in NumPy: logistic regression, a small convolutional network and a recurrent one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedpace.checks import AnyFloats, FloatArray, IntArray, Labels
from fedpace.models.model import BaseModel

# OpenBLAS makes no copies for products of up to this many numbers, which saves a third of the
# time. Blocks shorter than this would cost more in calls than that saves.
SMALL, SHORTEST = 10**6, 512


@dataclass(frozen=True)
class Logistic(BaseModel):
    """Softmax of W x + b with the cross-entropy loss.

    The parameters are the rows of (W b), one row per class: the intercept is the weight of a
    constant feature, which `prepare` appends. `dtype` is the precision of training and
    evaluation.

    >>> model = Logistic(features=2, classes=3)
    >>> model.size
    9
    >>> x = model.prepare_whole(np.ones((1, 2)))
    >>> start = model.initial(np.random.default_rng(0))
    >>> model.losses(start, x, np.array([0])).round(6)  # log 3
    array([1.098612])
    """

    features: int
    classes: int
    dtype: type[np.floating[Any]] = np.float64

    @property
    def size(self) -> int:
        """The number of parameters."""
        return self.classes * (self.features + 1)

    def initial(self, rng: np.random.Generator) -> FloatArray:  # noqa: ARG002
        """Return zeros, as in the paper; `rng` is not used."""
        return np.zeros(self.size)

    def prepare(self, x: AnyFloats) -> AnyFloats:
        """Append the constant feature."""
        rows: AnyFloats = np.ones((len(x), self.features + 1), dtype=self.dtype)
        rows[:, :-1] = x
        return rows

    def prepare_whole(self, x: AnyFloats) -> AnyFloats:
        """Append the constant feature and lay out feature by sample.

        The product with few classes takes half the time that it takes on rows.
        """
        columns: AnyFloats = np.ones((self.features + 1, len(x)), dtype=self.dtype)
        columns[:-1] = x.T
        return columns

    def gradients(self, parameters: AnyFloats, x: AnyFloats, y: Labels, out: AnyFloats) -> None:
        """Write (softmax(W x) − onehot(y)) xᵀ / batch for each of m clients."""
        m, batch = y.shape
        shape = (m, self.classes, self.features + 1)
        # Class by client by sample in memory: sums over classes run over long rows.
        scores = np.empty((self.classes, m * batch), dtype=x.dtype)
        by_client = scores.reshape(self.classes, m, batch).transpose(1, 0, 2)
        np.matmul(parameters.reshape(shape), x.transpose(0, 2, 1), out=by_client)
        scores -= scores.max(axis=0)
        np.exp(scores, out=scores)
        total = scores.sum(axis=0)
        total *= batch
        scores /= total
        scores.reshape(-1)[_own_class(y.reshape(-1))] -= 1 / batch
        np.matmul(by_client, x, out=out.reshape(shape))

    def losses(self, parameters: FloatArray, x: AnyFloats, y: Labels) -> AnyFloats:
        """Return −log softmax(W x)[y]."""
        scores = self._scores(parameters, x)
        chosen = scores.reshape(-1).take(_own_class(y))
        top = scores.max(axis=0)
        scores -= top
        np.exp(scores, out=scores)
        loss: AnyFloats = np.log(scores.sum(axis=0))
        loss += top - chosen  # the difference first: both may be large
        return loss

    def correct(self, parameters: FloatArray, x: AnyFloats, y: Labels) -> NDArray[np.bool_]:
        """Return whether y has the largest score; ties go to the first class."""
        scores = self._scores(parameters, x)
        largest = scores == scores.max(axis=0)
        if (largest.sum(axis=0) != 1).any():  # ties, or a score that is no number
            return np.asarray(scores.argmax(axis=0) == y)
        # Looking up takes a third of the time of argmax over the first axis.
        return np.asarray(largest.reshape(-1).take(_own_class(y)))

    def _scores(self, parameters: FloatArray, x: AnyFloats) -> AnyFloats:
        matrix = parameters.reshape(self.classes, self.features + 1).astype(self.dtype)
        block = SMALL // matrix.size
        if block < SHORTEST:
            return np.asarray(matrix @ x)
        scores: AnyFloats = np.empty((self.classes, x.shape[1]), dtype=np.result_type(matrix, x))
        for first in range(0, x.shape[1], block):
            part = slice(first, first + block)
            np.matmul(matrix, x[:, part], out=scores[:, part])
        return scores


def _own_class(y: IntArray) -> IntArray:
    """Return where the score of each sample's own class is, in all scores laid out flat."""
    return y * y.size + _places(y.size)


@lru_cache(maxsize=256)
def _places(count: int) -> IntArray:
    return np.arange(count)


# Pixels of a side that are averaged to one.
AVERAGED = 2
# The convolution: side of its window, and by how many pixels it moves.
WINDOW, STRIDE = 4, 2


@dataclass(frozen=True)
class SmallCnn(BaseModel):
    """One convolution, rectified, and one linear layer, with the cross-entropy loss.

    Images of 28 × 28 are averaged to 14 × 14. Windows of 4 × 4, two pixels apart, lie at 36 places;
    each of `channels` filters gives a number at each. As windows overlap in the same way in all
    images, they are cut out once, in `prepare`, and a convolution is a matrix product for all
    clients of a round: a hundred times cheaper here than LeNet-5.

    The parameters are the filters, (17, channels), and the linear layer, (36 channels + 1,
    `classes`), with the intercepts in the last rows. Other images have another `side`, and
    `colours` numbers per pixel.

    >>> SmallCnn(classes=10).size, SmallCnn(classes=10, channels=16, side=32, colours=3).size
    (3026, 8634)
    """

    classes: int
    channels: int = 8
    dtype: type[np.floating[Any]] = np.float32
    side: int = 28
    colours: int = 1

    @property
    def size(self) -> int:
        """The number of parameters."""
        return self._inputs * self.channels + (self._features + 1) * self.classes

    @property
    def _inputs(self) -> int:
        """Numbers of a window and the constant 1, whose weight is the intercept."""
        return WINDOW * WINDOW * self.colours + 1

    @property
    def _places(self) -> int:
        return ((self.side // AVERAGED - WINDOW) // STRIDE + 1) ** 2

    @property
    def _features(self) -> int:
        return self._places * self.channels

    def initial(self, rng: np.random.Generator) -> FloatArray:
        """Return uniform numbers within ±1/√(inputs of a layer), as PyTorch does."""
        first = rng.uniform(-1, 1, self._inputs * self.channels) / np.sqrt(self._inputs - 1)
        last = rng.uniform(-1, 1, (self._features + 1) * self.classes) / np.sqrt(self._features)
        return np.concatenate([first, last])

    def prepare(self, x: AnyFloats) -> AnyFloats:
        """Return the windows of each image, (samples, places, numbers of a window and 1)."""
        coarse, colours = self.side // AVERAGED, self.colours
        images = x.reshape(-1, coarse, AVERAGED, coarse, AVERAGED, colours).mean(axis=(2, 4))
        windows = np.lib.stride_tricks.sliding_window_view(images, (WINDOW, WINDOW), axis=(1, 2))
        rows: AnyFloats = np.ones((len(images), self._places, self._inputs), dtype=self.dtype)
        rows[:, :, :-1] = windows[:, ::STRIDE, ::STRIDE].reshape(len(images), self._places, -1)
        return rows

    def gradients(self, parameters: AnyFloats, x: AnyFloats, y: Labels, out: AnyFloats) -> None:
        """Write the gradient of each of m clients."""
        m, batch = y.shape
        filters, linear = self._layers(parameters)
        to_filters, to_linear = self._layers(out)
        windows = x.reshape(m, batch * self._places, self._inputs)
        hidden = np.maximum(windows @ filters, 0).reshape(m, batch, self._features)
        scores = hidden @ linear[:, :-1] + linear[:, -1:]
        scores -= scores.max(axis=2, keepdims=True)
        np.exp(scores, out=scores)
        scores /= batch * scores.sum(axis=2, keepdims=True)
        scores[np.arange(m)[:, None], np.arange(batch), y] -= 1 / batch
        np.matmul(hidden.transpose(0, 2, 1), scores, out=to_linear[:, :-1])
        to_linear[:, -1] = scores.sum(axis=1)
        back = scores @ linear[:, :-1].transpose(0, 2, 1)
        back *= hidden > 0
        back = back.reshape(m, batch * self._places, self.channels)
        np.matmul(windows.transpose(0, 2, 1), back, out=to_filters)

    def losses(self, parameters: FloatArray, x: AnyFloats, y: Labels) -> AnyFloats:
        """Return −log softmax(scores)[y]."""
        scores = self._scores(parameters, x)
        top = scores.max(axis=1)
        total = np.exp(scores - top[:, None]).sum(axis=1)
        loss: AnyFloats = np.log(total) + (top - scores[np.arange(len(y)), y])
        return loss

    def correct(self, parameters: FloatArray, x: AnyFloats, y: Labels) -> NDArray[np.bool_]:
        """Return whether y has the largest score; ties go to the first class."""
        return np.asarray(self._scores(parameters, x).argmax(axis=1) == y)

    def _layers(self, parameters: AnyFloats) -> tuple[AnyFloats, AnyFloats]:
        """Return filters and linear layer of each of m parameters, as views."""
        m, first = len(parameters), self._inputs * self.channels
        filters = parameters[:, :first].reshape(m, self._inputs, self.channels)
        return filters, parameters[:, first:].reshape(m, self._features + 1, self.classes)

    def _scores(self, parameters: FloatArray, x: AnyFloats) -> AnyFloats:
        filters, linear = self._layers(parameters.astype(self.dtype)[None])
        hidden = x.reshape(-1, self._inputs) @ filters[0]
        np.maximum(hidden, 0, out=hidden)
        scores: AnyFloats = hidden.reshape(len(x), -1) @ linear[0, :-1] + linear[0, -1]
        return scores


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
        return self._evaluate(parameters, x, y, _surprise)

    def correct(self, parameters: FloatArray, x: AnyFloats, y: Labels) -> NDArray[Any]:
        """Return the share of each sequence's next tokens with the largest score."""
        return self._evaluate(
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

    def _evaluate(
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
