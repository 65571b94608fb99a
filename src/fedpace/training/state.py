"""The state of a run, and its form in a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedpace.checks import FloatArray, IntArray
from fedpace.errors import InputError
from fedpace.training.backend import NO_CLIENTS, NO_VALUES

STRUCTURE = "structure"


class State(NamedTuple):
    """The model, its rounds and seconds, and the states of sampler and server.

    `ended` is why training ended, and `phase` the name of the current one. `asked` and `answered`
    count the rounds in which each client was drawn, and in which its reply was accepted; clients
    beyond their end count 0. `often` is the share of the latest draws with each client, and `draws`
    the draws per round, where shares are limited. `models` are those that a later phase may begin
    with. In asynchronous training, `sent` counts tasks, and `owed` is the weight that each client
    is owed.
    """

    parameters: FloatArray
    round: int
    seconds: float
    ended: str = ""
    phase: str = ""
    asked: IntArray = NO_CLIENTS
    answered: IntArray = NO_CLIENTS
    models: Mapping[str, Any] = {}
    sampler: Any = None
    server: Any = None
    sent: int = 0
    owed: FloatArray = NO_VALUES
    often: FloatArray = NO_VALUES
    draws: float = 1.0


def pack(value: Any) -> dict[str, NDArray[Any]]:
    """Return a value of plain types and arrays as named arrays, without pickling.

    >>> arrays = pack({"seen": np.array([1, 2]), "rounds": 3})
    >>> unpack(arrays)
    {'seen': array([1, 2]), 'rounds': 3}
    """
    arrays: dict[str, NDArray[Any]] = {}
    structure = _describe(value, arrays)
    return {STRUCTURE: np.array(json.dumps(structure)), **arrays}


def unpack(arrays: Mapping[str, NDArray[Any]]) -> Any:
    """Return the value that `pack` was given."""
    return _restore(json.loads(str(arrays[STRUCTURE])), arrays)


def _describe(value: Any, arrays: dict[str, NDArray[Any]]) -> Any:
    """Return the value as JSON, with tags for containers; arrays are added to `arrays`."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        name = f"array-{len(arrays)}"
        arrays[name] = value
        return {"array": name}
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):  # no NamedTuple
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_describe(each, arrays) for each in value]}
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {"dict": {key: _describe(each, arrays) for key, each in value.items()}}
    raise InputError(
        f"state must consist of numbers, text, None, lists, dicts and arrays, got "
        f"{type(value).__name__}; store its parts as these"
    )


def _restore(value: Any, arrays: Mapping[str, NDArray[Any]]) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    if kind == "array":
        return arrays[inner]
    if kind == "dict":
        return {key: _restore(each, arrays) for key, each in inner.items()}
    parts = [_restore(each, arrays) for each in inner]
    return parts if kind == "list" else tuple(parts)
