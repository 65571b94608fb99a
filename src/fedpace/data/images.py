"""Images of digits and letters from idx files, and clients that each hold a few classes."""

from __future__ import annotations

import gzip
import io
import math
import string
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple, cast
from zlib import crc32

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpace.data.datasets import find_file, missing_files
from fedpace.data.partition import check_test_share, classes_per_client
from fedpace.data.shards import Split, hold_out
from fedpace.errors import InputError, nearest

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


NAMES: dict[str, tuple[str, ...]] = {
    "mnist": tuple(string.digits),
    "emnist-lower": tuple(string.ascii_lowercase),
}
POOLS = tuple(NAMES)
CLASSES = {name: len(names) for name, names in NAMES.items()}
SIDE = 28
MNIST_TRAINING = 60_000
# CRC-32 of the training labels: Fashion-MNIST has files of the same names and sizes.
MNIST_CHECKSUM = 3121080559
# EMNIST ByClass numbers digits from 0, capitals from 10, small letters from 36.
FIRST_SMALL, LABELS = 36, 62


ARCHIVE = "gzip.zip"
BY_CLASS = ("emnist-byclass-train", "emnist-byclass-test")


class Pool(NamedTuple):
    """All images of a dataset: one per row in [0, 1], their classes from 0, the classes' names."""

    x: NDArray[np.float32]
    y: NDArray[np.int64]
    names: tuple[str, ...]


class Source(NamedTuple):
    """A file, or a member of a zip archive."""

    path: Path
    member: str | None = None


class Files(NamedTuple):
    """The images of a split, and their labels."""

    images: Source
    labels: Source


def load_pool(name: str, *, official: bool = True) -> Pool:
    """Read all images of a pool: MNIST's training split, or EMNIST's small letters.

    Small letters come from emnist-lower-*, a ready subset, or else from the official ByClass
    splits, as files or within the official archive. With `official` False, MNIST's files may be
    other images of the same form, such as Fashion-MNIST.
    """
    if name not in POOLS:
        raise InputError(f"pool must be a known name, got '{name}'; {nearest(name, POOLS)}")
    files = pool_files(name)
    labels = [_read_labels(each.labels, name, official=official) for each in files]
    first = 0 if name == "mnist" else FIRST_SMALL
    kept = [every >= first for every in labels]
    y = np.concatenate(labels)[np.concatenate(kept)].astype(np.int64) - first
    x = np.empty((y.size, SIDE, SIDE), dtype=np.float32)
    parts = np.split(x, np.cumsum([keep.sum() for keep in kept])[:-1])
    for each, keep, part in zip(files, kept, parts, strict=True):
        images = _read_images(each.images, keep)
        # EMNIST's files hold the columns of an image where others hold its rows.
        upright = images if name == "mnist" else images.swapaxes(1, 2)
        # Straight into x: EMNIST fits into memory once, but not twice.
        np.divide(upright, 255, out=part, dtype=np.float32)
    return Pool(x.reshape(-1, SIDE * SIDE), y, NAMES[name])


def standardise(pool: Pool) -> Pool:
    """Shift and scale all pixels alike, to mean 0 and variance 1 over the pool.

    >>> standardise(Pool(np.float32([[0, 1]]), np.array([0]), ("a",))).x
    array([[-1.,  1.]], dtype=float32)
    """
    # Summed in float64: a sum over 4e7 pixels in float32 loses digits.
    mean, deviation = pool.x.mean(dtype=np.float64), pool.x.std(dtype=np.float64)
    return pool._replace(x=(pool.x - np.float32(mean)) / np.float32(deviation))


def image_split(
    pool: Pool,
    sizes: ArrayLike,
    rng: np.random.Generator,
    *,
    fewest: int,
    most: int,
    test_share: float = 0.1,
) -> Split:
    """Give each client `sizes` images for training, of `fewest` to `most` classes.

    No image is used twice. `sizes` are 1 − test_share of a client's images; it holds back the
    others for testing. See `classes_per_client`.

    >>> pool = Pool(np.eye(40, dtype=np.float32), np.repeat([0, 1], 20), ("a", "b"))
    >>> split = image_split(pool, [18, 9], np.random.default_rng(0), fewest=1, most=2)
    >>> split.train.sizes, split.test.sizes
    (array([18,  9]), array([2, 1]))
    """
    check_test_share(test_share)
    kept = np.asarray(sizes)
    if kept.ndim != 1 or not np.issubdtype(kept.dtype, np.integer) or (kept < 1).any():
        got = f"{sizes!r:.60}; give one size per client"
        raise InputError(f"sizes must be positive integers, got {got}")
    held_out = np.maximum(np.rint(kept * test_share / (1 - test_share)), 1).astype(np.int64)
    total = int((kept + held_out).sum())
    if total > pool.y.size:
        raise InputError(
            f"sizes must sum, with what is held back, to at most the {pool.y.size:,} images of "
            f"the pool, got {total:,}; give fewer samples"
        )
    parts = classes_per_client(pool.y, kept + held_out, rng, fewest=fewest, most=most)
    return hold_out([pool.x[part] for part in parts], [pool.y[part] for part in parts], kept)


