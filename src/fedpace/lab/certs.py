"""Certificates: one authority, which signs the server and every device by name."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedpace.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    from fedpace.lab.authority import Signed

AUTHORITY, SERVER = "ca", "server"
DAYS = 825


def make_certificates(
    folder: Path, devices: Sequence[str], hosts: Sequence[str], *, days: int = DAYS
) -> list[str]:
    """Write NAME.pem and NAME-key.pem for the server and each device, signed by one authority.

    An authority in the folder (ca.pem, ca-key.pem) is used again, and certificates that are there
    are left alone, so that devices can be added later. Keys are readable for this user only.

    Parameters
    ----------
    folder : Path
        Where the files go.
    devices : names
        A device's name is the common name of its certificate.
    hosts : names or addresses
        What devices call the server by; its certificate holds for these.
    days : int
        How long certificates are valid.

    Returns
    -------
    list of str
        The names that were signed now.
    """
    _need_cryptography()
    from fedpace.lab.authority import new_certificate

    for name in devices:
        _check(name)
    _made(folder)
    authority = _authority(folder, days)
    signed = []
    for name in (SERVER, *devices):
        if (folder / f"{name}.pem").exists() and (folder / f"{name}-key.pem").exists():
            continue
        allowed = hosts if name == SERVER else ()
        _write(folder, name, new_certificate(name, allowed, authority, days))
        signed.append(name)
    return signed


def _check(name: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", name) or name in (AUTHORITY, SERVER):
        raise InputError(
            f"--devices must be names of letters, digits, '-', '_' and '.', other than "
            f"{AUTHORITY} and {SERVER}, got '{name}'; write device-00"
        )


def _authority(folder: Path, days: int) -> Signed:
    """Read the authority, or make it."""
    from fedpace.lab.authority import new_authority, read_authority

    certificate, key = folder / f"{AUTHORITY}.pem", folder / f"{AUTHORITY}-key.pem"
    if not certificate.exists():
        made = new_authority(days)
        _write(folder, AUTHORITY, made)
        return made
    try:
        return read_authority(certificate.read_bytes(), key.read_bytes())
    except (OSError, ValueError, TypeError) as error:
        raise InputError(
            f"{key}: cannot be read as the authority's key: {error}; choose another --out"
        ) from None


def _write(folder: Path, name: str, signed: Signed) -> None:
    certificate, key = signed.pem()
    _write_file(folder / f"{name}-key.pem", key, 0o600)
    _write_file(folder / f"{name}.pem", certificate, 0o644)


def _write_file(path: Path, contents: bytes, mode: int) -> None:
    try:
        path.unlink(missing_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(contents)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}; choose another") from None


def _made(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"{folder}: cannot be made a directory: {error.strerror}; choose another --out"
        ) from None


def _need_cryptography() -> None:
    try:
        import cryptography  # noqa: F401
    except ImportError:
        raise MissingExtraError(
            "certificates need the package cryptography; install it with: "
            "pip install 'fedpace[lab]'"
        ) from None
