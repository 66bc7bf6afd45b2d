"""The bytes of a connection to an AMQP server: packets are taken out, all else is left alone."""

from __future__ import annotations

import asyncio
import ssl
from asyncio import StreamReader, StreamWriter

from postroad.core.errors import MalformedPayloadError

from .amqp_frames import HEARTBEAT_FRAME, Delivered, FrameSorter, closing_words


class AmqpWire(asyncio.StreamReaderProtocol):
    """The bytes of a connection: packets go to us, everything else to aiormq."""

    def __init__(self, delivered: Delivered, heartbeat_s: int) -> None:
        self._own_loop = asyncio.get_running_loop()
        self._reader = StreamReader(loop=self._own_loop)
        super().__init__(self._reader, loop=self._own_loop)
        self._writer: StreamWriter | None = None
        self._heartbeat_s = heartbeat_s
        self._alive_at = self._own_loop.time()
        self.sorter = FrameSorter(delivered, self._pass)
        self.last_words = ""
        """Why the server closes the connection."""

    async def dial(self, host: str, port: int, tls: ssl.SSLContext | None) -> None:
        transport, _ = await self._own_loop.create_connection(lambda: self, host, port, ssl=tls)
        self._writer = StreamWriter(transport, self, self._reader, self._own_loop)

    @property
    def streams(self) -> tuple[StreamReader, StreamWriter]:
        """For who knows the whole protocol; there is nothing of packets in them."""
        if self._writer is None:
            raise ConnectionError("there is no connection")
        return self._reader, self._writer

    async def write(self, data: bytes) -> None:
        if self._writer is None or self._writer.transport.is_closing():
            raise ConnectionError("the connection is lost")
        self._writer.write(data)
        await self._writer.drain()

    def abort(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort()

    def _pass(self, frame: bytes) -> None:
        self.last_words = closing_words(frame) or self.last_words
        super().data_received(frame)

    def data_received(self, data: bytes) -> None:
        try:
            self.sorter.feed(data)
        except MalformedPayloadError:
            self.abort()
            return
        now = self._own_loop.time()
        if self.sorter.channel and now - self._alive_at > self._heartbeat_s / 2:
            # A server that sends packets sends no heartbeats, and aiormq sees only those.
            self._alive_at = now
            super().data_received(HEARTBEAT_FRAME)