def pool_files(name: str) -> list[Files]:
    """Return the files of "mnist" or "emnist-lower"; an error names the missing ones."""
    dataset, stem = ("mnist", "train") if name == "mnist" else ("emnist", "emnist-lower")
    if ready := _find_split(dataset, stem):
        return [ready]
    if name == "mnist":
        raise missing_files("mnist", " and ".join(_file_names("train")))
    return _find_by_class()


def pool_paths(name: str) -> list[Path]:
    """Return the files that hold the images of a pool."""
    return list(dict.fromkeys(files.images.path for files in pool_files(name)))


def _find_by_class() -> list[Files]:
    """Return the ByClass splits, as files or else within the archive."""
    found = [files for stem in BY_CLASS if (files := _find_split("emnist", stem))]
    archive = find_file("emnist", ARCHIVE)
    if not found and archive:
        members = set(list_members(archive))
        names = [[f"gzip/{name}" for name in _file_names(stem)] for stem in BY_CLASS]
        pairs = [pair for pair in names if set(pair) <= members]
        found = [Files(*(Source(archive, name) for name in pair)) for pair in pairs]
        if not found:
            remedy = "get the official archive: fedpace data fetch emnist"
            raise InputError(f"{archive}: must hold {names[0][0]}, got other files; {remedy}")
    if not found:
        raise missing_files("emnist", f"{' and '.join(_file_names(BY_CLASS[0]))} (or {ARCHIVE})")
    return found


def _find_split(dataset: str, stem: str) -> Files | None:
    """Return the images and labels of a split, or None where neither exists."""
    names = _file_names(stem)
    images, labels = (find_file(dataset, name) for name in names)
    if images and labels:
        return Files(Source(images), Source(labels))
    alone, lacking = (images, names[1]) if images else (labels, names[0])
    if alone:
        remedy = f"put {lacking} into {alone.parent}"
        raise InputError(f"{alone}: must be accompanied by {lacking}, got it alone; {remedy}")
    return None


def _file_names(stem: str) -> tuple[str, str]:
    """Return the names of the files with the images and the labels of a split.

    >>> _file_names("train")
    ('train-images-idx3-ubyte.gz', 'train-labels-idx1-ubyte.gz')
    """
    return f"{stem}-images-idx3-ubyte.gz", f"{stem}-labels-idx1-ubyte.gz"


def _read_labels(source: Source, name: str, *, official: bool) -> NDArray[np.uint8]:
    ready = source.path.name.startswith("emnist-lower")
    lowest, highest = (0, 9) if name == "mnist" else (FIRST_SMALL if ready else 0, LABELS - 1)
    labels = read_idx(source.path, member=source.member)
    problem = ""
    if labels.ndim != 1:
        got = f"{labels.ndim} dimensions; give a file named labels-idx1"
        problem = f"one label per image, got {got}"
    elif labels.min() < lowest or labels.max() > highest:
        got = f"{labels.min()} to {labels.max()}; give the official files"
        problem = f"labels from {lowest} to {highest}, got {got}"
    elif name == "mnist" and labels.size != MNIST_TRAINING:
        got = f"{labels.size:,}; put {' and '.join(_file_names('train'))} of MNIST there"
        problem = f"the {MNIST_TRAINING:,} labels of the training split, got {got}"
    elif name == "mnist" and official and crc32(labels.tobytes()) != MNIST_CHECKSUM:
        got = "others (Fashion-MNIST has the same names); give the official files, or set "
        problem = f"the labels of MNIST, got {got}data.official=false to use these"
    if problem:
        raise InputError(f"{source.path}: must hold {problem}")
    return labels


def _read_images(source: Source, keep: NDArray[np.bool_]) -> NDArray[np.uint8]:
    images = read_idx(source.path, member=source.member, keep=keep)
    if images.shape[1:] != (SIDE, SIDE):
        got = f"shape {images.shape}; give the official files"
        raise InputError(f"{source.path}: must hold images of {SIDE} × {SIDE}, got {got}")
    return images
