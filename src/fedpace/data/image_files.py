"""Where the images and labels of a pool are: files, or members of an archive."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from fedpace.data.cache import find_file, missing
from fedpace.data.idx import members
from fedpace.errors import InputError

ARCHIVE = "gzip.zip"
BY_CLASS = ("emnist-byclass-train", "emnist-byclass-test")


class Source(NamedTuple):
    """A file, or a member of a zip archive."""

    path: Path
    member: str | None = None


class Files(NamedTuple):
    """The images of a split, and their labels."""

    images: Source
    labels: Source


def pool_files(name: str) -> list[Files]:
    """Return the files of "mnist" or "emnist-lower", or say which to put where."""
    dataset, stem = ("mnist", "train") if name == "mnist" else ("emnist", "emnist-lower")
    if ready := _present(dataset, stem):
        return [ready]
    if name == "mnist":
        raise missing("mnist", " and ".join(file_names("train")))
    return _by_class()


def file_names(stem: str) -> tuple[str, str]:
    """Return what the images and the labels of a split are called.

    >>> file_names("train")
    ('train-images-idx3-ubyte.gz', 'train-labels-idx1-ubyte.gz')
    """
    return f"{stem}-images-idx3-ubyte.gz", f"{stem}-labels-idx1-ubyte.gz"


def _by_class() -> list[Files]:
    """Return the ByClass splits that are there, as files or else within the archive."""
    found = [files for stem in BY_CLASS if (files := _present("emnist", stem))]
    archive = find_file("emnist", ARCHIVE)
    if not found and archive:
        found = [files for stem in BY_CLASS if (files := _archived(archive, stem))]
        if not found:
            raise InputError(
                f"{archive}: must hold gzip/{file_names(BY_CLASS[0])[0]}, got other files; "
                "get the official archive: fedpace data fetch emnist"
            )
    if not found:
        raise missing("emnist", f"{' and '.join(file_names(BY_CLASS[0]))} (or {ARCHIVE})")
    return found


def _present(dataset: str, stem: str) -> Files | None:
    """Return the images and labels of a split, or None where neither is there."""
    names = file_names(stem)
    images, labels = (find_file(dataset, name) for name in names)
    if images and labels:
        return Files(Source(images), Source(labels))
    there, lacking = (images, names[1]) if images else (labels, names[0])
    if there:
        raise InputError(
            f"{there}: must be accompanied by {lacking}, got it alone; "
            f"put {lacking} into {there.parent}"
        )
    return None


def _archived(archive: Path, stem: str) -> Files | None:
    images, labels = (f"gzip/{name}" for name in file_names(stem))
    if not {images, labels} <= set(members(archive)):
        return None
    return Files(Source(archive, images), Source(archive, labels))
