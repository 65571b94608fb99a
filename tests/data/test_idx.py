"""The idx reader gives the right array or says why not, whatever the file."""

import contextlib
import gzip
import math
import os
import struct
import tracemalloc
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from numpy.typing import NDArray

from fedpace.data.images import MOST_BYTES, list_members, read_idx
from fedpace.errors import InputError

from .idx_files import header, idx_bytes

Bytes = NDArray[np.uint8]
ARRAYS = arrays(np.uint8, array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=9))
GOOD = idx_bytes(np.arange(24).reshape(4, 3, 2))
MEGABYTE = 2**20


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("idx") / "some-idx3-ubyte"


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def zipped(path: Path, content: bytes, kind: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", kind) as archive:
        archive.writestr("folder/inner.gz", content)
    return path


def expected(content: bytes) -> Bytes | None:
    """What a plain file holds, by the definition of the format, or None."""
    if len(content) < 4 or content[:3] != b"\0\0\x08" or not 1 <= content[3] <= 4:
        return None
    start = 4 + 4 * content[3]
    if len(content) < start:
        return None
    shape = struct.unpack(f">{content[3]}I", content[4:start])
    if math.prod(shape) == 0 or math.prod(shape) != len(content) - start:
        return None
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def decompressed(content: bytes) -> bytes | None:
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error, struct.error):
        return None


@given(array=ARRAYS)
def test_arrays_come_back_plain_compressed_and_from_an_archive(file: Path, array: Bytes) -> None:
    content = idx_bytes(array)
    for packed in (content, gzip.compress(content)):
        np.testing.assert_array_equal(read_idx(written(file, packed)), array)
        for kind in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            archive = zipped(file, packed, kind)
            np.testing.assert_array_equal(read_idx(archive, member="folder/inner.gz"), array)


@given(array=ARRAYS, data=st.data())
def test_only_what_is_to_be_kept_is_returned(file: Path, array: Bytes, data: st.DataObject) -> None:
    keep = data.draw(arrays(np.bool_, len(array)))
    kept = read_idx(written(file, gzip.compress(idx_bytes(array))), keep=keep)
    np.testing.assert_array_equal(kept, array[keep])


def test_what_is_kept_may_span_many_chunks(file: Path) -> None:
    array = np.random.default_rng(0).integers(0, 256, (3000, 28, 28), dtype=np.uint8)
    keep = np.arange(3000) % 7 == 3
    np.testing.assert_array_equal(read_idx(written(file, idx_bytes(array)), keep=keep), array[keep])


@given(
    content=st.binary(max_size=60)
    | st.builds(lambda start, rest: start + rest, st.just(header(2, 3)), st.binary(max_size=20))
)
@example(content=GOOD)
def test_any_bytes_are_refused_or_read_as_defined(file: Path, content: bytes) -> None:
    assert_refused_or_right(written(file, content), expected(content))


@given(data=st.data(), compressed=st.booleans())
def test_damaged_files_are_refused_or_read_as_defined(
    file: Path, data: st.DataObject, compressed: bool
) -> None:
    content = bytearray(gzip.compress(GOOD) if compressed else GOOD)
    for place in data.draw(st.lists(st.integers(0, len(content) - 1), max_size=3)):
        content[place] = data.draw(st.integers(0, 255))
    damaged = bytes(content[: data.draw(st.integers(0, len(content)))]) + data.draw(
        st.binary(max_size=3)
    )
    plain = decompressed(damaged) if damaged.startswith(b"\x1f\x8b") else damaged
    assert_refused_or_right(written(file, damaged), None if plain is None else expected(plain))


@given(data=st.data(), kind=st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]))
def test_damaged_archives_are_refused_or_read_as_they_were(
    file: Path, data: st.DataObject, kind: int
) -> None:
    content = bytearray(zipped(file, gzip.compress(GOOD), kind).read_bytes())
    for place in data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=3)):
        content[place] = data.draw(st.integers(0, 255))
    written(file, bytes(content))
    with contextlib.suppress(InputError):
        np.testing.assert_array_equal(read_idx(file, member="folder/inner.gz"), expected(GOOD))


def assert_refused_or_right(path: Path, right: Bytes | None) -> None:
    if right is not None:
        np.testing.assert_array_equal(read_idx(path), right)
        return
    with pytest.raises(InputError) as refused:
        read_idx(path)
    message = str(refused.value)
    assert message.startswith(f"{path}: ")
    assert "; " in message
    assert "\n" not in message


HOSTILE = {
    "a header that claims terabytes": (
        header(2**32 - 1, 2**10, 2**10),
        r"must hold at most 1,073,741,824 bytes, got a header that claims 4,294,967,295 × ",
    ),
    "the same, compressed": (
        gzip.compress(header(2**32 - 1, 2**32 - 1, 2**32 - 1, 2**32 - 1)),
        r"must hold at most 1,073,741,824 bytes",
    ),
    "a header that claims as much as is allowed": (
        gzip.compress(header(2**30)),
        r"must hold the 1,073,741,824 bytes that its header claims, got a file too short",
    ),
    "a gzip bomb behind a small array": (
        gzip.compress(header(2) + bytes(40 * MEGABYTE), compresslevel=1),
        r"must end after 2 bytes, got more",
    ),
    "a gzip bomb without a header": (
        gzip.compress(b"\1" * (40 * MEGABYTE), compresslevel=1),
        r"must start with two zero bytes, got 0x0101",
    ),
    "a gzip bomb within a gzip bomb": (
        gzip.compress(gzip.compress(bytes(40 * MEGABYTE)), compresslevel=1),
        r"must start with two zero bytes, got 0x1f8b",
    ),
}


