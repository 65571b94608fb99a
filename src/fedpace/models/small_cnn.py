"""A small convolutional network in NumPy, for studies with many runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpace.checks import FloatArray
from fedpace.models.model import AnyFloats, BaseModel, Labels

# Pixels of an image's side as it comes, what of it is averaged to one, and the side then.
SIDE, AVERAGED = 28, 2
COARSE = SIDE // AVERAGED
# The convolution: side of its window, and by how many pixels it moves.
WINDOW, STRIDE = 4, 2
ALONG = (COARSE - WINDOW) // STRIDE + 1
PLACES = ALONG * ALONG
# Pixels of a window and the constant 1, whose weight is the intercept.
INPUTS = WINDOW * WINDOW + 1


@dataclass(frozen=True)
class SmallCnn(BaseModel):
    """One convolution, rectified, and one linear layer, with the cross-entropy loss.

    Images of 28 × 28 are averaged to 14 × 14. Windows of 4 × 4, two pixels apart, lie at 36 places;
    each of `channels` filters gives a number at each. As windows overlap in the same way in all
    images, they are cut out once, in `prepared`, and a convolution is a matrix product for all
    clients of a round: a hundred times cheaper here than LeNet-5.

    The parameters are the filters, (17, channels), and the linear layer, (36 channels + 1,
    `classes`), with the intercepts in the last rows.

    >>> SmallCnn(classes=10).size
    3026
    """

    classes: int
    channels: int = 8
    dtype: type[np.floating[Any]] = np.float32

    @property
    def size(self) -> int:
        """The number of parameters."""
        return INPUTS * self.channels + (self._features + 1) * self.classes

    @property
    def _features(self) -> int:
        return PLACES * self.channels

    def initial(self, rng: np.random.Generator) -> FloatArray:
        """Return uniform numbers within ±1/√(inputs of a layer), as PyTorch does."""
        first = rng.uniform(-1, 1, INPUTS * self.channels) / WINDOW
        last = rng.uniform(-1, 1, (self._features + 1) * self.classes) / np.sqrt(self._features)
        return np.concatenate([first, last])

    def prepared(self, x: AnyFloats) -> AnyFloats:
        """Return the windows of each image, (samples, 36, 17)."""
        images = x.reshape(-1, COARSE, AVERAGED, COARSE, AVERAGED).mean(axis=(2, 4))
        windows = np.lib.stride_tricks.sliding_window_view(images, (WINDOW, WINDOW), axis=(1, 2))
        cut = windows[:, ::STRIDE, ::STRIDE].reshape(len(images), PLACES, WINDOW * WINDOW)
        rows: AnyFloats = np.ones((len(images), PLACES, INPUTS), dtype=self.dtype)
        rows[:, :, :-1] = cut
        return rows

    def gradients(self, parameters: AnyFloats, x: AnyFloats, y: Labels, out: AnyFloats) -> None:
        """Write the gradient of each of m clients."""
        m, batch = y.shape
        filters, linear = self._layers(parameters)
        to_filters, to_linear = self._layers(out)
        windows = x.reshape(m, batch * PLACES, INPUTS)
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
        back = back.reshape(m, batch * PLACES, self.channels)
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
        m, first = len(parameters), INPUTS * self.channels
        filters = parameters[:, :first].reshape(m, INPUTS, self.channels)
        return filters, parameters[:, first:].reshape(m, self._features + 1, self.classes)

    def _scores(self, parameters: FloatArray, x: AnyFloats) -> AnyFloats:
        filters, linear = self._layers(parameters.astype(self.dtype)[None])
        hidden = x.reshape(-1, INPUTS) @ filters[0]
        np.maximum(hidden, 0, out=hidden)
        scores: AnyFloats = hidden.reshape(len(x), -1) @ linear[0, :-1] + linear[0, -1]
        return scores
