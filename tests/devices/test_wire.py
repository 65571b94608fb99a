"""Messages, as they are and as they should not be."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fedpace.devices.devices_pb2 import Asked, Said
from fedpace.devices.wire import LONGEST, PART, MessageReader, ProtocolError, Received, encode
from tests.devices.fleet import ROOT


def received(messages: list[bytes], *, most_floats: int = 100) -> Received:
    reader = MessageReader(Said)
    reader.most_floats = most_floats
    *ahead, last = map(reader.take, messages)
    assert ahead == [None] * len(ahead)
    assert last is not None
    return last


@given(
    arrays.arrays(np.float32, st.integers(0, 100), elements=st.floats(width=32)),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
)
def test_what_is_received_is_what_was_sent(
    floats: np.ndarray[tuple[int], np.dtype[np.float32]], task: int, loss: float
) -> None:
    messages = encode(Said(task=task, update={"loss": loss}), floats)
    got = received(messages)
    assert (got.kind, got.task, got.fields.loss) == ("update", task, loss)
    np.testing.assert_array_equal(got.floats, floats)
    assert got.length == sum(map(len, messages))


@settings(max_examples=20)
@given(st.integers(0, 3), st.integers(-1, 1))
def test_many_numbers_go_in_parts(parts: int, more: int) -> None:
    count = max(parts * PART // 4 + more, 0)
    floats = np.arange(count, dtype=np.float32)
    messages = encode(Said(update={}), floats)
    assert all(len(each) <= LONGEST for each in messages)
    assert len(messages) == max(1, -(-4 * count // PART))
    np.testing.assert_array_equal(received(messages, most_floats=count).floats, floats)
    if count:
        with pytest.raises(ProtocolError, match=f"at most {count - 1} are expected"):
            received(messages, most_floats=count - 1)


@given(st.binary(max_size=200))
def test_bytes_of_any_kind_are_a_message_or_an_error_of_ours(data: bytes) -> None:
    for kind in (Said, Asked):
        reader = MessageReader(kind)
        try:
            got = reader.take(data)
        except ProtocolError:
            continue
        assert got is not None
        assert got.floats.size == 0


def test_the_generated_code_is_that_of_the_proto_file(tmp_path: Path) -> None:
    # The command of `make proto`, into another folder.
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", "src", f"--python_out={tmp_path}"]
    command += [f"--pyi_out={tmp_path}", "fedpace/devices/devices.proto"]
    subprocess.run(command, cwd=ROOT, check=True)
    made = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*_pb2.py*"))
    assert [path.name for path in made] == ["devices_pb2.py", "devices_pb2.pyi"]
    for path in made:
        assert (ROOT / "src" / path).read_text() == (tmp_path / path).read_text()
