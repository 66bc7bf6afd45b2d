"""How a connection came to its end, as text and as the error for those who wait on it."""

from __future__ import annotations

import ssl
from typing import Any

import msgspec

from postroad.core.errors import (
    ConnectionClosed,
    HandshakeRefused,
    Outcome,
    SameNamePeer,
    SameNameRefused,
    TlsFailed,
)
from postroad.wire import Connection, Goodbye


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """What a link knows of its end."""

    machine: Connection
    exc: Exception | None
    """What the loop said."""
    was_open: bool
    close_reason: str | None
    """Why this side closed it, if it did."""
    peer_reason: str | None
    """What the peer gave as its reason to close."""
    is_refused: bool
    """Whether the peer wants nothing to do with this node."""

    def error(self) -> ConnectionClosed:
        """The error, still without peer and times."""
        failure = self.machine.failure
        if isinstance(failure, SameNameRefused):
            # The peer's hello comes before anything else it says, so this side always knows.
            error = SameNamePeer(str(failure))
            error.incarnation, error.is_member = failure.incarnation, failure.is_member
            return error
        is_tls_error = isinstance(self.exc, ssl.SSLError)
        kind = TlsFailed if is_tls_error and not self.was_open else ConnectionClosed
        return kind(self.describe(), **self._judge(kind))

    def _judge(self, kind: type[ConnectionClosed]) -> dict[str, Any]:
        """Nothing was handled on a link that never opened, or whose peer refused this node.

        Trying again helps unless it is refused.
        """
        is_refused = self.is_refused or isinstance(self.machine.failure, HandshakeRefused)
        if self.was_open and not is_refused:
            return {}
        return {
            "outcome": Outcome.NOT_SENT,
            "retryable": not is_refused and kind is not TlsFailed,
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
            is_secured = self.machine.certificate_names is not None
            trust = "; or it does not trust this node's certificate" if is_secured else ""
            return (
                "the peer closed the connection during the handshake; "
                f"is it of another cluster, version or TLS setting?{trust}"
            )
        return "the peer closed the connection"


def is_refusal(goodbye: Goodbye) -> bool:
    """Whether the peer closes because it wants nothing to do with this node."""
    return goodbye.code in (HandshakeRefused.code, SameNameRefused.code)
