"""CIFAR-10, divided by a Dirichlet distribution, and Shakespeare, one client per speaker."""

from __future__ import annotations

import io
import tarfile
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedpace.checks import IntArray
from fedpace.data.datasets import find_file, folders, missing_files
from fedpace.data.partition import dirichlet
from fedpace.data.shards import Shards, Split, hold_out
from fedpace.errors import InputError

CIFAR10, SHAKESPEARE = "cifar10", "shakespeare"
CIFAR10_CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
# The official archive and its folder; and a smaller file, arrays of the same names as `Cifar10`.
ARCHIVE, FOLDER, READY = "cifar-10-binary.tar.gz", "cifar-10-batches-bin", "cifar10-25000.npz"
BATCHES = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
TEST = "test_batch.bin"
# A record is a label, and the red, green and blue planes of 32 × 32.
SIDE, PLANES = 32, 3
RECORD = 1 + PLANES * SIDE * SIDE
TEXT = "input.txt"


class Cifar10(NamedTuple):
    """Images (n, 32, 32, 3), 0 to 255, and their classes, for training and for testing."""

    train_images: NDArray[np.uint8]
    train_labels: NDArray[np.uint8]
    test_images: NDArray[np.uint8]
    test_labels: NDArray[np.uint8]


def cifar10_file() -> Path:
    """Return where CIFAR-10 is: the official archive, its folder, or the ready file."""
    if archive := find_file(CIFAR10, ARCHIVE):
        return archive
    unpacked = (place / FOLDER for place in folders(CIFAR10))
    folder = next((each for each in unpacked if (each / TEST).is_file()), None)
    found = folder or find_file(CIFAR10, READY)
    if found is None:
        raise missing_files(CIFAR10, f"{ARCHIVE}, {FOLDER} or {READY}")
    return found


def load_cifar10() -> Cifar10:
    """Read all images.

    The ready file holds 20,000 and 5,000 images from a copy of the data as JPEG: slightly lossy.
    """
    path = cifar10_file()
    try:
        if path.name == READY:
            with np.load(path, allow_pickle=False) as file:
                loaded = Cifar10(*(file[name] for name in Cifar10._fields))
        else:
            train = [_records(path, name) for name in BATCHES]
            loaded = Cifar10(*_unpack(b"".join(train)), *_unpack(_records(path, TEST)))
    except (OSError, KeyError, ValueError, EOFError, tarfile.TarError) as error:
        remedy = f"remove it, and run: fedpace data fetch {CIFAR10}"
        raise InputError(f"{path}: cannot be read as CIFAR-10: {error}; {remedy}") from None
    for images, labels in (loaded[:2], loaded[2:]):
        if images.shape[1:] != (SIDE, SIDE, PLANES) or labels.shape != images.shape[:1]:
            got = f"shapes {images.shape} and {labels.shape}; give the official files"
            raise InputError(f"{path}: must hold images of 32 × 32 × 3 and a label each, got {got}")
        if not labels.size or labels.max() >= len(CIFAR10_CLASSES):
            raise InputError(f"{path}: must hold labels from 0 to 9, got others; give CIFAR-10")
    return loaded


def _records(path: Path, name: str) -> bytes:
    """Return a file of the archive or its folder."""
    if path.is_dir():
        return (path / name).read_bytes()
    with tarfile.open(path, "r:gz" if path.suffix == ".gz" else "r:") as archive:
        member = archive.extractfile(f"{FOLDER}/{name}")
        return io.BufferedReader(member).read() if member else b""  # type: ignore[type-var]


def _unpack(records: bytes) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    rows = np.frombuffer(records, dtype=np.uint8).reshape(-1, RECORD)
    return rows[:, 1:].reshape(-1, PLANES, SIDE, SIDE).transpose(0, 2, 3, 1), rows[:, 0]


