"""Keys and certificates of a development trust root, as objects and PEM bytes; no files here.

Only `certificates` calls this module, and imports it on first use, because it needs the `certs`
extra. Invariant: whatever is signed here passes the strict checks of RFC 5280 that OpenSSL makes
under `ssl.VERIFY_X509_STRICT`: constraints, key usage and key identifiers are always present.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

if TYPE_CHECKING:
    from collections.abc import Sequence
    from ipaddress import IPv4Address, IPv6Address

PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey

# A peer whose clock is a little behind must accept a certificate made a moment ago.
CLOCK_SKEW = timedelta(hours=1)
COMMON_NAME_CHARACTERS_MAX = 64  # ub-common-name, RFC 5280 appendix A.1


class Identity(NamedTuple):
    """A certificate and the private key that belongs to it."""

    certificate: x509.Certificate
    key: PrivateKey

    def certificate_pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)

    def key_pem(self) -> bytes:
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def make_root(name: str, *, days: int, now: datetime) -> Identity:
    """Make a self-signed root that may sign node certificates but no further authorities."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _subject(name)
    builder = _builder(subject, key, now, now + timedelta(days=days)).issuer_name(subject)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_key_usage(signs_certificates=True), critical=True)
    return Identity(builder.sign(key, hashes.SHA256()), key)


def make_node(
    root: Identity, names: Sequence[x509.GeneralName], *, node: str, days: int, now: datetime
) -> Identity:
    """Make a certificate for both ends of a connection; it never outlives its root."""
    key = ec.generate_private_key(ec.SECP256R1())
    expires = min(now + timedelta(days=days), root.certificate.not_valid_after_utc)
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    builder = _builder(_subject(node), key, now, expires).issuer_name(root.certificate.subject)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
    builder = builder.add_extension(_key_usage(signs_certificates=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    builder = builder.add_extension(_authority_key(root.certificate), critical=False)
    return Identity(builder.sign(root.key, hashes.SHA256()), key)


def dns_name(name: str) -> x509.GeneralName:
    """Return the alternative name for a node or host name, which must be ASCII."""
    return x509.DNSName(name)


def ip_name(address: IPv4Address | IPv6Address) -> x509.GeneralName:
    """Return the alternative name for an address."""
    return x509.IPAddress(address)


def read_certificate(pem: bytes) -> x509.Certificate:
    """Read the first certificate of a PEM file; raise ValueError if there is none."""
    return x509.load_pem_x509_certificate(pem)


def read_key(pem: bytes) -> PrivateKey:
    """Read an unencrypted EC or RSA private key; raise ValueError if it is anything else."""
    try:
        key = load_pem_private_key(pem, password=None)
    except TypeError as error:
        raise ValueError("the key is encrypted") from error
    except UnsupportedAlgorithm as error:
        raise ValueError("the key is of an unsupported kind") from error
    if not isinstance(key, PrivateKey):
        raise ValueError("the key is neither EC nor RSA")
    return key


def belongs(certificate: x509.Certificate, key: PrivateKey) -> bool:
    """Say whether `key` is the private key of `certificate`."""
    return certificate.public_key() == key.public_key()


def is_authority(certificate: x509.Certificate) -> bool:
    """Say whether `certificate` may sign others."""
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def is_signed_by(certificate: x509.Certificate, root: x509.Certificate) -> bool:
    """Say whether `root` is the direct issuer of `certificate`."""
    try:
        certificate.verify_directly_issued_by(root)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def subject_of(certificate: x509.Certificate) -> str:
    """Return the subject in the form people know: ``CN=n1,O=Postroad``."""
    return certificate.subject.rfc4514_string()


def names_of(certificate: x509.Certificate) -> tuple[str, ...]:
    """Return the alternative names in their order; an unusual kind shows as its type."""
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return ()
    return tuple(dict.fromkeys(_text(name) for name in extension.value))


def expiry_of(certificate: x509.Certificate) -> datetime:
    """Return the last moment at which `certificate` is valid."""
    return certificate.not_valid_after_utc


def fingerprint_of(certificate: x509.Certificate) -> str:
    """Return the SHA-256 fingerprint as lower-case hexadecimal digits."""
    return certificate.fingerprint(hashes.SHA256()).hex()


def _text(name: x509.GeneralName) -> str:
    if isinstance(name, x509.DNSName | x509.IPAddress):
        return str(name.value)
    return type(name).__name__


def _subject(name: str) -> x509.Name:
    """A longer name is left to the alternative names, which are what peers verify."""
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Postroad")]
    if len(name) <= COMMON_NAME_CHARACTERS_MAX:
        attributes.append(x509.NameAttribute(NameOID.COMMON_NAME, name))
    return x509.Name(attributes)


def _builder(
    subject: x509.Name, key: PrivateKey, now: datetime, expires: datetime
) -> x509.CertificateBuilder:
    public_key = key.public_key()
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_whole_seconds(now - CLOCK_SKEW))
        .not_valid_after(_whole_seconds(expires))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


def _whole_seconds(moment: datetime) -> datetime:
    return moment.astimezone(UTC).replace(microsecond=0)


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _authority_key(root: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    """Copy the root's own identifier: a root made by another tool may not hash its key."""
    try:
        own = root.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    except x509.ExtensionNotFound:
        own = x509.SubjectKeyIdentifier.from_public_key(root.public_key())
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own)
