"""One connection to a NATS server. What is published in one turn of the loop leaves at once."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import Callable
from typing import Any, cast

from postroad.core.errors import MalformedPayloadError
from postroad.core.log_throttle import ThrottledLogger
from postroad.services.errors import BrokerDisconnectedError, QueueIsFullError

from .nats_protocol import (
    PING,
    PONG,
    NatsParser,
    ServerInfo,
    connect,
    subscribe,
    unsubscribe,
)
from .outbox import HIGH_BYTES, PACKET_COST, WAITING_BYTES_MAX

logger = logging.getLogger("postroad.services.transporters")

_LOG_INTERVAL_S = 10.0
# What servers say and keep the connection.
_HARMLESS = ("permissions violation", "invalid subject", "invalid publish subject")

Received = Callable[[bytes, bytes], None]
"""Gets the number of a subscription, and what came for it."""


class NatsConnection(asyncio.Protocol):
    """A connection, from when it is made until it is lost.

    Attributes:
        lost: done when the connection ended.
        facts: what the server said of itself last.
    """

    def __init__(self, received: Received) -> None:
        loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[None] = loop.create_future()
        self.facts = ServerInfo()
        # Told of messages; nobody is before the server has let us in.
        self.message: Received = self._refuse
        self._received = received
        self._loop = loop
        self._parser = NatsParser(self)
        self._introduced: asyncio.Future[bool] = loop.create_future()
        self._transport: asyncio.Transport | None = None
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._can_write = asyncio.Event()
        self._can_write.set()
        self._pongs: deque[asyncio.Future[bool]] = deque()
        self._sids = 0
        self._signs_of_life = 0
        self._complaint = ""
        self._log = ThrottledLogger(logger, _LOG_INTERVAL_S)

    # What a user of the connection does.

    def publish(self, head: bytes, data: bytes) -> None:
        """Send a message soon; `head` is made by `publish_head`."""
        if self._transport is None:
            raise BrokerDisconnectedError
        size = len(data)
        if self._out_bytes + size > WAITING_BYTES_MAX:
            raise QueueIsFullError(
                f"{self._out_bytes} bytes wait to be sent; {WAITING_BYTES_MAX} is the most"
            )
        self._write(b"%b%d\r\n%b\r\n" % (head, size, data))

    def subscribe(self, subject: str, queue: str | None = None) -> bytes:
        """Hear messages of a subject; says the number of the subscription."""
        self._sids += 1
        self._write(subscribe(subject, self._sids, queue))
        return str(self._sids).encode()

    def unsubscribe(self, sid: bytes) -> None:
        self._write(unsubscribe(sid))

    def ask(self) -> asyncio.Future[bool]:
        """Send a ping. Done when it is answered; False if the connection was lost before."""
        pong: asyncio.Future[bool] = self._loop.create_future()
        if self.lost.done():
            pong.set_result(False)
            return pong
        self._pongs.append(pong)
        self._write(PING)
        return pong

    async def confirm(self) -> None:
        """Return when the server has seen all that was sent before; raises OSError if it cannot."""
        if not await self.ask():
            raise self.reason()

    async def drain(self) -> None:
        """Wait while much waits to be sent."""
        if self._out_bytes > HIGH_BYTES:
            self._flush()
        await self._can_write.wait()

    async def watch(self, interval_s: float) -> None:
        """Return when the connection is lost; raises TimeoutError when the server falls silent."""
        while not self.lost.done():
            signs, backlog = self._signs_of_life, self._backlog()
            # Done too when the connection is lost.
            await asyncio.wait([self.ask()], timeout=interval_s)
            # Behind much that waits to be sent, a ping has to wait too.
            is_moving = self._signs_of_life != signs or self._backlog() < backlog
            if not is_moving and not self.lost.done():
                raise TimeoutError(f"the server was silent for {interval_s:g} s")
            await asyncio.wait([self.lost], timeout=interval_s)

    def abort(self) -> None:
        """End the connection at once; nothing is received any more."""
        transport = self._transport
        self._lose()
        if transport is not None:
            transport.abort()

    def reason(self) -> ConnectionError:
        """Why the connection is lost."""
        return ConnectionError(self._complaint or "the server closed the connection")

    # What is done once, at the start.

    async def introduced(self) -> None:
        """Return when the server has said what it is."""
        if not await self._introduced:
            raise self.reason()

    async def encrypt(self, context: ssl.SSLContext, host: str) -> None:
        if self._transport is None:
            raise self.reason()
        if not self.facts.has_tls:
            raise ConnectionError("the server offers no TLS")
        if self._parser.is_within_word:
            # Anybody on the way may have written it, and what follows would be taken for its rest.
            raise ConnectionError("the server says more than who it is before TLS")
        upgraded = await self._loop.start_tls(self._transport, self, context, server_hostname=host)
        self.connection_made(cast("asyncio.Transport", upgraded))

    async def enter(self, options: dict[str, Any]) -> None:
        """Say who we are; returns when the server has let us in."""
        self.message = self._received
        self._write(connect(options))
        await self.confirm()

    # What the loop tells.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=HIGH_BYTES)

    def data_received(self, data: bytes) -> None:
        if self.lost.done():
            return
        self._signs_of_life += 1
        try:
            self._parser.feed(data)
        except MalformedPayloadError as error:
            self._complaint = f"the server speaks nonsense: {error}"
            self.abort()

    def connection_lost(self, error: Exception | None) -> None:
        if error is not None and not self._complaint:
            self._complaint = str(error) or type(error).__name__
        self._lose()

    def pause_writing(self) -> None:
        self._can_write.clear()

    def resume_writing(self) -> None:
        self._signs_of_life += 1
        self._can_write.set()
        self._flush()

    # What the server says; `message` is what was given at the start, once that may be told.

    def _refuse(self, _sid: bytes, _data: bytes) -> None:
        raise MalformedPayloadError("a message before it has let us in")

    def info(self, info: ServerInfo) -> None:
        self.facts = info
        if not self._introduced.done():
            self._introduced.set_result(True)

    def ping(self) -> None:
        self._write(PONG)

    def pong(self) -> None:
        if self._pongs and not (pong := self._pongs.popleft()).done():
            pong.set_result(True)

    def error(self, text: str) -> None:
        """Most end the connection, and are the reason then."""
        if not text.lower().startswith(_HARMLESS):
            self._complaint = f"the server says: {text}"
        self._log.log(text[:40], self._loop.time(), "nats: the server says: %.200s", text)

    # What waits to be sent.

    def _write(self, data: bytes) -> None:
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(data)
        self._out_bytes += len(data) + PACKET_COST

    def _flush(self) -> None:
        """Give all to the transport, unless that has too much already."""
        transport = self._transport
        if self._out and transport is not None and self._can_write.is_set():
            data = b"".join(self._out)
            self._out.clear()
            self._out_bytes = 0
            if not transport.is_closing():
                transport.write(data)

    def _backlog(self) -> int:
        """How much the transport cannot get rid of; little is not counted."""
        if self._transport is None or self._can_write.is_set():
            return 0
        return self._transport.get_write_buffer_size()

    def _lose(self) -> None:
        if self.lost.done():
            return
        self.lost.set_result(None)
        self._transport = None
        self._out.clear()
        self._out_bytes = 0
        self._can_write.set()
        for waiting in (self._introduced, *self._pongs):
            if not waiting.done():
                waiting.set_result(False)
        self._pongs.clear()
