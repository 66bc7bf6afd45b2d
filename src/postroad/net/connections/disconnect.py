"""How a connection came to its end, as text and as the error for those who wait on it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Collection
from typing import Any, Protocol

import msgspec

from postroad.core.errors import (
    ConnectionClosedError,
    DuplicateNameHandshakeError,
    DuplicateNamePeerError,
    HandshakeRejectedError,
    Outcome,
    TlsError,
)
from postroad.net.connections.connection import LINGER_S
from postroad.wire import NEVER, GoodbyeFrame, WireConnection


class Drainable(Protocol):
    """A connection that can end in order."""

    def drain(self) -> None:
        """Take nothing new, finish what has begun, then close."""

    async def wait_finished(self) -> None:
        """Return once nothing of it is left."""

    def abort(self) -> None:
        """Give up on everything."""


async def drain_connections(connections: Collection[Drainable], grace_s: float) -> None:
    """Stop them all; connections that are over remove themselves from the collection."""
    for connection in list(connections):
        connection.drain()
    waiting = [asyncio.ensure_future(connection.wait_finished()) for connection in connections]
    if waiting:
        await asyncio.wait(waiting, timeout=grace_s)
    for connection in list(connections):
        connection.abort()
    if waiting:
        # Cancelled handlers get a moment to clean up.
        await asyncio.wait(waiting, timeout=LINGER_S)
        for waiter in waiting:
            waiter.cancel()


class WriteStallDetector:
    """Watches a socket that takes no more: it must take something within the time.

    A peer that never reads would hold the memory of what waits for it for ever.
    """

    __slots__ = ("_allowed_s", "_taken_bytes", "deadline")

    def __init__(self, allowed_s: float) -> None:
        self._allowed_s = allowed_s
        self._taken_bytes = 0
        # When to look whether the socket has taken more; never while it has room.
        self.deadline = NEVER

    def start(self, taken_bytes: int, now: float) -> None:
        """The socket takes no more, and had taken so much."""
        self._taken_bytes = taken_bytes
        self.deadline = now + self._allowed_s

    def extend_until(self, moment: float) -> None:
        """Look no sooner than that."""
        self.deadline = max(self.deadline, moment)

    def stop(self) -> None:
        """The socket has room again."""
        self.deadline = NEVER

    def is_stalled(self, taken_bytes: int, now: float) -> bool:
        """Whether nothing was taken for so long; if something was, the time begins anew."""
        if now < self.deadline:
            return False
        if taken_bytes > self._taken_bytes:
            self.start(taken_bytes, now)
            return False
        self.stop()
        return True


class DisconnectReason(msgspec.Struct, frozen=True, kw_only=True):
    """What a connection knows of its end."""

    wire: WireConnection
    exc: Exception | None
    """What the loop said."""
    was_open: bool
    close_reason: str | None
    """Why this side closed it, if it did."""
    peer_reason: str | None
    """What the peer gave as its reason to close."""
    is_rejected: bool
    """Whether the peer wants nothing to do with this node."""

    def error(self) -> ConnectionClosedError:
        """The error, still without peer and times."""
        failure = self.wire.failure
        if isinstance(failure, DuplicateNameHandshakeError):
            # The peer's hello comes before anything else it says, so this side always knows.
            error = DuplicateNamePeerError(str(failure))
            error.incarnation, error.is_member = failure.incarnation, failure.is_member
            return error
        is_tls_error = isinstance(self.exc, ssl.SSLError)
        kind = TlsError if is_tls_error and not self.was_open else ConnectionClosedError
        return kind(self.describe(), **self._outcome(kind))

    def _outcome(self, kind: type[ConnectionClosedError]) -> dict[str, Any]:
        """Nothing was handled on a connection that never opened, or whose peer refused this node.

        Trying again helps unless it is refused.
        """
        is_rejected = self.is_rejected or isinstance(self.wire.failure, HandshakeRejectedError)
        if self.was_open and not is_rejected:
            return {}
        return {
            "outcome": Outcome.NOT_SENT,
            "retryable": not is_rejected and kind is not TlsError,
        }

    def describe(self) -> str:
        """What happened."""
        if self.close_reason is not None:
            return f"connection closed: {self.close_reason}"
        if self.peer_reason is not None:
            return f"the peer closed the connection: {self.peer_reason}"
        if self.exc is not None:
            return f"connection lost: {self.exc}"
        if not self.was_open:
            is_secured = self.wire.certificate_names is not None
            trust = "; or it does not trust this node's certificate" if is_secured else ""
            return (
                "the peer closed the connection during the handshake; "
                f"is it of another cluster, version or TLS setting?{trust}"
            )
        return "the peer closed the connection"


def is_rejection(goodbye: GoodbyeFrame) -> bool:
    """Whether the peer closes because it wants nothing to do with this node."""
    return goodbye.code in (HandshakeRejectedError.code, DuplicateNameHandshakeError.code)
