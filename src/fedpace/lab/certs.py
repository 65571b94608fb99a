"""Certificates: one authority, which signs the server and every device by name."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fedpace.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

AUTHORITY, SERVER = "ca", "server"
DAYS = 825
# Clocks of small devices may lag behind.
BACKDATED = datetime.timedelta(days=2)


class Signer(NamedTuple):
    """The authority: its certificate and its key."""

    certificate: x509.Certificate
    key: EllipticCurvePrivateKey


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
    for name in devices:
        _check(name)
    _made(folder)
    signer = _authority(folder, days)
    signed = []
    for name in (SERVER, *devices):
        if (folder / f"{name}.pem").exists() and (folder / f"{name}-key.pem").exists():
            continue
        _sign(folder, name, signer, days, hosts if name == SERVER else ())
        signed.append(name)
    return signed


def _check(name: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", name) or name in (AUTHORITY, SERVER):
        raise InputError(
            f"--devices must be names of letters, digits, '-', '_' and '.', other than "
            f"{AUTHORITY} and {SERVER}, got '{name}'; write device-00"
        )


def _authority(folder: Path, days: int) -> Signer:
    """Read the authority, or make it."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    certificate, key = folder / f"{AUTHORITY}.pem", folder / f"{AUTHORITY}-key.pem"
    if not certificate.exists():
        return _new_authority(folder, days)
    try:
        private = load_pem_private_key(key.read_bytes(), None)
        signer = x509.load_pem_x509_certificate(certificate.read_bytes())
    except (OSError, ValueError, TypeError) as error:
        raise InputError(
            f"{key}: cannot be read as the authority's key: {error}; choose another --out"
        ) from None
    if not isinstance(private, EllipticCurvePrivateKey):
        raise InputError(f"{key}: must be a key of fedpace, got another kind; choose another --out")
    return Signer(signer, private)


def _new_authority(folder: Path, days: int) -> Signer:
    from cryptography import x509

    key = _new_key()
    name = _named(f"fedpace authority {os.urandom(4).hex()}")
    builder = _builder(name, name, key, days).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    builder = builder.add_extension(_usage(signs=True), critical=True)
    signer = Signer(_signed(builder, key), key)
    _write(folder, AUTHORITY, signer.certificate, key)
    return signer


def _sign(folder: Path, name: str, signer: Signer, days: int, hosts: Sequence[str]) -> None:
    """Write a certificate of one name; with hosts it is a server's."""
    from cryptography import x509
    from cryptography.x509.oid import ExtendedKeyUsageOID as Use

    key = _new_key()
    use = Use.SERVER_AUTH if hosts else Use.CLIENT_AUTH
    extensions: list[tuple[x509.ExtensionType, bool]] = [
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_usage(signs=False), True),
        (x509.ExtendedKeyUsage([use]), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.key.public_key()), False),
    ]
    if hosts:
        extensions.append((x509.SubjectAlternativeName([_host(each) for each in hosts]), False))
    builder = _builder(_named(name), signer.certificate.subject, key, days)
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical)
    _write(folder, name, _signed(builder, signer.key), key)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    from cryptography import x509

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


def _signed(builder: x509.CertificateBuilder, key: EllipticCurvePrivateKey) -> x509.Certificate:
    from cryptography.hazmat.primitives.hashes import SHA256

    return builder.sign(key, SHA256())


def _usage(*, signs: bool) -> x509.KeyUsage:
    from cryptography import x509

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


def _new_key() -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _named(name: str) -> x509.Name:
    from cryptography import x509

    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


def _host(text: str) -> x509.GeneralName:
    from cryptography import x509

    with contextlib.suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(text))
    return x509.DNSName(text)


def _write(
    folder: Path, name: str, certificate: x509.Certificate, key: EllipticCurvePrivateKey
) -> None:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    _write_file(folder / f"{name}-key.pem", private, 0o600)
    _write_file(folder / f"{name}.pem", certificate.public_bytes(Encoding.PEM), 0o644)


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
