"""Everything about connections that peers open to this node, from the socket to their end."""

from __future__ import annotations

import asyncio
import ssl

from postroad.core import Address
from postroad.core.errors import NotRunningError

from .accepted import OpenConnections, ServerConnection
from .context import ConnectionContext
from .dispatch import SubscriptionTable
from .ending import drain_connections
from .listener import TcpListener
from .tls import TlsConfig, report_failed_handshakes


class ConnectionAcceptor:
    """The listener of a service and the links it has accepted."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        subscriptions: SubscriptionTable,
        tls: TlsConfig | None,
        *,
        handshake_timeout_s: float,
    ) -> None:
        self._loop = loop
        self._subscriptions = subscriptions
        self._tls = tls
        self._listener = TcpListener(loop, self._accept, handshake_timeout_s=handshake_timeout_s)
        # A dictionary for its order: whatever goes through them all does so in the order they came.
        self.links: OpenConnections = {}
        # Held while certificates change.
        self._tls_lock = asyncio.Lock()
        # Set by start.
        self._context: ConnectionContext

    async def bind(self, bind: Address) -> Address:
        """Bind; returns the address with the port that was really bound."""
        return await self._listener.open(bind, self._load_tls())

    async def start(self, context: ConnectionContext) -> None:
        """Accept connections from now on."""
        self._context = context
        await self._listener.start()

    async def reload_tls(self) -> None:
        """Serve new connections with the certificate files as they are now."""
        tls = self._load_tls()
        async with self._tls_lock:
            if self._context.is_stopped:
                raise NotRunningError("the service is stopping")
            if tls is not None:
                await self._listener.replace_context(tls)

    def abort(self) -> None:
        """Give up before anything was accepted."""
        self._listener.abort()

    async def close(self, grace_s: float) -> None:
        """Accept no more, let handlers finish for a while, close all connections."""
        async with self._tls_lock:
            await self._listener.close()
        await drain_connections(self.links, grace_s)

    def _accept(self) -> ServerConnection:
        return ServerConnection(self._context, self._loop, self._subscriptions, self.links)

    def _load_tls(self) -> ssl.SSLContext | None:
        if self._tls is None:
            return None
        context = self._tls.server_context()
        report_failed_handshakes(context, self._on_tls_failure)
        return context

    def _on_tls_failure(self, error: ssl.SSLError) -> None:
        self._context.counters.tls_failures += 1
        now = self._loop.time()
        self._context.warn("tls", now, "TLS with a new connection failed: %s", error)
