"""A state of plain types and arrays is stored whole; anything else is refused."""

import io
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from fedpace.errors import InputError
from fedpace.training.checkpoint import State, pack, unpack

TEXT = st.text(st.characters(codec="utf-8"))
DTYPES = st.sampled_from([np.float64, np.float32, np.int64, np.uint8, np.bool_, np.complex128])
ARRAYS = DTYPES.flatmap(lambda dtype: arrays(dtype, array_shapes(min_dims=0, min_side=0)))
PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | TEXT | ARRAYS
STATES = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(TEXT, inner)
    ),
    max_leaves=12,
)  # fmt: skip


def stored(value: Any) -> Any:
    """Write a value to a file, and read it."""
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **pack(value))
    buffer.seek(0)
    with np.load(buffer, allow_pickle=False) as file:
        return unpack(dict(file))


def assert_same(one: Any, other: Any) -> None:
    """Compare values and types, all the way down."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert list(one) == list(other)
        one, other = list(one.values()), list(other.values())
    if isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for mine, twin in zip(one, other, strict=True):
            assert_same(mine, twin)
    elif isinstance(one, np.ndarray):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
    else:
        np.testing.assert_equal(one, other)


@given(STATES)
def test_any_state_of_plain_types_and_arrays_comes_back_equal(state: Any) -> None:
    assert_same(stored(state), state)


def test_numbers_of_numpy_come_back_as_numbers() -> None:
    state = {"a": np.float64(0.1), "b": np.int64(3), "c": np.bool_(True), "d": np.float32(0.5)}
    assert stored(state) == {"a": 0.1, "b": 3, "c": True, "d": 0.5}


class Pair(NamedTuple):
    one: int
    two: int


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (Pair(1, 2), "Pair"),
        (object(), "object"),
        ({1, 2}, "set"),
        (b"bytes", "bytes"),
        (1j, "complex"),
        (np.array([object()]), "ndarray"),
        ({1: "a number as the key"}, "dict"),
        (lambda: None, "function"),
    ],
)
@pytest.mark.parametrize("within", [lambda v: v, lambda v: {"inner": [v]}, lambda v: (1, v)])
def test_anything_else_is_refused_by_its_type(value: Any, kind: str, within: Any) -> None:
    with pytest.raises(InputError, match=f"state must consist of .*, got {kind}; store"):
        pack(within(value))


def test_the_state_of_a_run_comes_back_with_those_of_its_sampler_and_server() -> None:
    state = State(
        np.arange(3.0),
        4,
        5.5,
        "",
        "train",
        np.array([1, 2]),
        np.array([0, 2]),
        models={"start": {"parameters": np.zeros(3), "round": 0}},
        sampler={"seen": np.ones(2), "rounds": 4},
        server=(np.zeros(3), None),
    )
    assert_same(stored(state._asdict()), state._asdict())
