"""TLS 1.3 from certificate files: contexts for both sides, and who a peer's certificate names."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, TypeAlias

import msgspec

from postroad.core.errors import ConfigError
from postroad.net.owned_files import check_file, read_file

_REASONS = {
    "KEY_VALUES_MISMATCH": "the key belongs to another certificate",
    "NO_START_LINE": "one of them is not in PEM form",
    "NO_CERTIFICATE_OR_CRL_FOUND": "there is no certificate in it",
}


PathText: TypeAlias = str | os.PathLike[str]


def load_certificate(
    context: ssl.SSLContext, certificate: PathText, key: PathText, *, label: str
) -> None:
    """Have a context show a certificate.

    Args:
        label: the name of the certificate in errors, such as `TLS certificate`.

    Raises:
        ConfigError: the files cannot be read, or do not fit together.
    """
    place = f"{label} {certificate} with key {key} cannot be used"
    for path in (certificate, key):
        try:
            read_file(Path(path))
        except OSError as error:
            raise ConfigError(f"{place}: {path}: {error.strerror}") from error
        except ConfigError as error:
            raise ConfigError(f"{place}: {error}") from None

    def refuse() -> NoReturn:
        # Otherwise a node would stand still and wait for somebody at a keyboard.
        raise ConfigError(f"{place}: the key is encrypted; give one that is not")

    try:
        context.load_cert_chain(certificate, key, password=refuse)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"{place}: {describe_tls_file_error(error)}") from error


def load_trust(context: ssl.SSLContext, trust: PathText, *, label: str) -> None:
    """Have a context trust those who are signed by certificates in a file; raises ConfigError."""
    try:
        check_file(trust)
        context.load_verify_locations(trust)
    except ConfigError as error:
        raise ConfigError(f"{label} {trust} cannot be used: {error}") from None
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"{label} {trust} cannot be used: {describe_tls_file_error(error)}"
        ) from error


def describe_tls_file_error(error: OSError) -> str:
    """What is wrong with files of certificates, in words."""
    if isinstance(error, ssl.SSLError):
        if error.reason in _REASONS:
            return _REASONS[error.reason]
        if "PEM lib" in str(error):
            return "one of them is not in PEM form"
    return error.strerror or str(error)


class TlsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Certificate files of a node, in PEM. `postroad certs` makes them for development."""

    certificate: str | os.PathLike[str]
    """The node's certificate chain; its subject alternative name is the node's name."""
    key: str | os.PathLike[str]
    """The private key of the certificate."""
    trust: str | os.PathLike[str]
    """Certificates of those who sign the nodes of this cluster."""
    is_mutual: bool = True
    """Whether this node demands a certificate of whoever connects to it.

    If not, whoever shows none is let in, and is nobody known: its messages name no sender.
    """

    def server_context(self) -> ssl.SSLContext:
        """For accepted connections; reads the files anew."""
        context = self._context(ssl.PROTOCOL_TLS_SERVER)
        # Even where none is demanded, one that is shown is verified, and says who its owner is.
        context.verify_mode = ssl.CERT_REQUIRED if self.is_mutual else ssl.CERT_OPTIONAL
        return context

    def client_context(self) -> ssl.SSLContext:
        """For dialed connections; reads the files anew."""
        context = self._context(ssl.PROTOCOL_TLS_CLIENT)
        # Nodes are known by name, not by host: the name is compared once the peer has told it.
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _context(self, protocol: int) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        load_certificate(context, self.certificate, self.key, label="TLS certificate")
        load_trust(context, self.trust, label="TLS trust")
        return context


def report_failed_handshakes(
    context: ssl.SSLContext, report: Callable[[ssl.SSLError], None]
) -> None:
    """Report handshakes that fail on the server's side, which event loops keep to themselves."""

    class ReportingObject(ssl.SSLObject):
        def do_handshake(self) -> None:
            try:
                super().do_handshake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise
            except ssl.SSLError as error:
                report(error)
                raise

    context.sslobject_class = ReportingObject


def certificate_names(transport: asyncio.BaseTransport) -> tuple[str, ...] | None:
    """DNS names in the peer's certificate in their order, or None if it showed none."""
    certificate = transport.get_extra_info("peercert")
    if not certificate:
        return None
    names = certificate.get("subjectAltName", ())
    return tuple(str(value) for kind, value in names if kind == "DNS")
