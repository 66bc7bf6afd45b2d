"""TLS 1.3 from certificate files: contexts for both sides, and who a peer's certificate names."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable

import msgspec

from .identity_files import load_certificate, load_trust


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
        load_certificate(context, self.certificate, self.key, what="TLS certificate")
        load_trust(context, self.trust, what="TLS trust")
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
