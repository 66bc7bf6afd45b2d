"""Servers of the memory network."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any, NamedTuple

from postroad.testing.simulation.network.hosts import SimHost, SocketAddress
from postroad.testing.simulation.network.pipe import Pipe
from postroad.testing.simulation.network.transport import MemoryTransport, reset_error

if TYPE_CHECKING:
    from postroad.testing.simulation.network.network import MemoryNetwork


class BoundSocket(NamedTuple):
    """A listening socket as `asyncio.Server.sockets` shows it."""

    name: SocketAddress
    type: int
    family: int = socket.AF_INET

    def getsockname(self) -> SocketAddress:
        return self.name

    def __repr__(self) -> str:
        return f"<BoundSocket {self.name[0]}:{self.name[1]}>"


class MemoryListener:
    """A port at which a server listens, in the kernel of its host."""

    def __init__(self, host: SimHost, server: MemoryServer, address: str, port: int) -> None:
        self._host = host
        self.server = server
        self.address = address
        self.port = host.listeners.bind(address, port, self)
        host.sockets[self] = None

    def release(self) -> None:
        if self._host.sockets.pop(self, self) is None:
            self._host.listeners.release(self.address, self.port)

    def close_by_kernel(self) -> None:
        """End the server because the process ended, or the host has no power."""
        self.server.end()

    power_off = close_by_kernel


class MemoryServer(asyncio.AbstractServer):
    """The simulated `asyncio.Server`."""

    def __init__(
        self, network: MemoryNetwork, host: SimHost, factory: Callable[[], asyncio.BaseProtocol]
    ) -> None:
        self._network = network
        self._host = host
        self._factory = factory
        self._context = copy_context()
        self._listeners: list[MemoryListener] = []
        self._is_serving = False
        self._is_closed = False
        # Open accepted connections, oldest first.
        self._open: dict[MemoryTransport, None] = {}
        self._all_closed: asyncio.Future[None] = network.loop.create_future()
        self._forever: asyncio.Future[None] | None = None

    def bind(self, addresses: list[str], port: int) -> None:
        try:
            for address in addresses:
                listener = MemoryListener(self._host, self, address, port)
                self._listeners.append(listener)
                port = port or listener.port
        except OSError:
            self.close()
            raise

    # The interface of asyncio.Server.

    @property
    def sockets(self) -> tuple[Any, ...]:
        """The bound addresses; empty once closed."""
        return tuple(
            BoundSocket((listener.address, listener.port), socket.SOCK_STREAM)
            for listener in self._listeners
        )

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._network.loop

    def is_serving(self) -> bool:
        return self._is_serving

    async def start_serving(self) -> None:
        self._is_serving = bool(self._listeners)

    async def serve_forever(self) -> None:
        """Serve until cancelled or closed."""
        await self.start_serving()
        self._forever = self._network.loop.create_future()
        try:
            await self._forever
        finally:
            self._forever = None
            self.close()

    def close(self) -> None:
        """Stop listening; accepted connections stay open."""
        self._is_serving = False
        self._is_closed = True
        for listener in self._listeners:
            listener.release()
        self._listeners = []
        if self._forever is not None and not self._forever.done():
            self._forever.cancel()
        self._complete_if_closed()

    def close_clients(self) -> None:
        for transport in list(self._open):
            transport.close()

    def abort_clients(self) -> None:
        for transport in list(self._open):
            transport.abort()

    async def wait_closed(self) -> None:
        """Return when the server and every connection it accepted are closed."""
        await asyncio.shield(self._all_closed)

    def on_transport_closed(self, transport: MemoryTransport) -> None:
        self._open.pop(transport, None)
        self._complete_if_closed()

    def _complete_if_closed(self) -> None:
        if self._is_closed and not self._open and not self._all_closed.done():
            self._all_closed.set_result(None)

    # Called by the network.

    def end(self) -> None:
        self._is_serving = False

    def new_context(self) -> Context:
        """Return a context for the callbacks of a connection."""
        return self._context.copy()

    def accept(self, transport: MemoryTransport, context: Context) -> None:
        """Accept a connection when the process runs next."""
        self._network.loop.call_soon(self._start, transport, context=context)

    def _start(self, transport: MemoryTransport) -> None:
        if self._is_serving:
            self._open[transport] = None
            transport.start(self._factory(), None)
        elif not transport.is_socket_closed:
            self._network.break_connection(transport, reset_error())


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
