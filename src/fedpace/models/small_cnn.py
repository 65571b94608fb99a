"""A small convolutional network in NumPy, for studies with many runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpace.checks import FloatArray
from fedpace.models.model import AnyFloats, BaseModel, Labels

# Pixels of a side that are averaged to one.
AVERAGED = 2
# The convolution: side of its window, and by how many pixels it moves.
WINDOW, STRIDE = 4, 2


@dataclass(frozen=True)
class SmallCnn(BaseModel):
    """One convolution, rectified, and one linear layer, with the cross-entropy loss.

    Images of 28 × 28 are averaged to 14 × 14. Windows of 4 × 4, two pixels apart, lie at 36 places;
    each of `channels` filters gives a number at each. As windows overlap in the same way in all
    images, they are cut out once, in `prepared`, and a convolution is a matrix product for all
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

    def prepared(self, x: AnyFloats) -> AnyFloats:
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
