"""TLS 1.3 from certificate files: contexts for both sides, and the names in certificates."""

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
    "NO_START_LINE": "one of them is not in PEM format",
    "NO_CERTIFICATE_OR_CRL_FOUND": "there is no certificate in it",
}


PathText: TypeAlias = str | os.PathLike[str]


def load_certificate(
    context: ssl.SSLContext, certificate: PathText, key: PathText, *, label: str
) -> None:
    """Load a certificate chain and its key into a context.

    Raises ConfigError, which starts with the label, if that is impossible.
    """
    place = f"{label} {certificate} with key {key} cannot be used"
    for path in (certificate, key):
        try:
            read_file(Path(path))
        except OSError as error:
            raise ConfigError(f"{place}: {path}: {error.strerror}") from error
        except ConfigError as error:
            raise ConfigError(f"{place}: {error}") from None

    def reject_password() -> NoReturn:
        # Without a callback, OpenSSL would wait for a password at the terminal.
        raise ConfigError(f"{place}: the key is encrypted; provide an unencrypted one")

    try:
        context.load_cert_chain(certificate, key, password=reject_password)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"{place}: {describe_tls_file_error(error)}") from error


def load_authorities(context: ssl.SSLContext, ca: PathText, *, label: str) -> None:
    """Load the certificate authorities of a file into a context; raises ConfigError."""
    try:
        check_file(ca)
        context.load_verify_locations(ca)
    except ConfigError as error:
        raise ConfigError(f"{label} {ca} cannot be used: {error}") from None
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"{label} {ca} cannot be used: {describe_tls_file_error(error)}"
        ) from error


def describe_tls_file_error(error: OSError) -> str:
    """Return the cause of an error of certificate files, for people."""
    if isinstance(error, ssl.SSLError):
        if error.reason in _REASONS:
            return _REASONS[error.reason]
        if "PEM lib" in str(error):
            return "one of them is not in PEM format"
    return error.strerror or str(error)


class TlsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Certificate files of a node, in PEM format. `postroad certs` creates them for development."""

    certificate: str | os.PathLike[str]
    """The node's certificate chain; its subject alternative name is the node's name."""
    key: str | os.PathLike[str]
    """The private key of the certificate."""
    ca: str | os.PathLike[str]
    """Certificates of the authorities that sign the nodes of this cluster."""
    mutual: bool = True
    """Whether this node requires a certificate of its clients.

    If not, clients without a certificate are accepted, and their messages have no sender name.
    """

    def server_context(self) -> ssl.SSLContext:
        """Return a context for accepted connections; reads the files again."""
        context = self._context(ssl.PROTOCOL_TLS_SERVER)
        # A certificate that is shown is verified, even if none is required, and names the client.
        context.verify_mode = ssl.CERT_REQUIRED if self.mutual else ssl.CERT_OPTIONAL
        return context

    def client_context(self) -> ssl.SSLContext:
        """Return a context for dialed connections; reads the files again."""
        context = self._context(ssl.PROTOCOL_TLS_CLIENT)
        # Nodes have names, not hosts: the name is compared when the hello of the peer arrives.
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _context(self, protocol: int) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        load_certificate(context, self.certificate, self.key, label="TLS certificate")
        load_authorities(context, self.ca, label="TLS ca")
        return context


def report_failed_handshakes(
    context: ssl.SSLContext, report: Callable[[ssl.SSLError], None]
) -> None:
    """Report failed handshakes of the server side, which event loops do not."""

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
    """Return the DNS names in the certificate of the peer, in order, or None without one."""
    certificate = transport.get_extra_info("peercert")
    if not certificate:
        return None
    names = certificate.get("subjectAltName", ())
    return tuple(str(value) for kind, value in names if kind == "DNS")
