"""The socket of a connection: addresses, options, and reading large frames without a copy."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

from postroad.core import Address, Limits

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
