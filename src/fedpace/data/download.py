"""Fetch one file over an unreliable network."""

from __future__ import annotations

import hashlib
import http.client
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from fedpace.errors import InputError

CHUNK = 2**18
# More than any of the files has: an address that never ends fills no disk.
MOST_BYTES = 2**30

# Called with a file's name, the bytes that are there, and the bytes it will have, where known.
Progress = Callable[[str, int, int | None], None]


def download(url: str, path: Path, checksum: str, progress: Progress, timeout: float) -> None:
    """Download into a file beside `path`, and move it there once it is whole."""
    part = path.with_name(f"{path.name}.part")
    with disk_errors(part):
        if not (part.exists() and matches(part, checksum)):  # stopped after the last byte
            _append(url, part, progress, timeout)
        if not matches(part, checksum):
            part.unlink()
            raise InputError(
                f"{url}: must have the checksum {checksum}, got another; what came was removed: "
                f"try again, or get {path.name} elsewhere and put it into {path.parent}"
            )
        part.replace(path)


def _append(url: str, part: Path, progress: Progress, timeout: float) -> None:
    """Append to a part what it lacks, or write it anew where the server cannot go on."""
    start = part.stat().st_size if part.exists() else 0
    with _network_errors(url, part):
        answer, done = _asked(url, start, timeout)
    with answer:
        length = answer.headers.get("Content-Length", "")
        total = done + int(length) if length.isdecimal() else None
        read = _network_errors(url, part)(answer.read)
        with part.open("ab" if done else "wb", buffering=0) as file:
            progress(part.stem, done, total)
            while block := read(CHUNK):
                file.write(block)
                done += len(block)
                progress(part.stem, done, total)
                if done > MOST_BYTES:
                    part.unlink()
                    raise InputError(f"{url}: must end, got {done:,} bytes; give another address")
    with _network_errors(url, part):
        if total is not None and done < total:
            raise ConnectionError(f"the connection was cut after {done:,} of {total:,} bytes")


def _asked(url: str, start: int, timeout: float) -> tuple[http.client.HTTPResponse, int]:
    """Ask for a file from `start` on, and say where the answer begins: there, or at 0."""
    headers = {"User-Agent": "fedpace"} | ({"Range": f"bytes={start}-"} if start else {})
    try:
        answer: http.client.HTTPResponse = urlopen(Request(url, headers=headers), timeout=timeout)
    except HTTPError as error:
        with error:
            if not start or error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                raise
        return _asked(url, 0, timeout)  # the part is longer than the file
    if answer.status != http.HTTPStatus.PARTIAL_CONTENT:
        return answer, 0
    if start and answer.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
        return answer, start
    answer.close()
    if not start:
        raise ConnectionError("the server sent a part of the file without being asked to")
    return _asked(url, 0, timeout)


@contextmanager
def _network_errors(url: str, part: Path) -> Iterator[None]:
    """Say in one line what went wrong, and that nothing is lost."""
    try:
        yield
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = str(getattr(error, "reason", "") or error) or type(error).__name__
        kept = (
            f"the partial file {part} is kept, and the same command goes on from there"
            if part.exists()
            else f"try again, or put {part.stem} into {part.parent} yourself"
        )
        raise InputError(f"{url}: cannot be fetched: {reason}; {kept}") from None


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Say in one line that a file cannot be written."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}; make room") from None


def matches(path: Path, checksum: str) -> bool:
    """Compare a file with a checksum such as "sha256:440f…"."""
    kind, _, digest = checksum.partition(":")
    with path.open("rb") as file:
        made = hashlib.file_digest(file, lambda: hashlib.new(kind, usedforsecurity=False))
    return made.hexdigest() == digest
