"""Read the idx format of MNIST, from files that need not be trusted."""

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
# Deflate turns a byte into no more than this many, whatever it says.
MOST_EXPANSION = 1032
CHUNK = 2**20
# What reading a damaged file raises, by its container.
DAMAGE = (
    OSError,
    EOFError,
    zlib.error,
    zipfile.BadZipFile,
    struct.error,
    ValueError,
    RuntimeError,  # a zip that is encrypted, or of a kind that zipfile does not know
)


def read_idx(
    path: Path,
    *,
    member: str | None = None,
    keep: NDArray[np.bool_] | None = None,
    limit: int = MOST_BYTES,
) -> NDArray[np.uint8]:
    """Read an array of bytes from an idx file, compressed with gzip or plain.

    The file must hold neither less nor more than its header claims. Before memory is taken, the
    claim is checked against `limit`, in bytes, and against what a file of this length can hold.

    If `path` is a zip archive, `member` is the file within; nothing is unpacked to disk. `keep`
    says which entries of the first dimension to return; the others take no memory.

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
        with _opened(path, member) as (stream, most):
            shape = _read_shape(stream, name)
            _check_claim(shape, name, limit, most)
            return _read_rows(stream, name, shape, keep)
    except InputError:
        raise
    except DAMAGE as error:
        reason = getattr(error, "strerror", None) or str(error) or "it ends too soon"
        raise InputError(f"{name}: cannot be read: {reason}; get the file again") from None


def members(path: Path) -> list[str]:
    """Return the names of the files in a zip archive."""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.namelist()
    except DAMAGE as error:
        raise InputError(f"{path}: is not a zip archive: {error}; get the file again") from None


@contextmanager
def _opened(path: Path, member: str | None) -> Iterator[tuple[io.BufferedIOBase, int]]:
    """Open a file, decompressed, and say how many bytes it can hold at most."""
    if path.is_dir():
        raise InputError(f"{path}: is a directory; give the name of a file")
    if path.exists() and not path.is_file():  # a pipe would wait for ever
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
    # Other kinds are decompressed in one go, however large.
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise InputError(
            f"{path}: {member} must be stored or deflated, got kind {entry.compress_type}; "
            "get the archive again"
        )
    return entry


def _read_shape(stream: io.BufferedIOBase, name: str) -> tuple[int, ...]:
    magic = bytes(_filled(stream, np.empty(4, dtype=np.uint8), name))
    if magic[:2] != b"\0\0":
        raise InputError(
            f"{name}: must start with two zero bytes, got 0x{magic[:2].hex()}; "
            "give an idx file, such as train-images-idx3-ubyte.gz"
        )
    kind, dimensions = magic[2:]
    if kind != UINT8:
        raise InputError(
            f"{name}: must hold unsigned bytes, type 0x08, got type 0x{kind:02x}; "
            "give images or labels as bytes"
        )
    if not 1 <= dimensions <= MOST_DIMENSIONS:
        raise InputError(
            f"{name}: must have 1 to {MOST_DIMENSIONS} dimensions, got {dimensions}; "
            "give images or labels"
        )
    header = _filled(stream, np.empty(4 * dimensions, dtype=np.uint8), name)
    return tuple(int(length) for length in header.view(">u4"))


def _check_claim(shape: tuple[int, ...], name: str, limit: int, most: int) -> None:
    """Refuse sizes that are zero, above the limit, or more than the file can hold."""
    size = math.prod(shape)
    if size == 0:
        raise InputError(f"{name}: must hold something, got {_product(shape)}; get the file again")
    if size > limit:
        raise InputError(
            f"{name}: must hold at most {limit:,} bytes, got a header that claims "
            f"{_product(shape)}; get the file again"
        )
    if size > most:
        raise InputError(
            f"{name}: must hold the {_product(shape)} that its header claims, got a file too "
            "short for them; get the whole file"
        )


def _product(shape: tuple[int, ...]) -> str:
    return f"{' × '.join(f'{length:,}' for length in shape)} bytes"


def _read_rows(
    stream: io.BufferedIOBase, name: str, shape: tuple[int, ...], keep: NDArray[np.bool_] | None
) -> NDArray[np.uint8]:
    """Read the entries to keep, and make sure that nothing follows the last."""
    if keep is None:
        keep = np.broadcast_to(True, shape[:1])  # which takes no memory
    if keep.shape != shape[:1]:
        raise InputError(
            f"{name}: must hold {keep.size:,} entries, got {shape[0]:,}; "
            "give images and labels of the same split"
        )
    array = np.empty((int(keep.sum()), *shape[1:]), dtype=np.uint8)
    rows = max(1, CHUNK // math.prod(shape[1:]))
    block = np.empty((min(rows, shape[0]), *shape[1:]), dtype=np.uint8)
    done = 0
    for start in range(0, shape[0], rows):
        wanted = keep[start : start + rows]
        chosen = _filled(stream, block[: wanted.size], name)[wanted]
        array[done : done + len(chosen)] = chosen
        done += len(chosen)
    if stream.read(1):
        raise InputError(f"{name}: must end after {_product(shape)}, got more; get the file again")
    return array


def _filled(stream: io.BufferedIOBase, array: NDArray[np.uint8], name: str) -> NDArray[np.uint8]:
    """Fill an array from a stream, a chunk at a time."""
    missing = array.reshape(-1).data
    while len(missing):
        count = stream.readinto(missing[:CHUNK])
        if not count:
            raise InputError(f"{name}: must go on, got its end too soon; get the whole file")
        missing = missing[count:]
    return array
