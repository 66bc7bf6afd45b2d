"""What a messaging service offers beside messages: who it is to others, and tunnels."""

from __future__ import annotations

import asyncio
from abc import abstractmethod

import msgspec

from postroad.core import Address, Lifecycle, to_address
from postroad.core.errors import ConfigError, ConnectError, MessagingError
from postroad.net.connections.dialer import DialTasks, connect
from postroad.net.connections.disconnect import drain_connections
from postroad.net.connections.pool import ConnectionPool
from postroad.net.connections.tunnel import Tunnel, TunnelAcceptor
from postroad.net.context import ConnectionContext
from postroad.net.requests import validate_timeout
from postroad.wire import ConnectionRole
from postroad.wire.hello import PART_BYTES_MAX


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


class TunnelCalls(Lifecycle):
    """Introductions and tunnels of a service, which adds the rest."""

    # Set by start.
    _context: ConnectionContext
    _tunnels: TunnelDialer

    @abstractmethod
    def _check_running(self) -> None:
        """Raise NotRunningError unless the service is."""

    # Introductions.

    def set_member(self, is_member: bool) -> None:
        """Have new connections told whether this node has joined its cluster."""
        self._introduce_as(is_member=is_member)

    def introduce(self, role: str, zone: str | None) -> None:
        """Have new connections told what part this node plays among cells; an empty role, none."""
        self._check_running()
        self._introduce_as(role=_check_part("role", role), zone=_check_part("zone", zone or ""))

    def _introduce_as(self, **changes: object) -> None:
        config = self._context.config
        hello = msgspec.structs.replace(config.hello, **changes)
        self._context.config = msgspec.structs.replace(config, hello=hello)

    # Tunnels.

    def accept_tunnels(self, accept: TunnelAcceptor) -> None:
        """Have `accept(tunnel)` give the user of each tunnel that another node opens to this one.

        It may send at once. Raising HandshakeRejectedError rejects the tunnel, and the peer gets
        the text.
        """
        self._check_running()
        if self._context.accept_tunnel is not None:
            raise ConfigError("tunnels are accepted already; refuse_tunnels() first")
        self._context.accept_tunnel = accept

    def refuse_tunnels(self) -> None:
        """Take no more tunnels; open ones stay."""
        self._context.accept_tunnel = None

    async def open_tunnel(
        self,
        address: Address | str,
        accept: TunnelAcceptor,
        *,
        peer: str | None = None,
        timeout: float | None = None,
    ) -> Tunnel:
        """Open a tunnel to another node, which must have a role and take tunnels.

        Args:
            address: the node, as it advertises itself.
            accept: called with the tunnel once the other node has taken it; gives its user, or
                raises HandshakeRejectedError, whose text is told to the other node.
            peer: the name of the node that must answer at the address.
            timeout: seconds for everything; the limits for connecting and shaking hands hold too.

        Raises:
            MessagingError: one of its sub-classes. If one of the two refuses the other, it is a
                ConnectionClosedError that is not retryable and tells why.
        """
        self._check_running()
        allowed_s = None if timeout is None else validate_timeout(timeout)
        return await self._tunnels.open(to_address(address), accept, peer, allowed_s)


def _check_part(what: str, text: str) -> str:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise ConfigError(f"{what} {text!r} cannot be encoded as UTF-8") from None
    if size > PART_BYTES_MAX:
        raise ConfigError(f"{what} of {size} bytes is longer than {PART_BYTES_MAX}")
    return text
