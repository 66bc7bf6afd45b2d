"""What the user of a tunnel is told."""

from __future__ import annotations

from typing import Protocol

from postroad.wire import RequestFrame


class TunnelHandler(Protocol):
    """Who has a tunnel. All of it is called by the event loop, so nothing may block."""

    def on_messages(self, requests: list[RequestFrame]) -> None:
        """Messages arrived, in the order in which they were posted; called once for each read."""

    def on_writable(self) -> None:
        """The socket has room again: `can_send` is True from now on."""

    def on_lost(self, reason: str) -> None:
        """The tunnel is gone. Told exactly once, and nothing is called after it."""
