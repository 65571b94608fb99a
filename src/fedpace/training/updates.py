"""The updates of a round, or of an asynchronous step, as the server receives them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedpace.checks import FloatArray, IntArray
from fedpace.sampling.design import Draw
from fedpace.training.backend import NO_VALUES, Probe, Reply

Floating = TypeVar("Floating", bound=np.floating[Any])

# Numbers in a block: what is computed of it in float64 stays in the processor's cache, 1 MB.
BLOCK = 2**17
# Models with more numbers than this take the memory of a former one.
REUSED = 2**20
# Numbers whose squares are added up in single precision.
SHORT = 1024


class Started(NamedTuple):
    """What each reply of an asynchronous step began with.

    `rates` are the learning rates, `models` the parameters, which may be shared, and `versions`
    the number of server steps before them.
    """

    rates: FloatArray
    models: Sequence[FloatArray]
    versions: IntArray


class RoundUpdates(NamedTuple):
    """The clients that answered, their weights and updates, and what they began with.

    `draw` holds those who answered, in the order of `reply`, with the weights that were used;
    `weights` are p_i of all clients. `residual_norms` are the lengths of what the server weighted,
    over the learning rate: of the updates, less what a server with memory expected of each.
    `probes` are the answers to probes before the draw, and `times` are t_i where they are known.
    `present` marks the clients that could be drawn, None for all. `step` is how far the server
    steps, where that is planned.

    In a round all began with `parameters`, at the `learning_rate`. In an asynchronous step these
    are the server's when it takes the step, after `version` steps, and `started` holds what each
    reply began with; a client may be there twice, the earlier reply first. `step_rate` is the rate
    that updates count with in the step, where that differs; see `AsynchronousTraining`.
    """

    parameters: FloatArray
    learning_rate: float
    draw: Draw
    reply: Reply
    weights: FloatArray
    residual_norms: FloatArray = NO_VALUES
    started: Started | None = None
    version: int = 0
    step_rate: float | None = None
    probes: Sequence[Probe] = ()
    times: FloatArray | None = None
    present: NDArray[np.bool_] | None = None
    step: float | None = None

    def is_away(self, clients: IntArray) -> NDArray[np.bool_]:
        """Return which of these clients could not be drawn."""
        if self.present is None:
            return np.zeros(clients.size, dtype=np.bool_)
        here = np.zeros(self.weights.size, dtype=np.bool_)
        here[: self.present.size] = self.present
        return ~here[clients]

    @property
    def share_present(self) -> float:
        """The sum of p_i over the clients that could be drawn."""
        if self.present is None or self.present.all():
            return 1.0
        return float(self.weights[: self.present.size][self.present].sum())

    @property
    def rates(self) -> FloatArray:
        """The learning rate of each reply."""
        if self.started is None:
            return np.full(self.draw.clients.size, self.learning_rate)
        return self.started.rates

    @property
    def models(self) -> Sequence[FloatArray]:
        """The model that each reply began with."""
        if self.started is None:
            return [self.parameters] * self.draw.clients.size
        return self.started.models

    @property
    def scales(self) -> FloatArray:
        """What directions are divided by: η, or η E where the sampler chose E."""
        steps = self.reply.local_steps
        return self.rates * steps if steps.size else self.rates

    def directions(self, piece: slice) -> FloatArray:
        """Return some entries of the updates over their learning rates, and steps if chosen."""
        directions: FloatArray = self.reply.updates[:, piece] / self.scales[:, None]
        return directions

    @property
    def step_length(self) -> float:
        """How far the server steps along the weighted directions."""
        if self.step is not None:
            return self.step
        rate = self.learning_rate if self.step_rate is None else self.step_rate
        return rate * self.mean_steps

    @property
    def step_weights(self) -> FloatArray:
        """The weights of the updates in the step; those of the draw where none is planned."""
        if self.step is None:
            return self.draw.weights
        weights: FloatArray = self.draw.weights * (self.step / self.scales)
        return weights

    @property
    def mean_steps(self) -> float:
        """The mean of the local steps that the directions are over; 1 where they are Δ/η."""
        steps = self.reply.local_steps
        return float(steps.mean()) if steps.size else 1.0

    def only(self, selected: NDArray[np.bool_]) -> RoundUpdates:
        """Return some of the replies, by one truth value each."""
        draw, reply, started = self.draw, self.reply, self.started
        draw = draw._replace(clients=draw.clients[selected], weights=draw.weights[selected])
        names = ("clients", "updates", *(("local_steps",) if reply.local_steps.size else ()))
        reply = reply._replace(**{name: getattr(reply, name)[selected] for name in names})
        if started is not None:
            models = [model for model, fine in zip(started.models, selected, strict=True) if fine]
            started = Started(started.rates[selected], models, started.versions[selected])
        norms = self.residual_norms[selected] if self.residual_norms.size else NO_VALUES
        return self._replace(draw=draw, reply=reply, residual_norms=norms, started=started)


def blocks(rows: int, size: int) -> Iterator[slice]:
    """Yield the columns of a large matrix in blocks, in order.

    >>> [*blocks(rows=2**16, size=150)]
    [slice(0, 64, None), slice(64, 128, None), slice(128, 150, None)]
    """
    step = max(BLOCK // max(rows, 1) // 64, 1) * 64
    return (slice(begin, min(begin + step, size)) for begin in range(0, size, step))


def add_weighted(
    base: FloatArray | None, weights: FloatArray, rows: NDArray[np.floating[Any]]
) -> FloatArray:
    """Return base + Σ_i weights_i rows_i in float64, without a float64 copy of the rows.

    Rows in single precision are added up in it, block by block; `base` may be None for 0.

    >>> add_weighted(np.zeros(2), np.array([1.0, 0.5]), np.array([[1, 2], [4, 6]], np.float32))
    array([3., 5.])
    """
    size = rows.shape[1]
    if rows.dtype == np.float32:
        weights = weights.astype(np.float32)
    total = empty_model(size)
    for piece in blocks(len(rows), size):
        # Of one row the product with a matrix is slow.
        found = weights @ rows[:, piece] if len(rows) != 1 else weights[0] * rows[0, piece]
        if base is None:
            total[piece] = found
        else:
            np.add(base[piece], found, out=total[piece])
    return total


class _Kept:
    """Memory of a model, kept for the next one of its size when the array is no longer used."""

    spare: ClassVar[list[FloatArray]] = []

    def __init__(self, values: FloatArray) -> None:
        self._values = values
        self.__array_interface__ = values.__array_interface__

    def __del__(self) -> None:
        self.spare[:] = [self._values]


def empty_model(size: int) -> FloatArray:
    """Return an array for a model; a large one in the memory of one that is no longer used.

    The system clears new memory, which costs more than to combine the updates.
    """
    if size <= REUSED:
        return np.empty(size)
    try:
        values = _Kept.spare.pop()
    except IndexError:
        values = np.empty(size)
    return np.asarray(_Kept(values if values.size == size else np.empty(size)))


@np.errstate(over="ignore", invalid="ignore")
def length_of(values: NDArray[np.floating[Any]]) -> float:
    """Return the length of an update, without a copy in float64.

    >>> length_of(np.array([3.0, 4.0], np.float32))
    5.0
    """
    return math.sqrt(sum(square_of(values[piece]) for piece in blocks(1, values.size)))


def square_of(values: NDArray[np.floating[Any]]) -> float:
    """Return Σ values²; short sums of single precision are added up in double."""
    if values.dtype == np.float32:
        whole = values[: values.size // SHORT * SHORT].reshape(-1, SHORT)
        rest = values[whole.size :]
        square = float(np.vecdot(whole, whole).sum(dtype=np.float64)) + float(rest @ rest)
    else:
        square = float(values @ values)
    if square == math.inf:  # perhaps only beyond single precision
        square = float(np.square(values, dtype=np.float64).sum())
    return square


def inner_products(rows: NDArray[np.floating[Any]]) -> FloatArray:
    """Return ⟨row_i, row_j⟩ in float64.

    >>> inner_products(np.array([[1.0, 2.0], [3.0, 0.0]]))
    array([[5., 3.],
           [3., 9.]])
    """
    found = np.zeros((len(rows), len(rows)))
    for piece in blocks(len(rows), rows.shape[1]):
        part = rows[:, piece].astype(np.float64)
        found += part @ part.T
    return found


def places_of(clients: IntArray, known: IntArray) -> IntArray:
    """Return the position of each client among the known, −1 where it is not there.

    >>> places_of(np.array([3, 1]), np.array([5, 3, 2]))
    array([ 1, -1])
    """
    if not known.size:
        return np.full(clients.size, -1)
    order = np.argsort(known, kind="stable")  # no table by client: numbers may be huge
    places = order[np.searchsorted(known, clients, side="right", sorter=order) - 1]
    return np.where(known[places] == clients, places, -1)


def latest_of_each(clients: IntArray) -> IntArray:
    """Return the position of each client's last entry, ascending.

    >>> latest_of_each(np.array([3, 1, 3, 2]))
    array([1, 2, 3])
    """
    _, places = np.unique(clients[::-1], return_index=True)
    return np.sort(clients.size - 1 - places)


def replace_rows(
    rows: NDArray[Floating], kept: NDArray[np.bool_], more: FloatArray
) -> NDArray[Floating]:
    """Return the kept rows followed by `more`, copied once.

    >>> replace_rows(np.array([[1.0], [2.0]]), np.array([False, True]), np.array([[3.0]]))
    array([[2.],
           [3.]])
    """
    places = np.flatnonzero(kept)
    every = np.empty((places.size + len(more), *rows.shape[1:]), rows.dtype)
    np.take(rows, places, axis=0, out=every[: places.size], mode="clip")  # "raise" copies twice
    every[places.size :] = more
    return every
