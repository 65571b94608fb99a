"""Where a run stands, and how that is written to a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedpace.checks import FloatArray, IntArray
from fedpace.errors import InputError
from fedpace.rounds.backend import NOBODY, NOTHING

STRUCTURE = "structure"


class State(NamedTuple):
    """The model, the rounds and seconds behind it, and the states of sampler and server.

    `ended` says why training ended, `phase` what it is in. `asked` and `answered` count the
    rounds in which each client was drawn, and in which a reply of it was accepted; a client
    beyond their end counts 0. `often` is the share of the latest draws that it was in, where a
    limit may leave it out, and `draws` how many draws a round takes, as that may leave nobody.
    `models` are those that a later phase may begin with.
    Without a barrier, `sent` counts the tasks given out, and `owed` is the weight that each client
    is owed.
    """

    parameters: FloatArray
    round: int
    seconds: float
    ended: str = ""
    phase: str = ""
    asked: IntArray = NOBODY
    answered: IntArray = NOBODY
    models: Mapping[str, Any] = {}
    sampler: Any = None
    server: Any = None
    sent: int = 0
    owed: FloatArray = NOTHING
    often: FloatArray = NOTHING
    draws: float = 1.0


def packed(value: Any) -> dict[str, NDArray[Any]]:
    """Return a value made of plain types and arrays as named arrays, without pickling.

    >>> arrays = packed({"seen": np.array([1, 2]), "rounds": 3})
    >>> unpacked(arrays)
    {'seen': array([1, 2]), 'rounds': 3}
    """
    arrays: dict[str, NDArray[Any]] = {}
    structure = _described(value, arrays)
    return {STRUCTURE: np.array(json.dumps(structure)), **arrays}


def unpacked(arrays: Mapping[str, NDArray[Any]]) -> Any:
    """Return the value again."""
    return _made(json.loads(str(arrays[STRUCTURE])), arrays)


def _described(value: Any, arrays: dict[str, NDArray[Any]]) -> Any:
    """Return the value as JSON, with its arrays put aside; containers are told by a tag."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        name = f"array-{len(arrays)}"
        arrays[name] = value
        return {"array": name}
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):  # a NamedTuple is not
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_described(each, arrays) for each in value]}
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {"dict": {key: _described(each, arrays) for key, each in value.items()}}
    raise InputError(
        f"state must be made of numbers, text, None, lists, dicts and arrays, got "
        f"{type(value).__name__}; keep what is needed in these"
    )


def _made(value: Any, arrays: Mapping[str, NDArray[Any]]) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    if kind == "array":
        return arrays[inner]
    if kind == "dict":
        return {key: _made(each, arrays) for key, each in inner.items()}
    parts = [_made(each, arrays) for each in inner]
    return parts if kind == "list" else tuple(parts)
