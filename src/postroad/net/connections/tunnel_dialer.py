"""The tunnels of a messaging service: opening, accepting and closing them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from postroad.core import Address, to_address
from postroad.core.errors import ConfigError, ConnectError, MessagingError
from postroad.net.connections.disconnect import drain_connections
from postroad.net.connections.pool import ConnectionPool, DialTasks, connect
from postroad.net.connections.tunnel import Tunnel, TunnelAcceptor
from postroad.net.context import ConnectionContext
from postroad.net.requests import validate_timeout
from postroad.wire import ConnectionRole


class TunnelDialer:
    """Opens tunnels to other nodes, accepts theirs, and closes all when the service stops."""

    def __init__(self, check_running: Callable[[], None]) -> None:
        # Raises NotRunningError unless the service runs.
        self._check_running = check_running
        self._dials: DialTasks[Tunnel] = DialTasks(lambda tunnel: tunnel.close("dial cancelled"))
        # Set by start().
        self._context: ConnectionContext
        self._loop: asyncio.AbstractEventLoop
        self._pool: ConnectionPool

    def start(
        self, context: ConnectionContext, loop: asyncio.AbstractEventLoop, pool: ConnectionPool
    ) -> None:
        """Use the pool's TLS context and its limit of connections."""
        self._context = context
        self._loop = loop
        self._pool = pool

    def accept(self, acceptor: TunnelAcceptor) -> None:
        """Have `acceptor(tunnel)` return the handler of each tunnel that a peer opens.

        The handler may send at once. Raising HandshakeRejectedError in the acceptor rejects the
        tunnel, and the peer receives the error's text.
        """
        self._check_running()
        if self._context.accept_tunnel is not None:
            raise ConfigError(
                "cannot accept tunnels twice: an acceptor is set; call tunnels.stop_accepting()"
            )
        self._context.accept_tunnel = acceptor

    def stop_accepting(self) -> None:
        """Reject new tunnels of peers; open tunnels stay open."""
        self._context.accept_tunnel = None

    async def open(
        self,
        address: Address | str,
        acceptor: TunnelAcceptor,
        *,
        peer: str | None = None,
        timeout: float | None = None,
    ) -> Tunnel:
        """Open a tunnel to a node that has a role and accepts tunnels.

        Args:
            address: the address that the node advertises.
            acceptor: called with the tunnel once the peer has accepted it; returns the tunnel's
                handler, or raises HandshakeRejectedError, whose text the peer receives.
            peer: the name that the node at the address must have.
            timeout: seconds until the tunnel is open; None leaves the limits for connecting and
                for the handshake, which apply in any case.

        Raises:
            MessagingError: one of its subclasses. If either node rejects the other, a
                ConnectionClosedError that is not retryable and has the reason.
        """
        self._check_running()
        target = to_address(address)
        timeout_s = None if timeout is None else validate_timeout(timeout)
        self._pool.evict_idle()
        try:
            async with asyncio.timeout(timeout_s):
                return await self._dials.run(self._dial(target, acceptor, peer))
        except TimeoutError:
            raise ConnectError(f"no tunnel within {timeout_s:.3g} s", peer=str(target)) from None
        except MessagingError as error:
            error.peer = error.peer or str(target)
            raise

    async def _dial(self, address: Address, acceptor: TunnelAcceptor, peer: str | None) -> Tunnel:
        tunnels = self._pool.tunnels
        tunnel = Tunnel(
            self._context, self._loop, ConnectionRole.CLIENT, acceptor, tunnels.pop, peer
        )
        tunnels[tunnel] = None
        try:
            await connect(self._context, address, self._pool.tls, lambda: tunnel)
            error = await asyncio.shield(tunnel.opened)
        except BaseException:
            self._context.counters.connections_failed += 1
            tunnel.close("dial cancelled")
            if tunnel.transport is None:
                tunnels.pop(tunnel, None)
            raise
        if error is not None:
            self._context.counters.connections_failed += 1
            raise error
        return tunnel

    async def close(self, grace_s: float) -> None:
        """Cancel the dials, then drain the open tunnels for `grace_s` seconds and close them."""
        await asyncio.gather(*self._dials.cancel(), return_exceptions=True)
        await drain_connections(self._pool.tunnels, grace_s)
