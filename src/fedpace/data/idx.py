"""Read the idx format of MNIST from files that may be damaged or hostile."""

from __future__ import annotations

import gzip
import io
import math
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from fedpace.errors import InputError

# Twice the largest file of EMNIST.
MOST_BYTES = 2**30
# Images have three dimensions, labels one; colours would be the fourth.
MOST_DIMENSIONS = 4
UINT8 = 0x08
GZIP = b"\x1f\x8b"
# Deflate expands a byte to at most this many.
MOST_EXPANSION = 1032
CHUNK = 2**20
# Errors of damaged files; RuntimeError is an encrypted zip, or one of an unknown kind.
DAMAGE = (
    OSError, EOFError, zlib.error, zipfile.BadZipFile, struct.error, ValueError, RuntimeError,
)  # fmt: skip


def read_idx(
    path: Path,
    *,
    member: str | None = None,
    keep: NDArray[np.bool_] | None = None,
    limit: int = MOST_BYTES,
) -> NDArray[np.uint8]:
    """Read an array of bytes from an idx file, compressed with gzip or plain.

    The size in the header is checked before memory is allocated, and must match the contents.

    Parameters
    ----------
    path : Path
        The file, or a zip archive; nothing is unpacked to disk.
    member : str, optional
        File within the archive.
    keep : array of bool, optional
        Which entries of the first dimension to return; the others take no memory.
    limit : int
        Largest size in bytes.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "labels-idx1-ubyte")
    >>> _ = path.write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 0, 9]))
    >>> read_idx(path)
    array([7, 0, 9], dtype=uint8)

    References
    ----------
    LeCun, Cortes, Burges: The MNIST database of handwritten digits, section "File formats".
    """
    name = str(path) if member is None else f"{path}: {member}"
    try:
        with _open(path, member) as (stream, most):
            shape = _read_shape(stream, name)
            _check_size(shape, name, limit, most)
            return _read_rows(stream, name, shape, keep)
    except InputError:
        raise
    except DAMAGE as error:
        reason = getattr(error, "strerror", None) or str(error) or "it ends too soon"
        raise InputError(f"{name}: cannot be read: {reason}; get the file again") from None


def list_members(path: Path) -> list[str]:
    """Return the names of the files in a zip archive."""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.namelist()
    except DAMAGE as error:
        raise InputError(f"{path}: is not a zip archive: {error}; get the file again") from None


@contextmanager
def _open(path: Path, member: str | None) -> Iterator[tuple[io.BufferedIOBase, int]]:
    """Open a file, decompressed; yield it and the most bytes that it can hold."""
    if path.is_dir():
        raise InputError(f"{path}: is a directory; give the name of a file")
    if path.exists() and not path.is_file():  # reading a pipe would block
        raise InputError(f"{path}: is not an ordinary file; give the name of one")
    with ExitStack() as stack:
        stream: io.BufferedIOBase = stack.enter_context(path.open("rb"))
        length = path.stat().st_size
        if member is not None:
            archive = stack.enter_context(zipfile.ZipFile(stream))
            entry = _entry(archive, path, member)
            stream = cast(io.BufferedIOBase, stack.enter_context(archive.open(entry)))
            length = entry.file_size
        start = stream.read(len(GZIP))
        stream.seek(0)
        if start == GZIP:
            stream = stack.enter_context(gzip.GzipFile(fileobj=stream))
            length *= MOST_EXPANSION
        yield stream, length


def _entry(archive: zipfile.ZipFile, path: Path, member: str) -> zipfile.ZipInfo:
    if member not in archive.namelist():
        raise InputError(f"{path}: must hold {member}, got none; get the archive again")
    entry = archive.getinfo(member)
    # Other kinds are decompressed in one go, of any size.
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        got = f"kind {entry.compress_type}; get the archive again"
        raise InputError(f"{path}: {member} must be stored or deflated, got {got}")
    return entry


def _read_shape(stream: io.BufferedIOBase, name: str) -> tuple[int, ...]:
    magic = bytes(_fill(stream, np.empty(4, dtype=np.uint8), name))
    if magic[:2] != b"\0\0":
        got = f"0x{magic[:2].hex()}; give an idx file, such as train-images-idx3-ubyte.gz"
        raise InputError(f"{name}: must start with two zero bytes, got {got}")
    kind, dimensions = magic[2:]
    if kind != UINT8:
        got = f"type 0x{kind:02x}; give images or labels as bytes"
        raise InputError(f"{name}: must hold unsigned bytes, type 0x08, got {got}")
    if not 1 <= dimensions <= MOST_DIMENSIONS:
        got = f"{dimensions}; give images or labels"
        raise InputError(f"{name}: must have 1 to {MOST_DIMENSIONS} dimensions, got {got}")
    header = _fill(stream, np.empty(4 * dimensions, dtype=np.uint8), name)
    return tuple(int(length) for length in header.view(">u4"))


def _check_size(shape: tuple[int, ...], name: str, limit: int, most: int) -> None:
    """Refuse sizes that are zero, above the limit, or more than the file can hold."""
    size, claim = math.prod(shape), _product(shape)
    if size == 0:
        raise InputError(f"{name}: must hold something, got {claim}; get the file again")
    if size > limit:
        got = f"a header that claims {claim}; get the file again"
        raise InputError(f"{name}: must hold at most {limit:,} bytes, got {got}")
    if size > most:
        got = "a file too short for them; get the complete file"
        raise InputError(f"{name}: must hold the {claim} that its header claims, got {got}")


def _product(shape: tuple[int, ...]) -> str:
    return f"{' × '.join(f'{length:,}' for length in shape)} bytes"


def _read_rows(
    stream: io.BufferedIOBase, name: str, shape: tuple[int, ...], keep: NDArray[np.bool_] | None
) -> NDArray[np.uint8]:
    """Read the entries to keep, and refuse trailing bytes."""
    if keep is None:
        keep = np.broadcast_to(True, shape[:1])  # takes no memory
    if keep.shape != shape[:1]:
        got = f"{shape[0]:,}; give images and labels of the same split"
        raise InputError(f"{name}: must hold {keep.size:,} entries, got {got}")
    array = np.empty((int(keep.sum()), *shape[1:]), dtype=np.uint8)
    rows = max(1, CHUNK // math.prod(shape[1:]))
    block = np.empty((min(rows, shape[0]), *shape[1:]), dtype=np.uint8)
    done = 0
    for start in range(0, shape[0], rows):
        wanted = keep[start : start + rows]
        kept = _fill(stream, block[: wanted.size], name)[wanted]
        array[done : done + len(kept)] = kept
        done += len(kept)
    if stream.read(1):
        raise InputError(f"{name}: must end after {_product(shape)}, got more; get the file again")
    return array


def _fill(stream: io.BufferedIOBase, array: NDArray[np.uint8], name: str) -> NDArray[np.uint8]:
    """Fill an array from a stream, a chunk at a time."""
    missing = array.reshape(-1).data
    while len(missing):
        count = stream.readinto(missing[:CHUNK])
        if not count:
            raise InputError(f"{name}: must go on, got its end too soon; get the complete file")
        missing = missing[count:]
    return array
