"""Atomic writes and lock files."""

import contextlib
import io
import lzma
import os
import struct
import sys
import tempfile
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fedpace.errors import InputError, InUseError

# What reading a damaged run file may raise.
UNREADABLE = (
    OSError, ValueError, LookupError, TypeError, AttributeError, EOFError, RuntimeError,
    SyntaxError, ArithmeticError, AssertionError, MemoryError, tokenize.TokenError,
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error,
)  # fmt: skip


# A packed file may unpack to this many bytes, or to this many times its size.
MOST_UNPACKED, MOST_TIMES = 2**28, 20


def writable(path: Path) -> Path:
    """Return `path`, or raise InputError if it cannot be written."""
    try:
        is_folder = path.is_dir()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; give a shorter name") from None
    if is_folder:
        raise InputError(f"{path}: is a directory; give the name of a file")
    if path.exists() and not path.is_file():  # a device or a pipe would be replaced
        raise InputError(f"{path}: is not an ordinary file; give the name of one")
    if not path.parent.is_dir():
        raise InputError(f"{path}: there is no directory {path.parent}; create it first")
    if not os.access(path.parent, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise InputError(f"{path}: cannot be written; check its permissions")
    return path


def make_folder(folder: Path, option: str, *, mode: int = 0o777) -> Path:
    """Create a folder if necessary and return it; an error names the option to change."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=mode)
    except OSError as error:
        problem = f"cannot be made a directory: {error.strerror}"
        raise InputError(f"{folder}: {problem}; choose another {option}") from None
    return folder


def load_arrays(contents: bytes) -> dict[str, Any]:
    """Return the arrays of a .npz file; ValueError if they are far larger than the file."""
    with zipfile.ZipFile(io.BytesIO(contents)) as file:
        size = sum(each.file_size for each in file.infolist())
    if size > max(MOST_UNPACKED, MOST_TIMES * len(contents)):
        raise ValueError(f"it unpacks to {size:,} bytes")
    import numpy as np  # not where only folders are needed

    # From memory: np.load would leave the handle of a damaged file open.
    with np.load(io.BytesIO(contents), allow_pickle=False) as arrays:
        return dict(arrays)


def write_whole(path: Path, write: Callable[[Path], object], *, follow: bool = True) -> None:
    """Let `write` fill a temporary file beside `path`, and move it there.

    A link at `path` stays, and its target is replaced; unless `follow`, the link is replaced.
    """
    writable(path)
    target = path.resolve() if follow else path
    try:
        # The suffix stays: some writers choose the format by it.
        handle, name = tempfile.mkstemp(prefix=".fedpace-", suffix=target.suffix, dir=target.parent)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}; choose another") from error
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(target)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}; free some space") from error
    finally:
        temporary.unlink(missing_ok=True)


def csv_cell(value: object) -> object:
    """Return a value for a CSV file that no spreadsheet reads as a formula.

    >>> csv_cell("=1+1"), csv_cell("uniform"), csv_cell(-3)
    ("'=1+1", 'uniform', -3)
    """
    formula = isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r"))
    return f"'{value}" if formula else value


def write_text(path: Path, text: str, *, follow: bool = True) -> None:
    """Write a text file atomically; for `follow` see `write_whole`."""
    write_whole(path, lambda part: part.write_text(text, encoding="utf-8"), follow=follow)


def write_through(path: Path, *contents: bytes, temporary: Path | None = None) -> None:
    """Replace a file atomically, and return when it is on the disk and survives a power loss.

    The contents are written one after the other. The temporary file has a fixed name by default,
    so that killed processes leave at most one.
    """
    temporary = path.with_name(f".{path.name}.part") if temporary is None else temporary
    try:
        temporary.unlink(missing_ok=True)  # a link would be followed
        with temporary.open("xb") as file:
            file.writelines(contents)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        if os.name != "nt":  # Windows cannot open folders
            _flush(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        remedy = "make room, or choose another place, and give the same command again"
        raise InputError(f"{path}: cannot be written: {error.strerror}; {remedy}") from error


def _flush(folder: Path) -> None:
    """Make a move within the folder survive a power loss."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock a folder; other processes that do the same wait."""
    import fcntl  # Windows has none

    with (folder / ".lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def hold_lock(path: Path, what: str) -> Iterator[None]:
    """Hold the lock file `path` of `what`; raises InUseError if another process holds it.

    The operating system frees it when its process ends.
    """
    try:
        import fcntl
    except ImportError:  # Windows has none
        yield
        return
    while True:
        try:
            # Not through a link, whose target would be emptied.
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o666)
        except OSError as error:
            problem = "is a link" if path.is_symlink() else f"cannot be written: {error.strerror}"
            raise InputError(f"{path}: {problem}; remove it, or choose another place") from None
        file = open(handle, "a+", encoding="utf-8")  # noqa: SIM115 - closed below, on every way
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            with file:
                file.seek(0)
                holder = " ".join(file.read(200).split()) or "another process"
            raise InUseError(
                f"{what} must not be in use, got one that {holder!r} holds; wait until it has "
                "ended, or choose another"
            ) from None
        if _is(file.fileno(), path):
            break
        file.close()  # the holder has removed it since
    with file:
        file.truncate(0)
        file.write(f"process {os.getpid()}: {' '.join(sys.argv)[:100]}\n")
        file.flush()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _is(handle: int, path: Path) -> bool:
    """Return whether an open file is still the one at a path."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False
