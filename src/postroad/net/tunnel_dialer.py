"""Tunnels that this node opens."""

from __future__ import annotations

import asyncio

from postroad.core import Address
from postroad.core.errors import ConnectError, MessagingError
from postroad.wire import ConnectionRole

from .context import ConnectionContext
from .dialing import DialTasks, connect
from .ending import drain_connections
from .pool import ConnectionPool
from .tunnel import Tunnel, TunnelAcceptor


class TunnelDialer:
    """Opens tunnels, and ends them when the service stops."""

    def __init__(
        self, context: ConnectionContext, loop: asyncio.AbstractEventLoop, pool: ConnectionPool
    ) -> None:
        self._context = context
        self._loop = loop
        # Has the certificates, and counts what is open.
        self._pool = pool
        self._dials: DialTasks[Tunnel] = DialTasks(lambda tunnel: tunnel.close("given up"))

    async def open(
        self, address: Address, accept: TunnelAcceptor, peer: str | None, timeout: float | None
    ) -> Tunnel:
        """A tunnel that the peer has taken and that has its user."""
        self._pool.evict_idle()
        try:
            async with asyncio.timeout(timeout):
                return await self._dials.run(self._dial(address, accept, peer))
        except TimeoutError:
            raise ConnectError(f"no tunnel within {timeout:.3g} s", peer=str(address)) from None
        except MessagingError as error:
            error.peer = error.peer or str(address)
            raise

    async def _dial(self, address: Address, accept: TunnelAcceptor, peer: str | None) -> Tunnel:
        tunnels = self._pool.tunnels
        tunnel = Tunnel(self._context, self._loop, ConnectionRole.CLIENT, accept, tunnels.pop, peer)
        tunnels[tunnel] = None
        try:
            await connect(self._context, address, self._pool.tls, lambda: tunnel)
            error = await asyncio.shield(tunnel.opened)
        except BaseException:
            self._context.counters.connections_failed += 1
            tunnel.close("given up")
            if tunnel.transport is None:
                tunnels.pop(tunnel, None)
            raise
        if error is not None:
            self._context.counters.connections_failed += 1
            raise error
        return tunnel

    async def close(self, grace_s: float) -> None:
        """Open no more, and close all within the time."""
        await asyncio.gather(*self._dials.cancel(), return_exceptions=True)
        await drain_connections(self._pool.tunnels, grace_s)
