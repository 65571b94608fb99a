"""Certificates: one X.509 authority, which signs the server and every device by name."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedpace.errors import InputError
from fedpace.files import hold_lock, make_folder

AUTHORITY, SERVER = "ca", "server"
# Ends the names of key files; no device's name may end so.
KEY = "-key"
# What the first line of each kind of file contains.
KINDS = {"": b"CERTIFICATE", KEY: b"PRIVATE KEY"}
DAYS = 825
# Clocks of small devices may lag behind.
BACKDATED = datetime.timedelta(days=2)
# Renew certificates that expire within this many days, or within half the life of a new one: it
# takes time to copy them to all devices.
SOON = 30


class Signed(NamedTuple):
    """A certificate and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    def pem(self) -> tuple[bytes, bytes]:
        """Return certificate and key as the bytes of files."""
        key = self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return self.certificate.public_bytes(Encoding.PEM), key


def make_certificates(
    folder: Path, devices: Sequence[str], hosts: Sequence[str], *, days: int = DAYS
) -> dict[str, str]:
    """Write NAME.pem and NAME-key.pem for the server and each device, signed by one authority.

    An authority in the folder (ca.pem, ca-key.pem) is used again, and existing certificates stay,
    so that devices can be added later. Replaced are certificates that expire within 30 days or
    cannot be used, and the server's if a host is new. An authority that expires within 30 days
    keeps its name and key, so that its signatures stay valid. Only this user can read the keys.

    Parameters
    ----------
    folder, days : Path, int
        Where to write, and how long certificates are valid.
    devices : names
        A device's name is the common name of its certificate.
    hosts : names or addresses
        Hosts of the server; its certificate also stays valid for those that it had before.

    Returns
    -------
    dict of str to str
        The names that were signed now, with the reason; an empty reason if there was none before.
    """
    for name in devices:
        _check_name(name)
    make_folder(folder, "--out")
    signed: dict[str, str] = {}
    with hold_lock(folder / ".lock", f"{folder} of --out"):
        authority = _authority(folder, days, signed)
        for name in (SERVER, *devices):
            wanted = list(hosts) if name == SERVER else []
            reason = _reason_to_sign(folder, name, authority, hosts=wanted, days=days)
            if reason is None:
                continue
            if reason and wanted:
                wanted = list(dict.fromkeys([*wanted, *_hosts_of(_bytes(folder, name)[0])]))
            _write(folder, name, create_certificate(name, wanted, authority, days))
            signed[name] = reason
    return signed


def create_authority(days: int) -> Signed:
    """Create an authority; its name is random, so that two are never confused."""
    key = ec.generate_private_key(ec.SECP256R1())
    return _sign_authority(_common_name(f"fedpace authority {os.urandom(4).hex()}"), key, days)


def read_authority(certificate: bytes, key: bytes) -> Signed:
    """Return an authority from the bytes of its files; ValueError if they are not one."""
    private = load_pem_private_key(key, None)
    if not isinstance(private, ec.EllipticCurvePrivateKey):
        raise ValueError("it is of another kind")
    return Signed(x509.load_pem_x509_certificate(certificate), private)


