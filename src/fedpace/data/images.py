"""Digits and letters: pools of images, and clients who each hold a few classes of them."""

from __future__ import annotations

import string
from typing import NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpace.data.idx import read_idx
from fedpace.data.image_files import Source, file_names, pool_files
from fedpace.data.partition import check_test_share, classes_per_client
from fedpace.data.shards import Split, hold_out
from fedpace.errors import InputError, nearest

NAMES: dict[str, tuple[str, ...]] = {
    "mnist": tuple(string.digits),
    "emnist-lower": tuple(string.ascii_lowercase),
}
POOLS = tuple(NAMES)
CLASSES = {name: len(names) for name, names in NAMES.items()}
SIDE = 28
MNIST_TRAINING = 60_000
# Of the labels of MNIST's training split: Fashion-MNIST has files of the same names and sizes.
MNIST_CHECKSUM = 3121080559
# EMNIST ByClass numbers digits from 0, capitals from 10, small letters from 36.
FIRST_SMALL, LABELS = 36, 62


class Pool(NamedTuple):
    """Images to deal out.

    `x` holds an image per row, in [0, 1], upright, row by row; `y` its class from 0; `names` what
    the classes are called.
    """

    x: NDArray[np.float32]
    y: NDArray[np.int64]
    names: tuple[str, ...]


def load_pool(name: str, *, official: bool = True) -> Pool:
    """Read all images of a pool: MNIST's training split, or EMNIST's small letters.

    Small letters come from emnist-lower-*, a ready subset, if it is there; else from whatever
    there is of the official ByClass splits, as files or within the official archive. With
    `official` False, MNIST's files may be other images of the same form, such as Fashion-MNIST.
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
        # Straight into x: the whole of EMNIST fits once, but not twice.
        np.divide(upright, 255, out=part, dtype=np.float32)
    return Pool(x.reshape(-1, SIDE * SIDE), y, NAMES[name])


def standardised(pool: Pool) -> Pool:
    """Shift and scale all pixels alike, to mean 0 and variance 1 over the pool.

    >>> standardised(Pool(np.float32([[0, 1]]), np.array([0]), ("a",))).x
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
    """Deal images out to clients of few classes, who train on `sizes` of them each.

    No image is dealt out twice. A client holds back the share `test_share` of its samples:
    `sizes` are the other 1 − test_share. It has `fewest` to `most` classes: see
    `classes_per_client`.

    >>> pool = Pool(np.eye(40, dtype=np.float32), np.repeat([0, 1], 20), ("a", "b"))
    >>> split = image_split(pool, [18, 9], np.random.default_rng(0), fewest=1, most=2)
    >>> split.train.sizes, split.test.sizes
    (array([18,  9]), array([2, 1]))
    """
    check_test_share(test_share)
    kept = np.asarray(sizes)
    if kept.ndim != 1 or not np.issubdtype(kept.dtype, np.integer) or (kept < 1).any():
        raise InputError(
            f"sizes must be positive integers, got {sizes!r:.60}; give one size per client"
        )
    held_out = np.maximum(np.rint(kept * test_share / (1 - test_share)), 1).astype(np.int64)
    total = int((kept + held_out).sum())
    if total > pool.y.size:
        raise InputError(
            f"sizes must sum, with what is held back, to at most the {pool.y.size:,} images of "
            f"the pool, got {total:,}; give fewer samples"
        )
    parts = classes_per_client(pool.y, kept + held_out, rng, fewest=fewest, most=most)
    return hold_out([pool.x[part] for part in parts], [pool.y[part] for part in parts], kept)


def _read_labels(source: Source, name: str, *, official: bool) -> NDArray[np.uint8]:
    ready = source.path.name.startswith("emnist-lower")
    lowest, highest = (0, 9) if name == "mnist" else (FIRST_SMALL if ready else 0, LABELS - 1)
    labels = read_idx(source.path, member=source.member)
    if labels.ndim != 1:
        raise InputError(
            f"{source.path}: must hold one label per image, got {labels.ndim} dimensions; "
            "give a file named labels-idx1"
        )
    least, largest = int(labels.min()), int(labels.max())
    if least < lowest or largest > highest:
        raise InputError(
            f"{source.path}: must hold labels from {lowest} to {highest}, got {least} to "
            f"{largest}; give the official files"
        )
    if name == "mnist" and labels.size != MNIST_TRAINING:
        raise InputError(
            f"{source.path}: must hold the {MNIST_TRAINING:,} labels of the training split, "
            f"got {labels.size:,}; put {' and '.join(file_names('train'))} of MNIST there"
        )
    if name == "mnist" and official and crc32(labels.tobytes()) != MNIST_CHECKSUM:
        raise InputError(
            f"{source.path}: must hold the labels of MNIST, got others (Fashion-MNIST has the same "
            "names); give the official files, or say with data.official=false that these are meant"
        )
    return labels


def _read_images(source: Source, keep: NDArray[np.bool_]) -> NDArray[np.uint8]:
    images = read_idx(source.path, member=source.member, keep=keep)
    if images.shape[1:] != (SIDE, SIDE):
        raise InputError(
            f"{source.path}: must hold images of {SIDE} × {SIDE}, got shape {images.shape}; "
            "give the official files"
        )
    return images
