"""Accepting connections, and replacing certificates without interruption."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl

from postroad.core import Address
from postroad.core.errors import ConfigError, NotRunningError
from postroad.net.connections.disconnect import drain_connections
from postroad.net.connections.server import OpenConnections, ServerConnection
from postroad.net.context import ConnectionContext
from postroad.net.dispatch import SubscriptionTable
from postroad.net.tls import TlsConfig, report_failed_handshakes

_BACKLOG = 1_024


class ConnectionAcceptor:
    """The listening sockets of a service and the connections that it has accepted."""

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
        # Loops reject the option without TLS.
        self._handshake_timeout_s = None if tls is None else handshake_timeout_s
        self._servers: list[asyncio.Server] = []
        # A dictionary for its order: connections are closed in the order of their arrival.
        self.connections: OpenConnections = {}
        # Held while certificates are replaced.
        self._tls_lock = asyncio.Lock()
        # Set by start().
        self._context: ConnectionContext

    async def bind(self, bind: Address) -> Address:
        """Bind; return the address with the port that was bound."""
        context = self._load_tls()
        try:
            server = await self._loop.create_server(
                self._accept,
                bind.host,
                bind.port,
                backlog=_BACKLOG,
                ssl=context,
                ssl_handshake_timeout=self._handshake_timeout_s,
                start_serving=False,
            )
        except (OSError, OverflowError) as error:
            raise ConfigError(f"cannot listen on {bind}: {error}") from error
        self._servers = [server]
        return Address(bind.host, int(server.sockets[0].getsockname()[1]))

    async def start(self, context: ConnectionContext) -> None:
        self._context = context
        for server in self._servers:
            await server.start_serving()

    async def reload_tls(self) -> None:
        """Read the certificate files again and use them for new connections."""
        tls = self._load_tls()
        async with self._tls_lock:
            if self._context.is_stopped:
                raise NotRunningError("the service is stopping")
            if tls is not None:
                await self._replace_tls(tls)

    async def _replace_tls(self, context: ssl.SSLContext) -> None:
        """Use other certificates for new connections; open connections keep theirs.

        The sockets stay open under a second descriptor while the server around them is replaced,
        so connections that arrive meanwhile are not refused.
        """
        old, self._servers = self._servers, []
        for sock in [sock for server in old for sock in server.sockets]:
            # Sockets of loops may lack dup().
            copy = socket.socket(fileno=os.dup(sock.fileno()))
            try:
                server = await self._loop.create_server(
                    self._accept,
                    sock=copy,
                    backlog=_BACKLOG,
                    ssl=context,
                    ssl_handshake_timeout=self._handshake_timeout_s,
                )
            except BaseException:
                copy.close()
                self._servers += old
                raise
            self._servers.append(server)
        for server in old:
            server.close()

    def abort(self) -> None:
        """Stop listening at once."""
        for server in self._servers:
            server.close()
        self._servers = []

    async def close(self, grace_s: float) -> None:
        """Stop listening, wait `grace_s` seconds for handlers, close all connections."""
        async with self._tls_lock:
            if isinstance(self._loop, asyncio.SelectorEventLoop):
                # asyncio's loop leaks a connection that it accepted in the iteration in which its
                # server is closed, so it has to stop accepting one iteration earlier.
                for server in self._servers:
                    for sock in server.sockets:
                        self._loop.remove_reader(sock.fileno())
                await asyncio.sleep(0)
            self.abort()
        await drain_connections(self.connections, grace_s)

    def _accept(self) -> ServerConnection:
        return ServerConnection(self._context, self._loop, self._subscriptions, self.connections)

    def _load_tls(self) -> ssl.SSLContext | None:
        if self._tls is None:
            return None
        context = self._tls.server_context()
        report_failed_handshakes(context, self._on_tls_failure)
        return context

    def _on_tls_failure(self, error: ssl.SSLError) -> None:
        self._context.counters.tls_failures += 1
        self._context.warn("tls", "TLS handshake of a new connection failed: %s", error)
