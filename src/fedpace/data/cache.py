"""Find the files of a dataset, and fetch them when asked to."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from fedpace.data.download import Progress, disk_errors, download, matches
from fedpace.errors import InputError, nearest, needs

VARIABLE = "FEDPACE_DATA"


class Dataset(NamedTuple):
    """Where a dataset comes from: its official address, and its files with their checksums."""

    address: str
    checksums: Mapping[str, str]


DATASETS = {
    "mnist": Dataset(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        {
            "train-images-idx3-ubyte.gz": "sha256:"
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "train-labels-idx1-ubyte.gz": "sha256:"
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "t10k-images-idx3-ubyte.gz": "sha256:"
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "t10k-labels-idx1-ubyte.gz": "sha256:"
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        },
    ),
    # The publisher gives an MD5 only.
    "emnist": Dataset(
        "https://www.itl.nist.gov/iaui/vip/cs_links/EMNIST/",
        {"gzip.zip": "md5:58c8d27c78d21e728a6bc7b3cc06412e"},
    ),
}


def look_in(folder: Path | None) -> None:
    """Let this process, and those it starts, look for datasets in a folder first."""
    if folder is None:
        return
    if not folder.is_dir():
        raise InputError(f"--data must be a directory, got '{folder}'; give the one with the files")
    os.environ[VARIABLE] = str(folder)


def places(name: str) -> list[Path]:
    """Return the directories where a dataset's files may be, in the order they are looked at."""
    given = os.environ.get(VARIABLE)
    cached = _cache() / name
    if not given:
        return [cached]
    if not os.path.isdir(given):
        raise InputError(f"{VARIABLE} must be a directory, got '{given}'; create it or unset it")
    return [Path(given, name), Path(given), cached]


def find_file(name: str, file: str) -> Path | None:
    """Return where a dataset's file is, compressed or not, or None."""
    names = (file, file.removesuffix(".gz"))
    paths = (place / each for place in places(name) for each in names)
    return next(filter(os.path.isfile, paths), None)  # where we may not look, there is none


def missing(name: str, files: str) -> InputError:
    """Return the error that says which files to put where, and how to have that done."""
    looked = " or ".join(str(place) for place in places(name))
    return InputError(
        f"{files} must be in {looked}, got nothing there; "
        f"put them there, or run: fedpace data fetch {name}"
    )


def fetch(
    name: str, *, progress: Progress | None = None, address: str | None = None, timeout: float = 30
) -> list[Path]:
    """Fetch a dataset's files into the first of its places, and return where they are.

    A file with the right checksum is left alone; an interrupted one is continued. `address` is a
    mirror's folder; without an answer for `timeout` seconds, give up.
    """
    if name not in DATASETS:
        raise InputError(f"dataset must be a known name, got '{name}'; {nearest(name, DATASETS)}")
    dataset = DATASETS[name]
    given = os.environ.get(VARIABLE)
    folder = (Path(given) if given else _cache()) / name
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    found = []
    for file, checksum in dataset.checksums.items():
        path = find_file(name, file)
        if path is None or not matches(path, checksum):
            path = folder / file
            url = f"{(address or dataset.address).rstrip('/')}/{file}"
            download(url, path, checksum, progress or (lambda *_: None), timeout)
        found.append(path)
    return found


def _cache() -> Path:
    with needs("datasets need platformdirs", "sim"):
        from platformdirs import user_cache_path
    return user_cache_path("fedpace", appauthor=False)
