"""Datagram sockets of the memory network."""

from __future__ import annotations

import asyncio
import errno
import os
from collections import deque
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any

from postroad.core.limits import DATAGRAM_BYTES_MAX
from postroad.testing.simulation.network.hosts import (
    WILDCARD,
    SimHost,
    SimTransport,
    SocketAddress,
    complete,
    is_address,
)

if TYPE_CHECKING:
    from postroad.testing.simulation.network.network import MemoryNetwork

# Receive buffer of a socket; datagrams beyond it are dropped, as by a kernel.
_INBOX_BYTES_MAX = 208 * 1024
# Overhead that a kernel counts for a datagram.
_DATAGRAM_COST_BYTES = 256


class MemoryDatagramTransport(SimTransport, asyncio.DatagramTransport):
    """A simulated UDP socket; `remote` is set for a connected one."""

    def __init__(
        self,
        network: MemoryNetwork,
        host: SimHost,
        local: SocketAddress,
        remote: SocketAddress | None,
    ) -> None:
        port = host.datagrams.bind(*local, self)
        self.local = (local[0], port)
        super().__init__({"sockname": self.local, "peername": remote, "socket": None})
        self._network = network
        self._loop = network.loop
        self.host = host
        self.remote = remote
        self._context: Context = copy_context()
        self._inbox: deque[tuple[bytes, SocketAddress] | OSError] = deque()
        self._inbox_bytes = 0
        self._is_read_scheduled = False
        # When the last datagram to each target arrives.
        self._latest: dict[SocketAddress, float] = {}
        host.sockets[self] = None

    def start(self, protocol: Any, ready: asyncio.Future[None]) -> None:
        """Call `connection_made`, then complete `ready`."""
        self._protocol = protocol
        self._loop.call_soon(protocol.connection_made, self, context=self._context)
        self._loop.call_soon(complete, ready, context=self._context)

    # The interface of asyncio.

    def sendto(self, data: Any, addr: Any = None) -> None:
        """Send a datagram; its arrival is not reported."""
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(
                f"data argument must be a bytes-like object, not {type(data).__name__!r}"
            )
        if self.remote is not None:
            if addr not in (None, self.remote):
                raise ValueError(f"Invalid address: must be None or {self.remote}")
            addr = self.remote
        if self._is_closing:
            return
        if addr is None:
            raise ValueError("cannot send without an address: the socket is not connected")
        if len(data) > DATAGRAM_BYTES_MAX:
            self._report(OSError(errno.EMSGSIZE, os.strerror(errno.EMSGSIZE)))
            return
        try:
            target = self._resolve(addr)
        except OSError as error:
            self._report(error)
            return
        self._network.send_datagram(self, bytes(data), target)

    def _resolve(self, addr: Any) -> SocketAddress:
        host, port = str(addr[0]), int(addr[1])
        return (host if is_address(host) else self._network.names.resolve(host)[0], port)

    def abort(self) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket and release its port."""
        if self._is_closing:
            return
        self.close_by_kernel()
        self._loop.call_soon(self._notify_closed, context=self._context)

    def get_write_buffer_size(self) -> int:
        return 0

    def _notify_closed(self) -> None:
        if self._protocol is not None:
            self._protocol.connection_lost(None)

    def _report(self, error: OSError) -> None:
        if self._protocol is not None:
            self._protocol.error_received(error)

    # Called by the network.

    def source_for(self, target: str) -> SocketAddress:
        """Return the source address that the receiver sees."""
        address, port = self.local
        return self.host.source_address(target) if address == WILDCARD else address, port

    def in_order(self, target: SocketAddress, when: float) -> float:
        """Return a time of arrival that keeps the order of datagrams."""
        self._latest[target] = when = max(when, self._latest.get(target, 0.0))
        return when

    def on_datagram(self, data: bytes, source: SocketAddress) -> None:
        if self.remote is not None and source != self.remote:
            return
        cost = len(data) + _DATAGRAM_COST_BYTES
        if self._inbox_bytes + cost > _INBOX_BYTES_MAX:
            return
        self._inbox_bytes += cost
        self._inbox.append((data, source))
        self._schedule_read()

    def on_unreachable(self) -> None:
        """Report an unreachable port; as in a kernel, only to connected sockets."""
        if self.remote is not None and not self._is_closing:
            text = os.strerror(errno.ECONNREFUSED)
            self._inbox.append(ConnectionRefusedError(errno.ECONNREFUSED, text))
            self._schedule_read()

    def close_by_kernel(self) -> None:
        """Close because the process ended, or the host has no power."""
        self._is_closing = True
        self._inbox.clear()
        if self.host.sockets.pop(self, self) is None:
            self.host.datagrams.release(*self.local)

    power_off = close_by_kernel

    def _schedule_read(self) -> None:
        if not self._is_read_scheduled:
            self._is_read_scheduled = True
            self._loop.call_soon(self._read, context=self._context)

    def _read(self) -> None:
        """Pass one datagram per loop iteration to the protocol, as with real sockets."""
        self._is_read_scheduled = False
        if not self._inbox or self._protocol is None:
            return
        received = self._inbox.popleft()
        if self._inbox:
            self._schedule_read()
        if isinstance(received, OSError):
            self._protocol.error_received(received)
        else:
            data, source = received
            self._inbox_bytes -= len(data) + _DATAGRAM_COST_BYTES
            self._protocol.datagram_received(data, source)

    def __repr__(self) -> str:
        state = "closed" if self._is_closing else "open"
        return f"<MemoryDatagramTransport {self.local} {state}>"
