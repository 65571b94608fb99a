"""Files as MNIST's and EMNIST's, made up."""

import gzip
import struct
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike


def idx_bytes(values: ArrayLike) -> bytes:
    array = np.asarray(values, dtype=np.uint8)
    return header(*array.shape) + array.tobytes()


def header(*shape: int, kind: int = 8) -> bytes:
    return bytes([0, 0, kind, len(shape)]) + struct.pack(f">{len(shape)}I", *shape)


def write_split(folder: Path, stem: str, images: ArrayLike, labels: ArrayLike) -> None:
    """Write a split's two files, compressed, under their official names."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, values in (("images-idx3", images), ("labels-idx1", labels)):
        packed = gzip.compress(idx_bytes(values), compresslevel=1)
        (folder / f"{stem}-{name}-ubyte.gz").write_bytes(packed)
