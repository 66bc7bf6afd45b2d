"""A TCP proxy that can be told to stop forwarding, or to cut what it carries."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from postroad.net import Address


class Proxy:
    """Forwards connections to one address.

    While it is mute, it accepts and keeps connections and reads them, but forwards nothing: like
    a network that drops packets and tells nobody.
    """

    def __init__(self, target: Address) -> None:
        self._target = target
        self._is_mute = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._forwarding: set[asyncio.Task[None]] = set()
        self.address: Address
        # Bytes that were forwarded, and those that were not.
        self.carried = self.dropped = 0

    def mute(self) -> None:
        """Forward nothing more; the connections stay, but are dead from now on."""
        self._is_mute = True

    def unmute(self) -> None:
        """Forward what comes on new connections; what was mute stays so."""
        self._is_mute = False
        for task in self._forwarding:
            task.cancel()

    def cut(self) -> None:
        """Break all connections."""
        for writer in self._writers:
            writer.transport.abort()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = self._target.host, self._target.port
        there_reader, there_writer = await asyncio.open_connection(host, port)
        loop = asyncio.get_running_loop()
        for source, sink in ((reader, there_writer), (there_reader, writer)):
            self._writers.add(sink)
            task = loop.create_task(self._forward(source, sink))
            self._forwarding.add(task)
            task.add_done_callback(self._forwarding.discard)

    async def _forward(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            # A connection that breaks ends like one that is closed.
            with contextlib.suppress(ConnectionError):
                while data := await source.read(65_536):
                    if self._is_mute:
                        self.dropped += len(data)
                        continue
                    self.carried += len(data)
                    sink.write(data)
                    await sink.drain()
        finally:
            self._writers.discard(sink)
            sink.transport.abort()

    async def close(self) -> None:
        for task in list(self._forwarding):
            task.cancel()
        await asyncio.gather(*self._forwarding, return_exceptions=True)


@asynccontextmanager
async def proxy_to(target: Address) -> AsyncIterator[Proxy]:
    """A proxy that runs on a port of its own."""
    proxy = Proxy(target)
    server = await asyncio.start_server(proxy.accept, "127.0.0.1", 0)
    proxy.address = Address("127.0.0.1", server.sockets[0].getsockname()[1])
    try:
        yield proxy
    finally:
        server.close()
        await proxy.close()
        await server.wait_closed()
