"""Frames, as they are and as they should not be."""

import asyncio
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fedpace.network.wire import LENGTH, SHORT_HEADER, Channel, Frame, FrameError, encoded

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def received(data: bytes, *, most_floats: int = 100) -> Frame:
    async def receive() -> Frame:
        reader = asyncio.StreamReader()
        reader.feed_data(data)
        reader.feed_eof()
        channel = Channel(reader, None)  # type: ignore[arg-type]
        channel.most_floats = most_floats
        return await channel.receive()

    return asyncio.run(receive())


@given(
    arrays.arrays(np.float32, st.integers(0, 100), elements=st.floats(width=32)),
    st.dictionaries(st.text(min_size=1).map("x-".__add__), JSON, max_size=3),
)
def test_what_is_received_is_what_was_sent(
    floats: np.ndarray[tuple[int], np.dtype[np.float32]], fields: dict[str, object]
) -> None:
    data = encoded("train", floats, **fields)
    if len(data) > SHORT_HEADER:
        return
    frame = received(data)
    assert frame.kind == "train"
    assert {name: frame.header[name] for name in fields} == fields
    np.testing.assert_array_equal(frame.floats, floats)
    assert frame.length == len(data)


@given(st.binary(max_size=200))
def test_bytes_that_are_no_frame_end_in_an_error_of_ours(data: bytes) -> None:
    with pytest.raises((FrameError, ConnectionError)):
        received(data)


@given(JSON)
def test_headers_that_are_none_end_in_an_error_of_ours(header: object) -> None:
    text = json.dumps(header).encode()
    with pytest.raises((FrameError, ConnectionError)):
        received(LENGTH.pack(len(text)) + text)


def test_refuses_too_many_numbers_by_the_header_alone() -> None:
    # The payload is not even there; a reader that took memory for it would wait for it.
    header = encoded("update", np.zeros(101, dtype=np.float32))[: -4 * 101]
    with pytest.raises(FrameError, match="101 numbers, where at most 100 are expected"):
        received(header)
    huge = json.dumps({"kind": "update", "dtype": "float32", "floats": 10**15}).encode()
    with pytest.raises(FrameError, match="1000000000000000 numbers"):
        received(LENGTH.pack(len(huge)) + huge)


def test_refuses_a_long_header_by_its_length_alone() -> None:
    with pytest.raises(FrameError, match="a header of 4294967295 bytes, more than 4096"):
        received(b"\xff\xff\xff\xff")


@pytest.mark.parametrize("number", [2**63 - 1, -(2**63)])
def test_takes_integers_of_64_bits(number: int) -> None:
    assert received(encoded("update", count=number)).header["count"] == number


def test_refuses_integers_that_do_not_fit_a_float() -> None:
    text = b'{"kind":"update","dtype":"float32","floats":0,"loss":1' + b"0" * 400 + b"}"
    with pytest.raises(FrameError, match="no JSON"):
        received(LENGTH.pack(len(text)) + text)


def test_notices_a_connection_that_ends_within_a_frame() -> None:
    with pytest.raises(ConnectionError):
        received(encoded("update", np.ones(5, dtype=np.float32))[:-1])
