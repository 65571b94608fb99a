"""Find the files of a dataset, and download them on request."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from fedpace.errors import InputError, nearest, needs
from fedpace.files import make_folder

VARIABLE = "FEDPACE_DATA"
CHUNK = 2**16
# Larger than any of the files: a download that never ends does not fill the disk.
MOST_BYTES = 2**30

# Called with a file's name, the bytes downloaded so far, and their total where it is known.
DownloadProgress = Callable[[str, int, int | None], None]


class Dataset(NamedTuple):
    """The official address of a dataset, and the checksums of its files."""

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
    "cifar10": Dataset(
        "https://www.cs.toronto.edu/~kriz/",
        {"cifar-10-binary.tar.gz": "md5:c32a1d4ab5d03f1284b67883e8d87530"},
    ),
    "shakespeare": Dataset(
        "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/",
        {"input.txt": "sha256:86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"},
    ),
}


def folders(name: str) -> list[Path]:
    """Return the directories that are searched for a dataset, in this order."""
    given = os.environ.get(VARIABLE)
    cached = _cache() / name
    if not given:
        return [cached]
    if not os.path.isdir(given):
        raise InputError(f"{VARIABLE} must be a directory, got '{given}'; create it or unset it")
    return [Path(given, name), Path(given), cached]


def find_file(name: str, file: str) -> Path | None:
    """Return the path of a dataset's file, compressed or not, or None."""
    names = (file, file.removesuffix(".gz"))
    paths = (place / each for place in folders(name) for each in names)
    return next(filter(os.path.isfile, paths), None)  # False where we have no permission


def missing_files(name: str, files: str) -> InputError:
    """Return the error that names the missing files, their folders and the download command."""
    looked = " or ".join(str(place) for place in folders(name))
    return InputError(
        f"{files} must be in {looked}, got nothing there; "
        f"put them there, or run: fedpace data fetch {name}"
    )


def fetch(
    name: str,
    *,
    progress: DownloadProgress | None = None,
    address: str | None = None,
    timeout: float = 30,
) -> list[Path]:
    """Download the files of a dataset, and return their paths.

    A file with the right checksum is kept. An interrupted download continues where it stopped.

    Parameters
    ----------
    name : str
        One of `DATASETS`.
    progress : function of (file name, bytes so far, total bytes or None), optional
        Called after every block.
    address : str, optional
        Folder of a mirror; by default the official address.
    timeout : float
        Seconds to wait for the server to answer.
    """
    if name not in DATASETS:
        raise InputError(f"dataset must be a known name, got '{name}'; {nearest(name, DATASETS)}")
    with needs("downloads need pooch", "sim"):
        import pooch
    pooch.get_logger().setLevel(logging.WARNING)
    given = os.environ.get(VARIABLE)
    folder = make_folder((Path(given) if given else _cache()) / name, "--data")
    found = []
    for file, checksum in DATASETS[name].checksums.items():
        path = find_file(name, file)
        if path is None or not pooch.hashes.hash_matches(str(path), checksum):
            path = folder / file
            url = f"{(address or DATASETS[name].address).rstrip('/')}/{file}"
            download = _Download(url, path, checksum, progress or (lambda *_: None), timeout)
            with download.errors():
                pooch.retrieve(url, checksum, file, folder, downloader=download)
        found.append(path)
    return found


class _RestartError(Exception):
    """The server cannot continue a download where it stopped."""


class _Download:
    """Downloader and progress bar for pooch; continues FILE.part, which pooch checks and moves."""

    total = 0  # bytes of the response

    def __init__(
        self, url: str, path: Path, checksum: str, progress: DownloadProgress, timeout: float
    ) -> None:
        self.url, self.path, self.checksum = url, path, checksum
        self.part = path.with_name(f"{path.name}.part")
        self._progress, self._timeout = progress, timeout

    def __call__(self, _: str, output_file: str, *_pooch: object) -> None:
        from pooch.hashes import hash_matches

        # A process that was killed after the last byte leaves a complete part.
        if not (self.part.exists() and hash_matches(str(self.part), self.checksum)):
            try:
                self._append()
            except _RestartError:
                self.part.unlink()
                self._append()
        self.part.replace(output_file)

    def _append(self) -> None:
        from pooch import HTTPDownloader

        with self.part.open("ab") as self._file:
            self._start = self._file.tell()
            # Not compressed on the way: the checksum is that of the file itself.
            headers = {"User-Agent": "fedpace", "Accept-Encoding": "identity"}
            headers |= {"Range": f"bytes={self._start}-"} if self._start else {}
            options = {"headers": headers, "timeout": self._timeout}
            hooks = {"response": self._begin}
            download = HTTPDownloader(self, CHUNK, hooks=hooks, **options)
            download(self.url, self._file, None)

    def _begin(self, response: Any, **_: object) -> None:
        """Check that the response begins where the file ends; else empty the file, or raise."""
        status, place = response.status_code, response.headers.get("Content-Range", "")
        wrong = status == 206 and not place.startswith(f"bytes {self._start}-")
        if wrong or (status == 416 and self._start):
            response.close()
            raise _RestartError
        if status == 200:
            self._start = self._file.seek(self._file.truncate(0))
        self.total = int(response.headers.get("Content-Length", 0))
        self.update()

    def update(self, _: int = 0) -> None:
        done = self._file.tell()
        self._progress(self.path.name, done, self._start + self.total if self.total else None)
        if done > MOST_BYTES:
            self._file.truncate(0)
            raise InputError(f"{self.url}: must end, got {done:,} bytes; give another address")

    def reset(self) -> None:
        pass

    close = reset

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Report in one line what went wrong: the network, the checksum or the disk."""
        from requests import RequestException

        path, part = self.path, self.part
        try:
            yield
        except RequestException as error:
            kept = f"try again, or put {path.name} into {path.parent} yourself"
            if part.is_file() and part.stat().st_size:
                kept = f"the partial file {part} is kept, and the same command continues it"
            problem = f"{self.url}: cannot be fetched: {_reason(error, part)}"
            raise InputError(f"{problem}; {kept}") from None
        except OSError as error:
            problem = f"{error.filename}: cannot be written: {error.strerror}"
            raise InputError(f"{problem}; free some space") from None
        except InputError:
            raise
        except ValueError:  # from pooch
            raise InputError(
                f"{self.url}: must have the checksum {self.checksum}, got another; the download "
                f"was removed: try again, or get {path.name} elsewhere and put it into "
                f"{path.parent}"
            ) from None
        finally:
            if part.is_file() and not part.stat().st_size:
                part.unlink()


def _reason(error: Any, part: Path) -> str:
    """Return the cause of a network error, without the names of classes around it."""
    if "Timeout" in type(error).__name__:
        return "timed out"
    if type(error).__name__ == "ChunkedEncodingError":
        return f"the connection was cut after {part.stat().st_size:,} bytes"
    if error.response is not None:
        return str(error.response.reason)
    inner = getattr(error.args[0] if error.args else None, "reason", None)
    return str(error) if inner is None else str(inner).rpartition(": ")[2]


def _cache() -> Path:
    with needs("datasets need platformdirs", "sim"):
        from platformdirs import user_cache_path
    return user_cache_path("fedpace", appauthor=False)
