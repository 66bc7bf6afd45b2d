"""The socket of a connection, and its end: draining, write stalls, the reason as text and error."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Collection
from typing import TYPE_CHECKING, Protocol

import msgspec

from postroad.core import Address, Limits
from postroad.core.errors import (
    ConnectionClosedError,
    DuplicateNameHandshakeError,
    DuplicateNamePeerError,
    HandshakeRejectedError,
    Outcome,
    TlsError,
)
from postroad.wire import NEVER, GoodbyeFrame, WireConnection

if TYPE_CHECKING:
    from postroad.net.connections.connection import PeerConnection


# The maximum that the kernel accepts.
_KEEPALIVE_S_MAX = 32_767
_KEEPALIVE_COUNT_MAX = 127


def describe_remote(transport: asyncio.Transport) -> str:
    """Return the remote address, for texts."""
    name = transport.get_extra_info("peername")
    if isinstance(name, tuple) and len(name) >= 2:
        return str(Address(str(name[0]), int(name[1])))
    return str(name) if name else "unknown"


def remote_host(transport: asyncio.Transport) -> str:
    """Return the remote host, which all connections from there have in common."""
    name = transport.get_extra_info("peername")
    return str(name[0]) if isinstance(name, tuple) and name else "unknown"


def enable_keepalive(transport: asyncio.Transport, limits: Limits) -> None:
    """Turn on TCP keepalive: versions 1 and 2 of the documented profile have no heartbeats."""
    sock = transport.get_extra_info("socket")
    if sock is None or not limits.has_heartbeats:
        return
    interval_s = min(max(1, round(limits.heartbeat_interval_s)), _KEEPALIVE_S_MAX)
    count = min(max(1, round(limits.heartbeat_timeout_s / interval_s) - 1), _KEEPALIVE_COUNT_MAX)
    options = {"TCP_KEEPIDLE": interval_s, "TCP_KEEPINTVL": interval_s, "TCP_KEEPCNT": count}
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in options.items():
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


class LargeFrameProtocol(asyncio.BufferedProtocol):
    """Reads the bytes of a large frame directly into their buffer, for a connection.

    Small frames are read by the connection itself: for them a buffered protocol is slower.
    """

    __slots__ = ("_connection",)

    def __init__(self, connection: PeerConnection) -> None:
        self._connection = connection

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._connection.receive_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self._connection.buffer_updated(nbytes)

    def eof_received(self) -> bool:
        return self._connection.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.connection_lost(exc)

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()


# Time for a closing connection to write its buffer.
LINGER_S = 1.0


class Drainable(Protocol):
    """A connection that can finish its work before it closes."""

    def drain(self) -> None:
        """Stop accepting messages, finish those in flight, then close."""

    async def wait_finished(self) -> None:
        """Return when the connection is closed and its handlers have finished."""

    def abort(self) -> None:
        """Close at once and drop unfinished work."""


async def drain_connections(connections: Collection[Drainable], grace_s: float) -> None:
    """Drain all connections, and abort those that remain after `grace_s` seconds.

    A connection that has finished removes itself from the collection.
    """
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
    """Detects a peer that does not read: its full write buffer must shrink within a time.

    Otherwise such a peer would hold the memory of its unwritten messages forever.
    """

    __slots__ = ("_allowed_s", "_taken_bytes", "deadline")

    def __init__(self, allowed_s: float) -> None:
        self._allowed_s = allowed_s
        self._taken_bytes = 0
        # When to check the write buffer next; never while it is not full.
        self.deadline = NEVER

    def start(self, taken_bytes: int, now: float) -> None:
        """Start to watch a full write buffer, with the bytes that have left it so far."""
        self._taken_bytes = taken_bytes
        self.deadline = now + self._allowed_s

    def extend_until(self, moment: float) -> None:
        """Delay the next check until this time."""
        self.deadline = max(self.deadline, moment)

    def stop(self) -> None:
        """Stop to watch: the write buffer has drained."""
        self.deadline = NEVER

    def is_stalled(self, taken_bytes: int, now: float) -> bool:
        """Whether no byte has left in time; if one has, the time starts again."""
        if now < self.deadline:
            return False
        if taken_bytes > self._taken_bytes:
            self.start(taken_bytes, now)
            return False
        self.stop()
        return True


class DisconnectReason(msgspec.Struct, frozen=True, kw_only=True):
    """Why a connection ended."""

    wire: WireConnection
    exc: Exception | None
    """The exception that the event loop reported."""
    was_open: bool
    close_reason: str | None
    """Why this node closed it, if it did."""
    peer_reason: str | None
    """The reason in the goodbye of the peer."""
    is_rejected: bool
    """Whether the peer has rejected this node for good."""

    def error(self) -> ConnectionClosedError:
        """Return the error, without peer and times."""
        failure = self.wire.failure
        if isinstance(failure, DuplicateNameHandshakeError):
            # The hello is the first frame of the peer, so its name is known here.
            error = DuplicateNamePeerError(str(failure))
            error.incarnation, error.is_member = failure.incarnation, failure.is_member
            return error
        is_tls_error = isinstance(self.exc, ssl.SSLError)
        kind = TlsError if is_tls_error and not self.was_open else ConnectionClosedError
        is_rejected = self.is_rejected or isinstance(failure, HandshakeRejectedError)
        if self.was_open and not is_rejected:
            return kind(self.describe())
        # Nothing was sent. A retry helps unless the peer has rejected this node or TLS failed.
        retryable = not is_rejected and kind is not TlsError
        return kind(self.describe(), outcome=Outcome.NOT_SENT, retryable=retryable)

    def describe(self) -> str:
        if self.close_reason is not None:
            return f"connection closed: {self.close_reason}"
        if self.peer_reason is not None:
            return f"the peer closed the connection: {self.peer_reason}"
        if self.exc is not None:
            return f"connection lost: {self.exc}"
        if not self.was_open:
            is_secured = self.wire.certificate_names is not None
            hint = "; or it does not trust this node's certificate" if is_secured else ""
            return (
                "the peer closed the connection during the handshake; "
                f"is it of another cluster, version or TLS setting?{hint}"
            )
        return "the peer closed the connection"


def is_rejection(goodbye: GoodbyeFrame) -> bool:
    """Whether the goodbye rejects this node for good."""
    return goodbye.code in (HandshakeRejectedError.code, DuplicateNameHandshakeError.code)
