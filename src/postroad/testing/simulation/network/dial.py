"""Opening a connection: a request, a reply, and the faults of both."""

from __future__ import annotations

import asyncio
import errno
import os
from contextvars import copy_context
from typing import TYPE_CHECKING

from postroad.testing.simulation.network.hosts import SimHost, SocketAddress
from postroad.testing.simulation.network.pipe import Pipe
from postroad.testing.simulation.network.transport import MemoryTransport

if TYPE_CHECKING:
    from postroad.testing.simulation.network.network import MemoryNetwork
    from postroad.testing.simulation.network.server import MemoryServer


class DialAttempt:
    """One attempt to connect to an address."""

    def __init__(
        self, network: MemoryNetwork, source: SimHost, local: SocketAddress, target: SocketAddress
    ) -> None:
        self._network = network
        self._source = source
        self._local = local
        self._target = target
        self._context = copy_context()
        self._is_off = False
        # None if there is no such host, which behaves like a host without power.
        self._host = network.host_at(target[0], source)
        self._opened: asyncio.Future[MemoryTransport] = network.loop.create_future()
        source.sockets[self] = None

    async def connect(self) -> MemoryTransport:
        """Return the open connection."""
        network = self._network
        timer = network.loop.call_later(network.connect_timeout_s, self._on_timeout)
        if self._host is not None:
            network.deliver(self._source, self._host, self._on_syn)
        try:
            return await self._opened
        finally:
            timer.cancel()
            self._source.sockets.pop(self, None)

    def _on_timeout(self) -> None:
        self._fail(TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)))

    def _on_syn(self) -> None:
        """Handle the arrival of the request to connect at the target."""
        if self._is_off or self._opened.done():
            return
        assert self._host is not None
        listener = self._host.listeners.find(*self._target)
        if listener is None or not listener.server.is_serving():
            self._network.deliver(self._host, self._source, self._on_refused)
        else:
            transport = self._create_pair(self._host, listener.server)
            self._network.deliver(self._host, self._source, lambda: self._open(transport))

    def _create_pair(self, host: SimHost, server: MemoryServer) -> MemoryTransport:
        network = self._network
        context = server.new_context()
        dialed = MemoryTransport(network, self._source, self._context, self._local, self._target)
        accepted = MemoryTransport(network, host, context, self._target, self._local, server)
        dialed.outgoing = accepted.incoming = Pipe(network, dialed, accepted)
        accepted.outgoing = dialed.incoming = Pipe(network, accepted, dialed)
        server.accept(accepted, context)
        return dialed

    def _open(self, transport: MemoryTransport) -> None:
        """Handle the arrival of the acceptance at the caller."""
        if transport.is_socket_closed:
            return
        if self._is_off or self._opened.done():
            transport.close_by_kernel()
            return
        self._network.log(self._source, "connected", self._describe())
        self._opened.set_result(transport)

    def _on_refused(self) -> None:
        self._network.log(self._source, "refused", self._describe())
        text = f"Connect call failed {self._target}"
        self._fail(ConnectionRefusedError(errno.ECONNREFUSED, text))

    def _fail(self, error: OSError) -> None:
        if not self._opened.done():
            self._opened.set_exception(error)

    def _describe(self) -> str:
        name = self._host.name if self._host is not None else "no host"
        return f"to {name} at {self._target[0]}:{self._target[1]}"

    # Called by the host of the caller.

    def close_by_kernel(self) -> None:
        """Abort because the calling process ended, or the host has no power."""
        self._is_off = True

    power_off = close_by_kernel
