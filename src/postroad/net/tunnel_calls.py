"""What a messaging service offers beside messages: who it is to others, and tunnels."""

from __future__ import annotations

from abc import abstractmethod

import msgspec

from postroad.core import Address, Lifecycle, to_address
from postroad.core.errors import ConfigError
from postroad.wire.hello import PART_BYTES_MAX

from .attempt import validate_timeout
from .context import ConnectionContext
from .tunnel import Tunnel, TunnelAcceptor
from .tunnel_dialer import TunnelDialer


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
