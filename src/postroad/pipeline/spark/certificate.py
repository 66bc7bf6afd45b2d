"""The certificate of one run of a job: made by its desk, and known to those who may ask it."""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

from postroad.net import TlsConfig

DESK = "desk"
WORKER = "worker"
"""What the coordinator and Spark's processes call themselves; a certificate names both."""

# It counts for one run, whatever the clocks of its machines say; see RFC 5280 for the end.
_FROM = datetime(1970, 1, 1, tzinfo=UTC)
_UNTIL = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)


def make_certificate() -> bytes:
    """A new certificate that names the desk and its workers, and its key, as PEM.

    It signs itself, so that nobody else has one that is trusted. Empty without `cryptography`.
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.serialization import (
            Encoding,
            NoEncryption,
            PrivateFormat,
        )
        from cryptography.x509.oid import NameOID
    except ImportError:
        return b""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "desk of a job")])
    names = x509.SubjectAlternativeName([x509.DNSName(DESK), x509.DNSName(WORKER)])
    certificate = (
        x509.CertificateBuilder(subject, subject, key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_FROM)
        .not_valid_after(_UNTIL)
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return certificate.public_bytes(Encoding.PEM) + pem


class CertificateFiles:
    """A certificate as files, which is how `ssl` takes one, for the time of a start."""

    def __init__(self, certificate: bytes) -> None:
        self._certificate = certificate
        self._exit = ExitStack()

    def __enter__(self) -> TlsConfig | None:
        if not self._certificate:
            return None
        # Only this user may enter it.
        folder = self._exit.enter_context(tempfile.TemporaryDirectory(prefix="postroad-desk-"))
        path = Path(folder) / "desk.pem"
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(self._certificate)
        return TlsConfig(certificate=path, key=path, ca=path)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._exit.close()
