"""Trust roots and nodes with certificates, for tests over TLS."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from postroad.admin import certificates
from postroad.net import Limits, MessagingService, ProtocolConfig, TlsConfig
from tests.support.net.raw_peers import CLUSTER, echo_on

LIMITS = Limits(connect_timeout_s=10.0, handshake_timeout_s=3.0, stop_grace_s=0.5)


class Authority:
    """A trust root in a directory of its own, and what it signs."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        certificates.create_root(directory)

    def tls(self, node: str, *, mutual: bool = True) -> TlsConfig:
        """The files of a node, signed on first use."""
        if not (self.directory / f"{node}.pem").exists():
            certificates.issue(self.directory, node)
        return TlsConfig(
            certificate=self.directory / f"{node}.pem",
            key=self.directory / f"{node}.key",
            ca=self.directory / "ca.pem",
            mutual=mutual,
        )

    def certificate_pem(self, node: str) -> str:
        """The certificate of a node as it is on disk now."""
        return (self.directory / f"{node}.pem").read_text()

    def renew(self, node: str) -> None:
        """Replace the certificate of a node, in the same files."""
        certificates.issue(self.directory, node, force=True)

    def replace_root(self, *nodes: str) -> None:
        """Another root, and certificates of it for the nodes, in the same files."""
        certificates.create_root(self.directory, force=True)
        for node in nodes:
            self.renew(node)

    def client_context(self) -> ssl.SSLContext:
        """A raw client that trusts this root and shows nothing."""
        context = ssl.create_default_context(cafile=self.directory / "ca.pem")
        context.check_hostname = False
        return context


@asynccontextmanager
async def alpha_and_beta(
    authority: Authority,
    protocol: ProtocolConfig | None = None,
    *,
    limits: Limits = LIMITS,
    **tls: TlsConfig | None,
) -> AsyncIterator[tuple[MessagingService, MessagingService]]:
    """Two nodes of these names; `tls` tells where one is not signed as it should be."""
    alpha, beta = (tls.get(name, authority.tls(name)) for name in ("alpha", "beta"))
    async with (
        node("alpha", alpha, protocol, limits=limits) as first,
        node("beta", beta, protocol, limits=limits) as second,
    ):
        yield first, second


@asynccontextmanager
async def node(
    name: str,
    tls: TlsConfig | None,
    protocol: ProtocolConfig | None = None,
    *,
    limits: Limits = LIMITS,
) -> AsyncIterator[MessagingService]:
    service = MessagingService(CLUSTER, name, tls=tls, limits=limits, protocol=protocol)
    async with echo_on(service):
        yield service