def certified_names(certificate: bytes) -> list[str]:
    """Return all common names of a certificate, from its PEM text; none if it cannot be read."""
    try:
        subject = x509.load_pem_x509_certificate(certificate).subject
        return [str(each.value) for each in subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    except ValueError:
        return []


def create_certificate(name: str, hosts: Sequence[str], authority: Signed, days: int) -> Signed:
    """Create a certificate: of a server with these hosts, or of a device without any."""
    key = ec.generate_private_key(ec.SECP256R1())
    use = ExtendedKeyUsageOID.SERVER_AUTH if hosts else ExtendedKeyUsageOID.CLIENT_AUTH
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    builder = _builder(_common_name(name), authority.certificate.subject, key, days)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
    builder = builder.add_extension(_usage(signs=False), True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([use]), False)
    builder = builder.add_extension(issuer, False)
    if hosts:
        names = x509.SubjectAlternativeName([_host(each) for each in hosts])
        builder = builder.add_extension(names, False)
    return Signed(builder.sign(authority.key, SHA256()), key)


def _check_name(name: str) -> None:
    fine = re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", name)
    low = name.lower()  # some file systems ignore case
    if not fine or low in (AUTHORITY, SERVER) or low.endswith(KEY):
        raise InputError(
            f"--devices must be names of letters, digits, '-', '_' and '.', other than "
            f"{AUTHORITY} and {SERVER} and not ending in {KEY}, got {name!r}; write device-00"
        )


def _authority(folder: Path, days: int, signed: dict[str, str]) -> Signed:
    """Read the authority, or create or renew it; note in `signed` if it is renewed."""
    if not (folder / f"{AUTHORITY}.pem").exists():
        if (key := folder / f"{AUTHORITY}{KEY}.pem").exists():
            raise InputError(
                f"{key}: is the key of an authority whose {AUTHORITY}.pem is missing, and is not "
                f"overwritten; bring {AUTHORITY}.pem back, or choose another --out"
            )
        made = create_authority(days)
        _write(folder, AUTHORITY, made)
        return made
    try:
        found = read_authority(*_bytes(folder, AUTHORITY))
    except (OSError, ValueError, TypeError) as error:
        key = folder / f"{AUTHORITY}{KEY}.pem"
        raise InputError(
            f"{key}: cannot be read as the authority's key: {error}; choose another --out"
        ) from None
    if reason := _expiry(found.certificate, days):
        found = _sign_authority(found.certificate.subject, found.key, days)
        _write(folder, AUTHORITY, found)
        signed[AUTHORITY] = reason
    return found


def _reason_to_sign(
    folder: Path, name: str, authority: Signed, *, hosts: Sequence[str], days: int
) -> str | None:
    """Return why a certificate must be signed: None if it need not, empty if there is none."""
    try:
        certificate, key = _bytes(folder, name)
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise InputError(
            f"{folder}: the certificate of '{name}' cannot be read: {error.strerror}; choose "
            "another --out"
        ) from None
    return _objection(name, certificate, key, authority, hosts=hosts, days=days) or None


def _objection(
    name: str,
    certificate: bytes,
    key: bytes,
    authority: Signed,
    *,
    hosts: Sequence[str],
    days: int,
) -> str:
    try:
        found = x509.load_pem_x509_certificate(certificate)
        private = load_pem_private_key(key, None)
    except (ValueError, TypeError):
        return "it cannot be read"
    if found.public_key() != private.public_key():
        return "its key is another's"
    try:
        found.verify_directly_issued_by(authority.certificate)
    except (ValueError, TypeError, InvalidSignature):
        return "another authority signed it"
    if certified_names(certificate) != [name]:
        return "it is for another name"
    known = _hosts_of(certificate)
    if missing := [host for host in hosts if str(_host(host).value) not in known]:
        return f"it did not hold for {missing[0]}"
    return _expiry(found, days)


def _expiry(certificate: x509.Certificate, days: int) -> str:
    end = certificate.not_valid_after_utc
    left = end - datetime.datetime.now(datetime.UTC)
    soon = left < datetime.timedelta(days=min(SOON, days / 2))
    return f"it was valid until {end:%Y-%m-%d} only" if soon else ""


def _hosts_of(certificate: bytes) -> list[str]:
    """Return the hosts of a server's certificate; none if it cannot be read."""
    try:
        found = x509.load_pem_x509_certificate(certificate)
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound):
        return []
    return [str(name.value) for name in names]


def _sign_authority(name: x509.Name, key: ec.EllipticCurvePrivateKey, days: int) -> Signed:
    builder = _builder(name, name, key, days)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
    builder = builder.add_extension(_usage(signs=True), True)
    return Signed(builder.sign(key, SHA256()), key)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _host(text: str) -> x509.GeneralName:
    with contextlib.suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(text))
    return x509.DNSName(text)


def _bytes(folder: Path, name: str) -> tuple[bytes, bytes]:
    return (folder / f"{name}.pem").read_bytes(), (folder / f"{name}{KEY}.pem").read_bytes()


def _write(folder: Path, name: str, signed: Signed) -> None:
    for end in KINDS:  # before either is written
        _check_kind(folder / f"{name}{end}.pem", end)
    certificate, key = signed.pem()
    _write_file(folder / f"{name}{KEY}.pem", key, 0o600)
    _write_file(folder / f"{name}.pem", certificate, 0o644)


def _check_kind(path: Path, end: str) -> None:
    """Refuse to replace a key by a certificate, or a certificate by a key."""
    try:
        first = path.read_bytes().partition(b"\n")[0]
    except OSError:  # none, or writing will report the reason
        return
    if any(kind in first for other, kind in KINDS.items() if other != end):
        raise InputError(
            f"{path}: holds a {'certificate' if end else 'key'}, which is not overwritten by "
            f"a {'key' if end else 'certificate'}; move it, or choose another --out"
        )


def _write_file(path: Path, contents: bytes, mode: int) -> None:
    """Replace a file atomically, so that no key is lost half-way."""
    part = path.with_name(f".{path.name}.part")
    try:
        part.unlink(missing_ok=True)
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(contents)
        part.replace(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}; choose another") from None
