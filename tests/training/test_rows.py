"""Rows as arrays, and back."""

import io
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedpace.training.history import LISTS, SCALARS, Row, join_rows, pack_rows, unpack_rows

from .fakes import assert_same_rows, row

NUMBERS = st.floats(width=64)
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)
FLAGS = {"phase", "ended", "why"}


def arrays_of(name: str, size: int) -> st.SearchStrategy[Any]:
    """Return lists of a column: as long as `size`, or empty."""
    dtype = Row._field_defaults[name].dtype
    kind: st.SearchStrategy[float] = st.integers(0, 2**40) if dtype == np.int64 else NUMBERS
    length = st.sampled_from([0, size]) if name != "clients" else st.just(size)
    lists = length.flatmap(lambda n: st.lists(kind, min_size=n, max_size=n))
    return lists.map(lambda values: np.array(values, dtype=dtype))


@st.composite
def rows(draw: st.DrawFn) -> Row:
    size = draw(st.integers(0, 4))
    columns: dict[str, Any] = {name: draw(arrays_of(name, size)) for name in LISTS}
    columns["missing"] = draw(arrays_of("missing", draw(st.integers(0, 3))))
    for name in SCALARS:
        columns[name] = draw(TEXT if name in FLAGS else NUMBERS)
    whole = {"round": draw(st.integers(0, 2**31)), "tier": draw(st.integers(-1, 2**31))}
    return Row(**columns | whole)


@given(st.lists(rows(), min_size=1, max_size=5))
def test_what_is_packed_comes_back_as_it_was(given_rows: list[Row]) -> None:
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **pack_rows(given_rows))
    buffer.seek(0)
    with np.load(buffer, allow_pickle=False) as file:
        assert_same_rows(unpack_rows(dict(file)), given_rows)


@given(st.lists(rows(), min_size=1, max_size=5), st.data())
def test_rows_that_are_packed_in_parts_are_those_packed_at_once(
    given_rows: list[Row], data: st.DataObject
) -> None:
    parts: dict[str, Any] = {}
    while given_rows[(done := len(parts.get("phase", ()))) :]:
        upto = data.draw(st.integers(done + 1, len(given_rows)))
        parts = join_rows(parts, pack_rows(given_rows[done:upto]))
    whole = pack_rows(given_rows)
    assert parts.keys() == whole.keys()
    for name, array in whole.items():
        assert parts[name].dtype == array.dtype
        np.testing.assert_array_equal(parts[name], array)


def test_a_column_that_the_file_does_not_know_has_its_default() -> None:
    arrays = pack_rows([row([1, 2], waiting_seconds=3.0, ended="rounds")] * 2)
    for name in ("waiting_seconds", "ended", "loss_estimate", "losses"):
        arrays.pop(name, None)
    for each in unpack_rows(arrays):
        assert (each.waiting_seconds, each.ended, each.losses.size) == (0.0, "", 0)
        assert math.isnan(each.loss_estimate)


def test_tiers_and_reasons_come_back_and_files_from_before_have_none() -> None:
    given_rows = [row([1], tier=3, why="10 tiers, c = 0.32 S₀: steps agree"), row([2])]
    arrays = pack_rows(given_rows)
    known = [(each.tier, each.why) for each in unpack_rows(arrays)]
    assert known == [(3, "10 tiers, c = 0.32 S₀: steps agree"), (-1, "")]
    assert all(type(tier) is int for tier, _ in known)
    before = {name: each for name, each in arrays.items() if name not in ("tier", "why")}
    assert {(each.tier, each.why) for each in unpack_rows(before)} == {(-1, "")}


def test_a_column_that_this_version_does_not_know_is_left_out() -> None:
    arrays = pack_rows([row([1, 2])]) | {"mood": np.array([1.0])}
    assert_same_rows(unpack_rows(arrays), [row([1, 2])])


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("loss", np.array(["<img>", "<img>"])),
        ("phase", np.array(["train", "\ud800"])),
        ("tier", np.array([b"1", b"1"])),
        ("round", np.array([0, -1])),
        ("seconds", np.zeros(1)),
        ("seconds", np.zeros((2, 2))),
        ("clients", np.array([1, 2, -3])),
        ("clients", np.array(["1", "2", "3"])),
        ("client_seconds", np.ones(2)),
        ("offsets", np.array([0, 5, 3])),
        ("offsets", np.array([0, 3])),
        ("offsets", np.array([0, 2**40, 2**40])),
    ],
)
def test_arrays_that_no_rows_were_packed_into_are_refused(name: str, array: NDArray[Any]) -> None:
    arrays = pack_rows([row([1, 2]), row([3])])
    assert len(unpack_rows(arrays)) == 2
    with pytest.raises(ValueError, match=r"has|is negative|surrogates"):
        unpack_rows(arrays | {name: array})


def test_rows_in_which_nobody_answered_come_back() -> None:
    nobody = [row(round=0), row(missing=[1, 4])]
    assert_same_rows(unpack_rows(pack_rows(nobody)), nobody)


def test_lists_as_long_as_the_clients_share_their_places() -> None:
    arrays = pack_rows([row([1, 2], missing=[0]), row([3])])
    assert arrays["offsets"].tolist() == [0, 2, 3]
    assert arrays["missing-offsets"].tolist() == [0, 1, 1]
    assert "weights-offsets" not in arrays
    assert "losses" not in arrays


@pytest.mark.parametrize(
    ("changes", "evaluated"),
    [
        ({}, True),
        ({"accuracy": math.nan}, True),
        ({"accuracy": math.nan, "loss_estimate": 1.0}, False),
        ({"loss": math.nan, "accuracy": math.nan}, False),
        ({"loss": math.nan}, True),
    ],
)
def test_a_row_tells_whether_its_loss_was_evaluated(
    changes: dict[str, Any], evaluated: bool
) -> None:
    assert row(**changes).evaluated is evaluated


def test_the_spread_is_the_largest_over_the_smallest_norm_and_nan_without_clients() -> None:
    assert math.isnan(row().grad_spread)
    assert row([4], grad_norms=[2.0]).grad_spread == 1
    assert row([4, 5, 6], grad_norms=[2.5, 0.5, 1.0]).grad_spread == 5
    assert math.isnan(row([4, 5], grad_norms=[0.0, 1.0]).grad_spread)
