"""Combine accepted replies, and convert named arrays to one vector and back."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from fedpace.backends.remote.screening import BadReplyError
from fedpace.checks import FloatArray
from fedpace.errors import InputError
from fedpace.training.backend import NO_VALUES, Difference, Differences, Reply
from fedpace.training.updates import BLOCK, blocks, square_of

# Bytes of a number in single precision.
SINGLE = 4


# Numbers in the updates of a reply that are kept as a matrix.
SMALL = 2**20


class Update(NamedTuple):
    """An update in the precision it came in, and its lengths over floats and over parameters.

    Lengths are not finite if the update is not.
    """

    values: Difference
    length: float
    trained: float


class Accepted(NamedTuple):
    """An accepted update; values that the client did not send are NaN.

    `seconds` run from sending to arrival; `computing_seconds` of them were spent on training.
    `local_steps` are 0 unless the client confirms the number that it was asked for.
    """

    client: int
    update: Difference
    seconds: float
    grad_norm: float
    loss: float
    computing_seconds: float
    bytes_down: int
    bytes_up: int
    local_steps: int = 0

    def confirm_steps(self, asked: int | None) -> Accepted:
        """Return it without local steps unless these are what was asked for."""
        return self if self.local_steps == (asked or 0) else self._replace(local_steps=0)


def as_reply(
    accepted: Iterable[Accepted],
    *,
    length: int,
    refused: Sequence[int] = (),
    waited: float | None = None,
    missing: Sequence[int] = (),
    held: Sequence[int] = (),
) -> Reply:
    """Combine accepted updates of `length` numbers, in the order of clients.

    Losses, computing seconds and local steps are left out unless all clients sent them.
    """
    ordered = sorted(accepted, key=lambda each: each.client)
    losses = np.array([each.loss for each in ordered], dtype=np.float64)
    computing = np.array([each.computing_seconds for each in ordered], dtype=np.float64)
    steps = np.array([each.local_steps for each in ordered], dtype=np.int64)
    return Reply(
        np.array([each.client for each in ordered], dtype=np.int64),
        _stack([each.update for each in ordered], length),
        np.array([each.seconds for each in ordered], dtype=np.float64),
        np.array([each.grad_norm for each in ordered], dtype=np.float64),
        losses=losses if np.isfinite(losses).all() else NO_VALUES,
        computing_seconds=computing if np.isfinite(computing).all() else NO_VALUES,
        bytes_down=np.array([each.bytes_down for each in ordered], dtype=np.int64),
        bytes_up=np.array([each.bytes_up for each in ordered], dtype=np.int64),
        local_steps=steps if steps.all() else steps[:0],
        refused=np.array(sorted(refused), dtype=np.int64),
        waited=waited,
        missing=np.array(sorted(missing), dtype=np.int64),
        held=np.array(sorted(held), dtype=np.int64),
    )


def _stack(rows: Sequence[Difference], length: int) -> FloatArray:
    """Return the rows as one matrix; those of large models as they came."""
    if not rows:
        return np.empty((0, length))
    updates: Any = Differences(rows, length)
    return np.asarray(updates) if len(rows) * length <= SMALL else updates


# PyTorch's names for the buffers of its layers.
BUFFERS = ("running_mean", "running_var", "num_batches_tracked")


@dataclass(frozen=True)
class ArrayLayout:
    """Names, shapes and types of a model's arrays, in the order of the trained vector.

    Arrays keep their types: floats of any precision, and integers and booleans such as a counter of
    batches, which are rounded when they are sent. Buffers are recognised by type and name.

    >>> layout = ArrayLayout.of_arrays({"w": np.ones((1, 2), np.float32), "count": np.array(7)})
    >>> layout.arrays_of(np.array([0.5, 1.0, 7.6]))
    {'w': array([[0.5, 1. ]], dtype=float32), 'count': array(8)}
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    types: tuple[np.dtype[Any], ...]

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, NDArray[Any]], *, argument: str = "model") -> Self:
        """Return the layout of a model; InputError if one of its arrays cannot be averaged."""
        for name, value in arrays.items():
            if value.dtype.kind not in "fiub":
                got = f"{value.dtype} for '{name}'; leave it out of what is sent"
                raise InputError(f"{argument} must be numbers, got {got}")
            if not np.isfinite(value).all():
                got = f"NaN or infinity in '{name}'; look at how the model is initialised"
                raise InputError(f"{argument} must be finite, got {got}")
        if not any(value.size for value in arrays.values()):
            raise InputError(f"{argument} must hold a number, got none; give the model's arrays")
        shapes, types = zip(*((each.shape, each.dtype) for each in arrays.values()), strict=True)
        return cls(tuple(arrays), shapes, types)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The number of entries of each array."""
        return tuple(int(np.prod(shape)) for shape in self.shapes)

    @cached_property
    def floats(self) -> NDArray[np.bool_]:
        """Which entries are floats."""
        return np.repeat([kind.kind == "f" for kind in self.types], self.sizes)

    @cached_property
    def size(self) -> int:
        """The number of entries of all arrays."""
        return sum(self.sizes)

    @cached_property
    def precision(self) -> np.dtype[Any]:
        """The type of updates: single precision, unless an array of floats has more."""
        wide = any(kind.kind == "f" and kind.itemsize > SINGLE for kind in self.types)
        return np.dtype(np.float64 if wide else np.float32)

    @cached_property
    def are_trained(self) -> tuple[bool, ...]:
        """Which arrays gradients change: floats except running means and variances."""
        typed = zip(self.names, self.types, strict=True)
        return tuple(kind.kind == "f" and not name.endswith(BUFFERS) for name, kind in typed)

    @cached_property
    def trained(self) -> NDArray[np.bool_]:
        """Which entries gradients change."""
        return np.repeat(self.are_trained, self.sizes)

    def parts_of(
        self, arrays: Mapping[str, Any], opened: Callable[[str, Any, int], NDArray[Any]]
    ) -> list[NDArray[Any]]:
        """Return the arrays as vectors, in order; BadReplyError if they do not fit.

        `opened` decodes the array of a name, given its expected number of entries.
        """
        if set(arrays) != set(self.names):
            raise BadReplyError(f"the arrays are named {sorted(arrays)!r:.80}, not as those sent")
        parts = zip(self.names, self.shapes, self.types, self.sizes, strict=True)
        return [_part(name, opened(name, arrays[name], n), at, kind) for name, at, kind, n in parts]

    def vector_of(
        self, arrays: Mapping[str, Any], opened: Callable[[str, Any, int], NDArray[Any]]
    ) -> FloatArray:
        """Return the arrays as one float64 vector; BadReplyError if they do not fit."""
        return np.concatenate(self.parts_of(arrays, opened), dtype=np.float64)

    @np.errstate(over="ignore", invalid="ignore")  # a model that diverges
    def difference(
        self, came: Sequence[NDArray[Any]], sent: Sequence[NDArray[Any]] | None
    ) -> Update:
        """Return what came less what was sent (None for 0), measured."""
        update, floats, trained = Difference(came, sent, self.precision, 0.0), 0.0, 0.0
        scratch = np.empty(min(BLOCK, max(self.sizes)), self.precision)
        for place, (size, kind, counts) in enumerate(
            zip(self.sizes, self.types, self.are_trained, strict=True)
        ):
            square = 0.0
            for piece in blocks(1, size):
                here = scratch[: piece.stop - piece.start]
                update.subtract(place, piece, here)
                square += square_of(here)
            update.square += square
            floats += square if kind.kind == "f" else 0.0  # counters grow alike for all clients
            trained += square if counts else 0.0
        return Update(update, math.sqrt(floats), math.sqrt(trained))

    def split(self, vector: FloatArray) -> list[FloatArray]:
        """Return the parts of a vector that belong to each array."""
        return np.split(vector, np.cumsum(self.sizes)[:-1].tolist())

    def arrays_of(self, vector: FloatArray) -> dict[str, NDArray[Any]]:
        """Return the arrays of a vector, each in its own shape and type."""
        arrays = {}
        parts = zip(self.names, self.split(vector), self.shapes, self.types, strict=True)
        for name, values, shape, kind in parts:
            arrays[name] = np.empty(shape, kind)
            write_typed(values, arrays[name].reshape(-1))
        return arrays


def _part(
    name: str, value: NDArray[Any], shape: tuple[int, ...], kind: np.dtype[Any]
) -> NDArray[Any]:
    if value.shape != shape:
        raise BadReplyError(f"array {name!r:.80} has shape {value.shape}, not {shape}")
    if value.dtype.kind not in ("f" if kind.kind == "f" else "fiub"):
        raise BadReplyError(f"array {name!r:.80} has type {value.dtype}, not {kind}")
    return value.ravel()


@np.errstate(over="ignore", invalid="ignore")  # a model that diverges
def write_typed(values: FloatArray, out: NDArray[Any]) -> None:
    """Write values into an array of any type; into integers the nearest possible."""
    if out.dtype.kind == "f":
        out[...] = values
    elif out.dtype.kind == "b":
        out[...] = values >= 0.5
    else:
        limits = np.iinfo(out.dtype)
        # As floats, the limits of 64 bits are too large by one: clip again as integers.
        wide = np.clip(np.rint(values), -(2.0**63), np.nextafter(2.0**63, 0)).astype(np.int64)
        out[...] = np.clip(wide, max(limits.min, -(2**63)), min(limits.max, 2**63 - 1))
