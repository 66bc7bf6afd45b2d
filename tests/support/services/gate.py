"""A gate in front of a server that is too slow to be started anew for every test."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.support.deadlines import DEADLINE_S
from tests.support.servers.process import free_port

_CHUNK_BYTES = 64 * 1024


class Gate:
    """Whoever looks at it sees a server that is killed, paused and started; the real one runs on.

    Args:
        to_port: of the server.
        tls: what is spoken outside, if not what the server speaks.
    """

    def __init__(self, to_port: int, tls: ssl.SSLContext | None = None) -> None:
        self._to_port = to_port
        self._tls = tls
        self.port = free_port()
        self._listener: asyncio.Server | None = None
        self._is_flowing = asyncio.Event()
        self._passing: set[asyncio.Task[None]] = set()
        self._outside: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        self._is_flowing.set()
        self._listener = await asyncio.start_server(
            self._enter, "127.0.0.1", self.port, ssl=self._tls
        )

    async def kill(self) -> None:
        """Cut all connections; returns when the server has let go of them."""
        if self._listener is not None:
            self._listener.close()
        self._listener = None
        for writer in self._outside:
            writer.transport.abort()
        self._is_flowing.set()
        if self._passing:
            await asyncio.wait(self._passing, timeout=DEADLINE_S)

    async def pause(self) -> None:
        """Pass nothing on: connections stay open."""
        self._is_flowing.clear()

    async def resume(self) -> None:
        self._is_flowing.set()

    async def _enter(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._passing.add(task)
        self._outside.add(writer)
        try:
            await self._is_flowing.wait()
            from_server, to_server = await asyncio.open_connection("127.0.0.1", self._to_port)
            await asyncio.gather(
                self._pump(reader, to_server), self._pump(from_server, writer, is_outwards=True)
            )
            to_server.close()
        finally:
            self._outside.discard(writer)
            self._passing.discard(task)
            writer.close()

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        is_outwards: bool = False,
    ) -> None:
        """Pass on what comes, then its end; what nobody outside wants any more is dropped."""
        while True:
            await self._is_flowing.wait()
            try:
                data = await reader.read(_CHUNK_BYTES)
            except OSError:
                data = b""
            if not data:
                break
            await self._is_flowing.wait()
            try:
                writer.write(data)
                await writer.drain()
            except OSError:
                if not is_outwards:
                    break
        if writer.can_write_eof() and not writer.is_closing():
            writer.write_eof()


@asynccontextmanager
async def gate_to(port: int, tls: ssl.SSLContext | None = None) -> AsyncIterator[Gate]:
    """An open gate, closed at the end."""
    gate = Gate(port, tls)
    await gate.start()
    try:
        yield gate
    finally:
        await gate.kill()
