"""Write a file whole or not at all."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from fedpace.errors import InputError


def writable(path: Path) -> Path:
    """Return `path`, or say why nothing can be written there before any work is done."""
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


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file beside `path`, and move it there when it is complete."""
    writable(path)
    target = path.resolve()  # a link stays a link
    try:
        # The suffix stays: it tells Matplotlib the format.
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


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all."""
    write_whole(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
