"""What a certificate says, read back with the same library, and roots made by other tools."""

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from postroad.admin import signing

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def root() -> signing.Identity:
    return signing.make_root("Test root", days=10, now=NOW)


def make_node(root: signing.Identity, node: str = "n1") -> x509.Certificate:
    names = [signing.dns_name(node)]
    return signing.make_node(root, names, node=node, days=3, now=NOW).certificate


def foreign_root() -> signing.Identity:
    """An RSA root without key identifiers, as old tools make them."""
    key = rsa.generate_private_key(65537, 2048)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Foreign")])
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), 1)
        .not_valid_before(NOW)
        .not_valid_after(NOW + timedelta(days=9))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    return signing.Identity(certificate, key)


def test_root_signs_nodes_which_are_client_and_server(root: signing.Identity) -> None:
    extensions = root.certificate.extensions
    constraints = extensions.get_extension_for_class(x509.BasicConstraints)
    usage = extensions.get_extension_for_class(x509.KeyUsage)
    assert constraints.critical
    assert constraints.value == x509.BasicConstraints(ca=True, path_length=0)
    assert usage.critical
    assert usage.value.key_cert_sign
    assert not usage.value.digital_signature
    assert signing.is_authority(root.certificate)
    assert signing.is_signed_by(root.certificate, root.certificate)
    node = make_node(root)
    own_usage = node.extensions.get_extension_for_class(x509.KeyUsage).value
    purposes = node.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert own_usage.digital_signature
    assert not own_usage.key_cert_sign
    assert set(purposes) == {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}
    assert not signing.is_authority(node)
    assert signing.is_signed_by(node, root.certificate)
    assert isinstance(node.public_key(), ec.EllipticCurvePublicKey)


def test_certificates_link_node_and_root_for_a_time(root: signing.Identity) -> None:
    find = make_node(root).extensions.get_extension_for_class
    own = root.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    assert find(x509.AuthorityKeyIdentifier).value.key_identifier == own.digest
    assert find(x509.SubjectKeyIdentifier).value.digest != own.digest
    node = make_node(root)
    assert node.not_valid_before_utc == NOW - signing.CLOCK_SKEW
    assert signing.expiry_of(node) == NOW + timedelta(days=3)
    assert signing.subject_of(make_node(root, "n" * 60)) == f"CN={'n' * 60},O=Postroad"
    long = f"{'n' * 60}.{'m' * 60}"
    assert signing.subject_of(make_node(root, long)) == "O=Postroad"
    assert signing.names_of(make_node(root, long)) == (long,)
    assert signing.read_certificate(root.certificate_pem()) == root.certificate
    assert signing.belongs(root.certificate, signing.read_key(root.key_pem()))


def test_foreign_rsa_root_can_sign() -> None:
    root = foreign_root()
    node = make_node(root)
    assert signing.is_signed_by(node, root.certificate)
    assert signing.names_of(root.certificate) == ()
    read = signing.read_key(root.key_pem())
    assert signing.belongs(root.certificate, read)


def test_certificate_without_constraints_is_no_authority() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Old")])
    alternatives = x509.SubjectAlternativeName([x509.RFC822Name("a@example.org")])
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), 1)
        .not_valid_before(NOW)
        .not_valid_after(NOW + timedelta(days=9))
        .add_extension(alternatives, critical=False)
        .sign(key, hashes.SHA256())
    )
    assert not signing.is_authority(certificate)
    assert signing.names_of(certificate) == ("RFC822Name",)


def test_keys_that_cannot_sign_here_are_refused(root: signing.Identity) -> None:
    locked = root.key.private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")
    )
    edwards = ed25519.Ed25519PrivateKey.generate().private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    )
    with pytest.raises(ValueError, match="encrypted"):
        signing.read_key(locked)
    with pytest.raises(ValueError, match="neither EC nor RSA"):
        signing.read_key(edwards)
    with pytest.raises(ValueError, match="PEM"):
        signing.read_key(b"junk")
