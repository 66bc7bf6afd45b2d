"""Protocols that remember what transports tell them, and let a test wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

HOST = "127.0.0.1"


class Recorder(asyncio.Protocol):
    """Remembers what it is told, and lets a test wait for it."""

    stays_open = False

    def __init__(self) -> None:
        self.told: list[str] = []
        self.data = bytearray()
        self.losses: list[Exception | None] = []
        self.transport: asyncio.Transport
        self._changed = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.BaseTransport) or hasattr(transport, "write")
        self.transport = transport  # type: ignore[assignment]  # uvloop's derive from nothing.
        self._tell("made")

    def data_received(self, data: bytes) -> None:
        self.data += data
        self._tell("data")

    def eof_received(self) -> bool:
        self._tell("eof")
        return self.stays_open

    def connection_lost(self, exc: Exception | None) -> None:
        self.losses.append(exc)
        self._tell("lost")

    def pause_writing(self) -> None:
        self._tell("pause")

    def resume_writing(self) -> None:
        self._tell("resume")

    def _tell(self, what: str) -> None:
        self.told.append(what)
        self._changed.set()

    async def until(self, holds: Callable[[Recorder], bool]) -> None:
        while not holds(self):
            self._changed.clear()
            await self._changed.wait()

    async def until_told(self, what: str) -> None:
        await self.until(lambda recorder: what in recorder.told)

    async def until_received(self, size: int) -> None:
        await self.until(lambda recorder: len(recorder.data) >= size)


class Lasting(Recorder):
    """Writes on after the peer has ended."""

    stays_open = True


class Fragile(Recorder):
    """Fails on the first data."""

    def data_received(self, data: bytes) -> None:
        raise ValueError("planted")


class FragileLikeTheSystem(Recorder):
    """Fails on the first data with an error that a socket could have raised."""

    def data_received(self, data: bytes) -> None:
        raise ConnectionError("planted")


class IntoPlace(asyncio.BufferedProtocol):
    """Reads to a buffer of its own for another protocol."""

    def __init__(self, owner: Recorder, size: int) -> None:
        self._owner = owner
        self._buffer = bytearray(size)

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)

    def buffer_updated(self, nbytes: int) -> None:
        self._owner.data_received(bytes(self._buffer[:nbytes]))

    def eof_received(self) -> bool:
        return self._owner.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._owner.connection_lost(exc)


@asynccontextmanager
async def connection(
    near_kind: type[Recorder] = Recorder, far_kind: type[Recorder] = Recorder
) -> AsyncIterator[tuple[Recorder, Recorder]]:
    """Two protocols that talk: the one that dialed, and the one that was accepted."""
    loop = asyncio.get_running_loop()
    accepted: asyncio.Queue[Recorder] = asyncio.Queue()

    def accept() -> Recorder:
        recorder = far_kind()
        accepted.put_nowait(recorder)
        return recorder

    server = await loop.create_server(accept, HOST, 0)
    port = server.sockets[0].getsockname()[1]
    _, near = await loop.create_connection(near_kind, HOST, port)
    far = await accepted.get()
    await far.until_told("made")
    try:
        yield near, far
    finally:
        server.close()
        for recorder in (near, far):
            if not recorder.losses:
                recorder.transport.abort()
            await recorder.until_told("lost")


class Mailbox(asyncio.DatagramProtocol):
    """Remembers datagrams and errors, and lets a test wait for them."""

    def __init__(self) -> None:
        self.received: asyncio.Queue[tuple[bytes, tuple[str, int]]] = asyncio.Queue()
        self.errors: asyncio.Queue[Exception] = asyncio.Queue()
        self.closed = asyncio.Event()

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self.received.put_nowait((data, addr))

    def error_received(self, exc: Exception) -> None:
        self.errors.put_nowait(exc)

    def connection_lost(self, exc: Exception | None) -> None:
        assert exc is None
        self.closed.set()