def cifar10_split(
    data: Cifar10, clients: int, rng: np.random.Generator, *, concentration: float
) -> Split:
    """Divide the images among clients of equal size, with classes that differ: see `dirichlet`.

    A client's test images are of the same classes as its training images, as far as there are
    enough: of the test images of a class it gets as large a part as it has of those for training.
    Pixels are scaled to mean 0 and variance 1 over all training images, by colour.
    """
    parts = dirichlet(data.train_labels, clients, rng, concentration=concentration)
    counts = np.array([np.bincount(data.train_labels[each], minlength=10) for each in parts])
    tests = _like(counts, data.test_labels, rng)
    means = data.train_images.mean(axis=(0, 1, 2), dtype=np.float64)
    spread = data.train_images.std(axis=(0, 1, 2), dtype=np.float64)
    spread[spread == 0] = 1  # a colour that is the same everywhere stays 0

    def shards(
        images: NDArray[np.uint8], labels: NDArray[np.uint8], rows: list[IntArray]
    ) -> Shards:
        every = np.concatenate(rows)
        x = images[every].astype(np.float32)
        x -= means.astype(np.float32)
        x /= spread.astype(np.float32)
        offsets = np.cumsum([0, *map(len, rows)], dtype=np.int64)
        return Shards(x.reshape(len(x), -1), labels[every].astype(np.int64), offsets)

    train = shards(data.train_images, data.train_labels, parts)
    return Split(train, shards(data.test_images, data.test_labels, tests))


def _like(counts: IntArray, labels: NDArray[np.uint8], rng: np.random.Generator) -> list[IntArray]:
    """Return the rows of each client, a part of each class in proportion to its counts."""
    rows: list[list[IntArray]] = [[] for _ in counts]
    for label, column in enumerate(counts.T):
        mine = rng.permutation(np.flatnonzero(labels == label))
        ends = np.rint(np.cumsum(column) / max(column.sum(), 1) * mine.size).astype(np.int64)
        for own, part in zip(rows, np.split(mine, ends[:-1]), strict=True):
            own.append(part)
    return [np.concatenate(own) for own in rows]


def shakespeare_file() -> Path:
    """Return the text: blocks of SPEAKER: and lines, with blank lines between."""
    if found := find_file(SHAKESPEARE, TEXT):
        return found
    raise missing_files(SHAKESPEARE, TEXT)


class Speeches(NamedTuple):
    """The words of each speaker, in the order of names, and all characters of the text."""

    speakers: dict[str, str]
    characters: str


def load_speeches(fewest: int) -> Speeches:
    """Return what speakers say who have at least `fewest` characters in all."""
    path = shakespeare_file()
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}; give the text of the plays") from None
    said: dict[str, list[str]] = {}
    lines = text.splitlines()
    for blank, block in groupby(lines, key=lambda line: not line.strip()):
        if blank:
            continue
        name, *words = block
        if name.endswith(":") and words:
            said.setdefault(name.removesuffix(":"), []).extend(words)
    joined = {name: "\n".join(said[name]) + "\n" for name in sorted(said)}
    kept = {name: words for name, words in joined.items() if len(words) >= fewest}
    if not kept:
        got = f"{len(joined)} speakers with fewer; lower data.fewest, or give another text"
        raise InputError(f"{path}: must have speakers with {fewest:,} characters, got {got}")
    return Speeches(kept, "".join(sorted(set(text))))


def speech_split(speeches: Speeches, *, length: int, most: int | None, test_share: float) -> Split:
    """Cut each speaker's words into sequences of `length` characters, one client per speaker.

    A sample is a sequence and, as y, the character after each; characters are numbers. A client
    has at most its first `most` characters, and holds back its last sequences for testing.
    """
    number = {character: index for index, character in enumerate(speeches.characters)}
    xs: list[NDArray[Any]] = []
    ys: list[NDArray[Any]] = []
    sizes: list[int] = []
    for words in speeches.speakers.values():
        tokens = np.array([number[each] for each in words[:most]], dtype=np.int64)
        count = (tokens.size - 1) // length
        if count < 2:
            got = f"{tokens.size} characters; lower data.length"
            raise InputError(f"a speaker must have two sequences of {length}, got {got}")
        xs.append(tokens[: count * length].reshape(count, length))
        ys.append(tokens[1 : count * length + 1].reshape(count, length))
        sizes.append(count - max(round(count * test_share), 1))
    return hold_out(xs, ys, np.array(sizes))