@pytest.mark.parametrize(("content", "message"), HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_file_takes_no_memory(file: Path, content: bytes, message: str) -> None:
    written(file, content)
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match=message):
            read_idx(file)
        assert tracemalloc.get_traced_memory()[1] < 4 * MEGABYTE
    finally:
        tracemalloc.stop()


def test_a_zip_bomb_takes_no_memory(file: Path) -> None:
    inner = gzip.compress(header(2) + bytes(40 * MEGABYTE), compresslevel=1)
    zipped(file, inner, zipfile.ZIP_DEFLATED)
    del inner
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match=r"must end after 2 bytes, got more"):
            read_idx(file, member="folder/inner.gz")
        assert tracemalloc.get_traced_memory()[1] < 4 * MEGABYTE
    finally:
        tracemalloc.stop()


def test_reading_takes_little_more_memory_than_what_is_kept(file: Path) -> None:
    array = np.zeros((40_000, 28, 28), dtype=np.uint8)
    keep = np.arange(len(array)) % 4 == 0
    written(file, gzip.compress(idx_bytes(array), compresslevel=1))
    tracemalloc.start()
    try:
        read_idx(file, keep=keep)
        assert tracemalloc.get_traced_memory()[1] < array.size // 4 + 5 * MEGABYTE
    finally:
        tracemalloc.stop()


REFUSED = {
    "empty": (b"", r"must go on, got its end too soon; get the complete file"),
    "cut in the magic number": (b"\0\0\x08", r"got its end too soon; "),
    "cut in the header": (header(3, 2)[:9], r"got its end too soon; "),
    "cut in the data": (GOOD[:-1], r"must hold the 4 × 3 × 2 bytes .*|got its end too soon; "),
    "compressed and cut": (gzip.compress(GOOD)[:-12], r"; get "),
    "compressed after being cut": (gzip.compress(GOOD[:-1]), r"got its end too soon; "),
    "trailing bytes": (GOOD + b"\0", r"must end after 4 × 3 × 2 bytes, got more; get"),
    "trailing bytes, compressed": (gzip.compress(GOOD + b"\0"), r"must end after .* got more; "),
    "text": (b"hello, world", r"must start with two zero bytes, got 0x6865; give an idx file"),
    "floats": (header(1, kind=0x0D) + bytes(4), r"unsigned bytes, type 0x08, got type 0x0d; "),
    "no dimension": (bytes([0, 0, 8, 0, 7]), r"must have 1 to 4 dimensions, got 0; "),
    "too many dimensions": (header(1, 1, 1, 1, 1) + b"\0", r"1 to 4 dimensions, got 5; "),
    "a dimension of zero": (header(3, 0), r"must hold something, got 3 × 0 bytes; "),
    "gzip by its first bytes only": (b"\x1f\x8bnothing else", r"cannot be read: .*; get "),
    "a wrong checksum": (
        gzip.compress(GOOD)[:-8] + bytes(4) + gzip.compress(GOOD)[-4:],
        r"cannot be read: CRC check failed.*; get",
    ),
}


@pytest.mark.parametrize(("content", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_a_bad_file_is_refused_and_it_says_why(file: Path, content: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message) as refused:
        read_idx(written(file, content))
    assert str(refused.value).startswith(f"{file}: ")


def test_the_limit_is_exact(file: Path) -> None:
    written(file, GOOD)
    assert read_idx(file, limit=24).size == 24
    with pytest.raises(InputError, match=r"must hold at most 23 bytes"):
        read_idx(file, limit=23)
    assert MOST_BYTES > 697_932 * 28 * 28  # the largest file of EMNIST


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, message in (
        ("", r"is a directory; give the name of a file"),
        ("missing", r"cannot be read: No such file or directory; get"),
        ("pipe", r"is not an ordinary file; give"),
        ("x" * 300, r"cannot be read: File name too long; get"),
        ("a\0b", r"cannot be read: embedded null byte; get"),
    ):
        with pytest.raises(InputError, match=message):
            read_idx(tmp_path / name)


def test_entries_to_keep_must_be_as_many_as_there_are(file: Path) -> None:
    with pytest.raises(InputError, match=r"must hold 3 entries, got 4; give images and labels"):
        read_idx(written(file, GOOD), keep=np.ones(3, dtype=np.bool_))


def test_archives_without_the_member_or_of_another_kind_are_refused(file: Path) -> None:
    zipped(file, GOOD)
    assert list_members(file) == ["folder/inner.gz"]
    with pytest.raises(InputError, match=r"must hold other, got none; get the archive again"):
        read_idx(file, member="other")
    zipped(file, GOOD, zipfile.ZIP_BZIP2)
    with pytest.raises(InputError, match=r"must be stored or deflated, got kind 12; "):
        read_idx(file, member="folder/inner.gz")
    written(file, GOOD)
    with pytest.raises(InputError, match=r"is not a zip archive: .*; get the file again"):
        list_members(file)
