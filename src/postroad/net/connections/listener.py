"""Accepting connections, and replacing certificates without interruption."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable

from postroad.core import Address
from postroad.core.errors import ConfigError, NotRunningError
from postroad.net.connections.disconnect import drain_connections
from postroad.net.connections.server import OpenConnections, ServerConnection
from postroad.net.context import ConnectionContext
from postroad.net.dispatch import SubscriptionTable
from postroad.net.tls import TlsConfig, report_failed_handshakes


class ConnectionAcceptor:
    """The listener of a service and the connections that it has accepted."""

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
        # A dictionary for its order: connections are closed in the order of their arrival.
        self.connections: OpenConnections = {}
        # Held while certificates are replaced.
        self._tls_lock = asyncio.Lock()
        # Set by start().
        self._context: ConnectionContext

    async def bind(self, bind: Address) -> Address:
        """Bind; return the address with the port that was bound."""
        return await self._listener.open(bind, self._load_tls())

    async def start(self, context: ConnectionContext) -> None:
        self._context = context
        await self._listener.start()

    async def reload_tls(self) -> None:
        """Read the certificate files again and use them for new connections."""
        tls = self._load_tls()
        async with self._tls_lock:
            if self._context.is_stopped:
                raise NotRunningError("the service is stopping")
            if tls is not None:
                await self._listener.replace_context(tls)

    def abort(self) -> None:
        """Stop listening before a connection was accepted."""
        self._listener.abort()

    async def close(self, grace_s: float) -> None:
        """Stop listening, wait `grace_s` seconds for handlers, close all connections."""
        async with self._tls_lock:
            await self._listener.close()
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
        now = self._loop.time()
        self._context.warn("tls", now, "TLS handshake of a new connection failed: %s", error)


_BACKLOG = 1_024


class TcpListener:
    """Listening sockets of one bind address."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        factory: Callable[[], asyncio.BaseProtocol],
        *,
        handshake_timeout_s: float,
    ) -> None:
        self._loop = loop
        self._factory = factory
        self._handshake_timeout_s = handshake_timeout_s
        self._servers: list[asyncio.Server] = []

    async def open(self, bind: Address, context: ssl.SSLContext | None) -> Address:
        """Bind; return the address with the port that was bound."""
        try:
            server = await self._loop.create_server(
                self._factory,
                bind.host,
                bind.port,
                backlog=_BACKLOG,
                ssl=context,
                ssl_handshake_timeout=self._handshake_timeout(context),
                start_serving=False,
            )
        except (OSError, OverflowError) as error:
            raise ConfigError(f"cannot listen on {bind}: {error}") from error
        self._servers = [server]
        return Address(bind.host, int(server.sockets[0].getsockname()[1]))

    async def start(self) -> None:
        for server in self._servers:
            await server.start_serving()

    async def replace_context(self, context: ssl.SSLContext) -> None:
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
                    self._factory,
                    sock=copy,
                    backlog=_BACKLOG,
                    ssl=context,
                    ssl_handshake_timeout=self._handshake_timeout(context),
                )
            except BaseException:
                copy.close()
                self._servers += old
                raise
            self._servers.append(server)
        for server in old:
            server.close()

    async def close(self) -> None:
        """Stop listening; accepted connections stay open."""
        if isinstance(self._loop, asyncio.SelectorEventLoop):
            # asyncio's loop leaks a connection that it accepted in the iteration in which its
            # server is closed, so it has to stop accepting one iteration earlier.
            for server in self._servers:
                for sock in server.sockets:
                    self._loop.remove_reader(sock.fileno())
            await asyncio.sleep(0)
        self.abort()

    def abort(self) -> None:
        """Stop listening at once."""
        for server in self._servers:
            server.close()
        self._servers = []

    def _handshake_timeout(self, context: ssl.SSLContext | None) -> float | None:
        """Return the timeout, or None without TLS, where loops reject the option."""
        return None if context is None else self._handshake_timeout_s
