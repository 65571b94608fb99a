"""Digits and letters: pools of images, and clients who each hold a few classes of them."""

from __future__ import annotations

import string
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpace.data.idx import read_idx
from fedpace.data.image_files import Files, Source, file_names, pool_files
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


def load_pool(name: str) -> Pool:
    """Read all images of a pool: MNIST's training split, or EMNIST's small letters.

    Small letters come from emnist-lower-*, a ready subset, if it is there; else from whatever
    there is of the official ByClass splits, as files or within the official archive.
    """
    if name not in POOLS:
        raise InputError(f"pool must be a known name, got '{name}'; {nearest(name, POOLS)}")
    files = pool_files(name)
    x, y = _digits(files[0]) if name == "mnist" else _letters(files)
    return Pool(x, y, NAMES[name])


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

    No image is dealt out twice. How many classes a client has is drawn between `fewest` and
    `most`, independently of its size: see `classes_per_client`.

    Parameters
    ----------
    pool : Pool
        What is dealt out.
    sizes : array of N
        Training samples per client.
    rng : Generator
        The stream of the data.
    fewest, most : int
        Bounds of a client's number of classes.
    test_share : float in (0, 1)
        Share of a client's samples that it holds back besides: sizes are a (1 − test_share) part.

    Examples
    --------
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


def _digits(files: Files) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    labels = _read_labels(files.labels, 0, 9)
    if labels.size != MNIST_TRAINING:
        raise InputError(
            f"{files.labels.path}: must hold the {MNIST_TRAINING:,} labels of the training split, "
            f"got {labels.size:,}; put {' and '.join(file_names('train'))} of MNIST there"
        )
    images = _read_images(files.images, np.ones(labels.size, dtype=np.bool_))
    x = np.empty(images.shape, dtype=np.float32)
    _scale(images, x)
    return x.reshape(-1, SIDE * SIDE), labels.astype(np.int64)


def _letters(splits: list[Files]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the small letters of all splits, upright."""
    labels = [_read_letter_labels(files.labels) for files in splits]
    small = [every >= FIRST_SMALL for every in labels]
    x = np.empty((sum(int(each.sum()) for each in small), SIDE, SIDE), dtype=np.float32)
    done = 0
    for files, keep in zip(splits, small, strict=True):
        images = _read_images(files.images, keep)
        # The files hold the columns of an image where others hold its rows.
        _scale(images.swapaxes(1, 2), x[done : done + len(images)])
        done += len(images)
    y = np.concatenate([every[keep] for every, keep in zip(labels, small, strict=True)])
    return x.reshape(-1, SIDE * SIDE), y.astype(np.int64) - FIRST_SMALL


def _read_letter_labels(source: Source) -> NDArray[np.uint8]:
    ready = source.path.name.startswith("emnist-lower")
    return _read_labels(source, FIRST_SMALL if ready else 0, LABELS - 1)


def _read_labels(source: Source, lowest: int, highest: int) -> NDArray[np.uint8]:
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
    return labels


def _read_images(source: Source, keep: NDArray[np.bool_]) -> NDArray[np.uint8]:
    images = read_idx(source.path, member=source.member, keep=keep)
    if images.shape[1:] != (SIDE, SIDE):
        raise InputError(
            f"{source.path}: must hold images of {SIDE} × {SIDE}, got shape {images.shape}; "
            "give the official files"
        )
    return images


def _scale(images: NDArray[np.uint8], x: NDArray[np.float32]) -> None:
    """Write images into x, with 255 as 1: the whole of EMNIST fits once, but not twice."""
    np.divide(images, 255, out=x, dtype=np.float32)
