"""An authority that signs certificates: X.509, elliptic curves."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import os
from collections.abc import Sequence
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

# Clocks of small devices may lag behind.
BACKDATED = datetime.timedelta(days=2)
# What expires within this many days is made anew: there must be time to bring it to all devices.
# Where even new ones are short-lived, it is half of their life.
SOON = 30


class Signed(NamedTuple):
    """A certificate and the key that belongs to it."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    def pem(self) -> tuple[bytes, bytes]:
        """Return certificate and key as the bytes of files."""
        key = self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return self.certificate.public_bytes(Encoding.PEM), key


def read_authority(certificate: bytes, key: bytes) -> Signed:
    """Read an authority back from the bytes of its files; ValueError where they are none."""
    private = load_pem_private_key(key, None)
    if not isinstance(private, ec.EllipticCurvePrivateKey):
        raise ValueError("it is of another kind")
    return Signed(x509.load_pem_x509_certificate(certificate), private)


def new_authority(days: int) -> Signed:
    """Make an authority; its name is random, so that two are never taken for each other."""
    key = ec.generate_private_key(ec.SECP256R1())
    return _authority(_named(f"fedpace authority {os.urandom(4).hex()}"), key, days)


def renewed_authority(authority: Signed, days: int) -> Signed:
    """Return the same authority, valid for longer: whoever trusts the one trusts the other."""
    return _authority(authority.certificate.subject, authority.key, days)


def objection(
    name: str,
    certificate: bytes,
    key: bytes,
    authority: Signed,
    *,
    hosts: Sequence[str],
    days: int,
) -> str:
    """Return why a certificate of that name is of no use, or soon will be; empty if it is fine."""
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
    if [each.value for each in found.subject.get_attributes_for_oid(NameOID.COMMON_NAME)] != [name]:
        return "it is for another name"
    known = hosts_of(certificate)
    if missing := [host for host in hosts if str(_host(host).value) not in known]:
        return f"it did not hold for {missing[0]}"
    return expiry(found, days)


def expiry(certificate: x509.Certificate, days: int) -> str:
    """Return when a certificate expires, if that is soon; a new one would last for `days`."""
    end = certificate.not_valid_after_utc
    left = end - datetime.datetime.now(datetime.UTC)
    soon = left < datetime.timedelta(days=min(SOON, days / 2))
    return f"it was valid until {end:%Y-%m-%d} only" if soon else ""


def hosts_of(certificate: bytes) -> list[str]:
    """Return the hosts that a server's certificate holds for; none if it cannot be read."""
    try:
        found = x509.load_pem_x509_certificate(certificate)
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound):
        return []
    return [str(name.value) for name in names]


def _authority(name: x509.Name, key: ec.EllipticCurvePrivateKey, days: int) -> Signed:
    builder = _builder(name, name, key, days)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
    builder = builder.add_extension(_usage(signs=True), True)
    return Signed(builder.sign(key, SHA256()), key)


def new_certificate(name: str, hosts: Sequence[str], authority: Signed, days: int) -> Signed:
    """Make a certificate of one name: with hosts a server's, which holds for these only."""
    key = ec.generate_private_key(ec.SECP256R1())
    use = ExtendedKeyUsageOID.SERVER_AUTH if hosts else ExtendedKeyUsageOID.CLIENT_AUTH
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    builder = _builder(_named(name), authority.certificate.subject, key, days)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
    builder = builder.add_extension(_usage(signs=False), True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([use]), False)
    builder = builder.add_extension(issuer, False)
    if hosts:
        names = x509.SubjectAlternativeName([_host(each) for each in hosts])
        builder = builder.add_extension(names, False)
    return Signed(builder.sign(authority.key, SHA256()), key)


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


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _host(text: str) -> x509.GeneralName:
    with contextlib.suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(text))
    return x509.DNSName(text)
