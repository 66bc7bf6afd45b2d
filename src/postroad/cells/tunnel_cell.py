"""Tunnels as operators see them: cells that answer commands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from postroad.core.errors import ConfigError, HandshakeRejectedError, UsageError

from .cell import Cell
from .commands import command
from .message import CellMessage

if TYPE_CHECKING:
    from .links import DomainLink


class TunnelCell(Cell):
    """The tunnel to another domain."""

    is_system = True

    def __init__(self, link: DomainLink) -> None:
        super().__init__(link.gateway)
        self._link = link

    def handle(self, message: CellMessage) -> Any:
        """Messages go through a tunnel, not to it."""
        raise UsageError(f"{self.name} is a tunnel; it takes commands only: info")

    def describe(self) -> str:
        """Where it leads."""
        domain = self._link.domain
        zone = "" if domain.zone is None else f" of zone {domain.zone}"
        return f"tunnel to {domain.role.value} {domain.name}{zone}"

    @command("info", help="What went through the tunnel, and what waits.", is_read=True)
    def info(self) -> str:
        """Everything that is known of the tunnel."""
        now = self._link.statistics()
        trip = "not measured" if now.round_trip_s is None else f"{now.round_trip_s * 1000:.2f} ms"
        return "\n".join(
            (
                self.describe(),
                f"address:     {self._link.tunnel.peer.address}",
                f"incarnation: {now.incarnation}",
                f"round trip:  {trip}",
                f"sent:        {now.sent} messages",
                f"received:    {now.received} messages, {now.malformed} malformed",
                f"waiting:     {now.waiting} messages, {now.waiting_bytes} bytes",
                f"refused:     {now.refused} messages",
            )
        )


def make_tunnel_cell(link: DomainLink) -> TunnelCell:
    """Make the cell of a tunnel; raises HandshakeRejectedError if none can be called like that."""
    try:
        return TunnelCell(link)
    except ConfigError as error:
        raise HandshakeRejectedError(
            f"the name of domain {link.domain.name} is no good: {error}"
        ) from None
