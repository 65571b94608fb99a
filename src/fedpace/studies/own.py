"""A user's own data and model in a study."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from fedpace.data.partition import check_test_share
from fedpace.data.shards import Shards, Split
from fedpace.errors import InputError
from fedpace.lookup import find
from fedpace.models.model import BaseModel, as_model
from fedpace.seeds import Seeds
from fedpace.studies.study import ModelSection, OwnSection

# Entry points of other packages.
GROUP = "fedpace.own"


def own_split(section: OwnSection, seed: int) -> Split:
    """Return the data that the section's source is or makes."""
    given = find(section.source, {}, argument="data", group=GROUP)
    if isinstance(given, Split):
        return given
    rng = Seeds(seed if section.seed is None else section.seed).stream("data")
    if callable(given):
        given = given(rng) if inspect.signature(given).parameters else given()
    return given if isinstance(given, Split) else split_of(given, test_share=section.test_share)


def own_model(section: ModelSection, data: Split) -> BaseModel:
    """Return the model that the section's source is or makes."""
    given = find(section.source, {}, argument="model", group=GROUP)
    named = {"loss": section.loss, "metric": section.metric}
    for name, value in named.items():
        if value is not None and ":" in value:
            named[name] = find(value, {}, argument=name, group=GROUP)
    return model_for(given, data.train, **named)


def model_for(given: Any, train: Shards, *, loss: Any = None, metric: Any = None) -> BaseModel:
    """Return a user's model as a Model that fits the data."""
    classes = train.classes if train.y.dtype.kind == "i" and train.y.ndim == 1 else None
    return as_model(given, shape=train.x.shape[1:], classes=classes, loss=loss, metric=metric)


def split_of(clients: Iterable[Any], *, test_share: float = 0.1) -> Split:
    """Join clients' arrays: (x, y), of which the last rows are held back, or four arrays.

    >>> split_of([(np.ones((10, 2)), np.zeros(10, int))]).train.sizes
    array([9])
    """
    check_test_share(test_share)
    if isinstance(clients, str) or not isinstance(clients, Iterable):
        got = f"{clients!r:.60}; give a list of pairs (x, y)"
        raise InputError(f"clients must be one pair of arrays per client, got {got}")
    parts = [_parts(i, each, test_share) for i, each in enumerate(clients)]
    if not parts:
        raise InputError("clients must be one pair of arrays per client, got none; give some")
    shapes = [tuple(each.shape[1:] for each in part[:2]) for part in parts]
    for client, shape in enumerate(shapes):
        if shape != shapes[0]:
            raise InputError(
                f"clients must have samples of one shape, got {shapes[0]} for client 0 and {shape} "
                f"for client {client}; pad or crop them"
            )
    x, y, test_x, test_y = zip(*parts, strict=True)
    return Split(Shards.from_clients(x, y), Shards.from_clients(test_x, test_y))


def _parts(client: int, given: Any, test_share: float) -> Sequence[Any]:
    """Return the four arrays of a client."""
    if not isinstance(given, Sequence) or len(given) not in (2, 4):
        raise InputError(
            f"clients must be pairs (x, y), got {type(given).__name__} for client {client}; "
            "or (x, y, test x, test y)"
        )
    arrays = [np.asarray(each) for each in given]
    for name, array in zip(("x", "y", "test x", "test y"), arrays, strict=False):
        if array.dtype.kind not in "fiub":
            got = f"{array.dtype} for client {client}; convert it"
            raise InputError(f"{name} must be numbers, got {got}")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            got = f"NaN or infinity for client {client}; fill or drop it"
            raise InputError(f"{name} must be finite, got {got}")
    for x, y in (arrays[:2], arrays[2:]) if len(arrays) == 4 else (arrays,):
        if x.ndim < 2 or len(x) != len(y):
            raise InputError(
                f"x and y must have one row per sample, got shapes {x.shape} and {y.shape} for "
                f"client {client}; give x as (samples, features)"
            )
    x, y = arrays[:2]
    if len(arrays) == 2:
        # A single sample is trained on, not held back.
        kept = max(len(y) - max(round(test_share * len(y)), 1), 1)
        arrays = [x[:kept], y[:kept], x[kept:], y[kept:]]
    if not len(arrays[0]):
        raise InputError(f"clients must hold a sample, got none for client {client}; drop it")
    return arrays
