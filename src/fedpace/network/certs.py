"""Certificates: one authority, which signs the server and every device by name."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedpace.errors import InputError, MissingExtraError
from fedpace.files import held, made_folder

if TYPE_CHECKING:
    from fedpace.network.authority import Signed

AUTHORITY, SERVER = "ca", "server"
# Ends the name of a file with a key; a device so named would be another's key.
KEY = "-key"
# What the first line of each kind of file says.
KINDS = {"": b"CERTIFICATE", KEY: b"PRIVATE KEY"}
DAYS = 825


def make_certificates(
    folder: Path, devices: Sequence[str], hosts: Sequence[str], *, days: int = DAYS
) -> dict[str, str]:
    """Write NAME.pem and NAME-key.pem for the server and each device, signed by one authority.

    An authority in the folder (ca.pem, ca-key.pem) is used again, and certificates that are there
    are left alone, so that devices can be added later. Made anew are those that expire within 30
    days, the server's if a host is new, and what cannot be used. An authority that expires within
    30 days keeps its name and its key, so that what it has signed stays valid. Keys are readable
    for this user only.

    Parameters
    ----------
    folder, days : Path, int
        Where the files go, and how long certificates are valid.
    devices : names
        A device's name is the common name of its certificate.
    hosts : names or addresses
        What devices call the server by; its certificate also holds for those that it held before.

    Returns
    -------
    dict of str to str
        The names that were signed now, with the reason; empty where there was none before.
    """
    _need_cryptography()
    from fedpace.network.authority import hosts_of, new_certificate

    for name in devices:
        _check(name)
    made_folder(folder, "--out")
    signed: dict[str, str] = {}
    with held(folder / ".lock", f"{folder} of --out"):
        authority = _authority(folder, days, signed)
        for name in (SERVER, *devices):
            wanted = list(hosts) if name == SERVER else []
            reason = _objection(folder, name, authority, hosts=wanted, days=days)
            if reason is None:
                continue
            if reason and wanted:
                wanted = list(dict.fromkeys([*wanted, *hosts_of(_bytes(folder, name)[0])]))
            _write(folder, name, new_certificate(name, wanted, authority, days))
            signed[name] = reason
    return signed


def _check(name: str) -> None:
    fine = re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", name)
    low = name.lower()  # some disks do not tell CA from ca
    if not fine or low in (AUTHORITY, SERVER) or low.endswith(KEY):
        raise InputError(
            f"--devices must be names of letters, digits, '-', '_' and '.', other than "
            f"{AUTHORITY} and {SERVER} and not ending in {KEY}, got {name!r}; write device-00"
        )


def _authority(folder: Path, days: int, signed: dict[str, str]) -> Signed:
    """Read the authority, or make it; note in `signed` if it is made anew."""
    from fedpace.network.authority import expiry, new_authority, read_authority, renewed_authority

    if not (folder / f"{AUTHORITY}.pem").exists():
        if (key := folder / f"{AUTHORITY}{KEY}.pem").exists():
            raise InputError(
                f"{key}: is the key of an authority whose {AUTHORITY}.pem is missing, and is not "
                f"overwritten; bring {AUTHORITY}.pem back, or choose another --out"
            )
        made = new_authority(days)
        _write(folder, AUTHORITY, made)
        return made
    try:
        found = read_authority(*_bytes(folder, AUTHORITY))
    except (OSError, ValueError, TypeError) as error:
        key = folder / f"{AUTHORITY}{KEY}.pem"
        raise InputError(
            f"{key}: cannot be read as the authority's key: {error}; choose another --out"
        ) from None
    if reason := expiry(found.certificate, days):
        found = renewed_authority(found, days)
        _write(folder, AUTHORITY, found)
        signed[AUTHORITY] = reason
    return found


def _objection(
    folder: Path, name: str, authority: Signed, *, hosts: Sequence[str], days: int
) -> str | None:
    """Return why a certificate must be made: None, it need not; empty, there is none."""
    from fedpace.network.authority import objection

    try:
        certificate, key = _bytes(folder, name)
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise InputError(
            f"{folder}: the certificate of '{name}' cannot be read: {error.strerror}; choose "
            "another --out"
        ) from None
    return objection(name, certificate, key, authority, hosts=hosts, days=days) or None


def _bytes(folder: Path, name: str) -> tuple[bytes, bytes]:
    return (folder / f"{name}.pem").read_bytes(), (folder / f"{name}{KEY}.pem").read_bytes()


def _write(folder: Path, name: str, signed: Signed) -> None:
    certificate, key = signed.pem()
    for end in KINDS:  # before either is written
        _check_kind(folder / f"{name}{end}.pem", end)
    _write_file(folder / f"{name}{KEY}.pem", key, 0o600)
    _write_file(folder / f"{name}.pem", certificate, 0o644)


def _check_kind(path: Path, end: str) -> None:
    """Refuse to put a certificate in the place of a key, or a key in that of a certificate."""
    try:
        first = path.read_bytes().partition(b"\n")[0]
    except OSError:  # none, or one that writing will say more of
        return
    if any(kind in first for other, kind in KINDS.items() if other != end):
        raise InputError(
            f"{path}: holds a {'certificate' if end else 'key'}, which is not overwritten by "
            f"a {'key' if end else 'certificate'}; move it, or choose another --out"
        )


def _write_file(path: Path, contents: bytes, mode: int) -> None:
    """Replace a file whole: a key that others depend on must not be lost half-way."""
    part = path.with_name(f".{path.name}.part")
    try:
        part.unlink(missing_ok=True)
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(contents)
        part.replace(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}; choose another") from None


def _need_cryptography() -> None:
    try:
        import cryptography  # noqa: F401
    except ImportError:
        raise MissingExtraError(
            "certificates need the package cryptography; install it with: "
            "pip install 'fedpace[lab]'"
        ) from None
