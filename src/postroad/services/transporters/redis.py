"""Packets through Redis: each topic is a channel. One connection listens, another publishes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from postroad.core.errors import ConfigError
from postroad.core.limits import KIB, MIB
from postroad.core.log_throttle import ThrottledLogger
from postroad.services.kinds import Kind

from .reconnecting import CONNECT_TIMEOUT_S
from .redis_servers import (
    TlsFiles,
    make_connection,
    mapped_errors,
    need_redis,
    parse_server,
    take_answers,
)
from .sessions import SessionTransporter

logger = logging.getLogger("postroad.services.transporters")

URL = "redis://127.0.0.1:6379"
PING_INTERVAL_S = 10.0
PACKET_BYTES_MAX = 16 * MIB
"""By default a server throws out who has more than 32 MB to read."""
_BATCH_BYTES = 256 * KIB
_LOG_INTERVAL_S = 10.0


class RedisTransporter(SessionTransporter):
    """Carries packets through a Redis server.

    It is several times as fast where the package hiredis is installed.

    Args:
        url: `redis://user:password@host:6379/0`, or `rediss://` for TLS. Channels are the same
            in all databases; some servers let people into certain ones only.
        user: instead of that in the URL.
        password: instead of that in the URL.
        tls_ca: a file with those who may vouch for the server; by default as the machine has it.
        tls_cert: a file with our own certificate.
        tls_key: a file with its key.
        connect_timeout_s: how long connecting may take.
        ping_interval_s: a server that was silent for so long after a ping is given up.
        packet_bytes_max: the largest packet.

    Raises:
        ConfigError: the URL or a file is wrong.
        MissingExtraError: the `redis` extra is not installed.
    """

    name = "redis"

    def __init__(
        self,
        url: str = URL,
        *,
        user: str | None = None,
        password: str | None = None,
        tls_ca: str | None = None,
        tls_cert: str | None = None,
        tls_key: str | None = None,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        ping_interval_s: float = PING_INTERVAL_S,
        packet_bytes_max: int = PACKET_BYTES_MAX,
    ) -> None:
        super().__init__(connect_timeout_s=connect_timeout_s)
        need_redis()
        self._server = parse_server(url, user=user, password=password)
        self._files = TlsFiles(tls_ca, tls_cert, tls_key)
        self._files.check()
        if packet_bytes_max < 1:
            raise ConfigError(f"packet_bytes_max is {packet_bytes_max}; it must be above 0")
        self._ping_interval_s = ping_interval_s
        self._packet_bytes_max = packet_bytes_max
        self._writer: Any = None
        # What was sent and is not answered, how often the server answered, and was heard.
        self._unanswered = 0
        self._answered = 0
        self._heard = 0
        self._is_answered = asyncio.Event()
        self._log = ThrottledLogger(logger, _LOG_INTERVAL_S)

    @property
    def packet_bytes_max(self) -> int:
        return self._packet_bytes_max

    def publish(self, kind: Kind, node_id: str | None, data: bytes) -> None:
        self._put(self.topics.name_of(kind, node_id), data)

    # A session.

    async def _session(self, ready: Callable[[], None]) -> None:
        try:
            async with self._connection() as listening:
                kinds = await self._subscribe(listening)
                async with self._connection() as publishing, asyncio.TaskGroup() as tasks:
                    self._writer = publishing
                    self._unanswered = 0
                    self._is_answered.set()
                    tasks.create_task(self._listen(listening, kinds))
                    tasks.create_task(take_answers(publishing, self._on_answer))
                    tasks.create_task(self._watch(listening, publishing))
                    ready()
        finally:
            self._writer = None
            self._is_answered.set()

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Any]:
        connection = make_connection(self._server, self._files, self._connect_timeout_s)
        if self._server.is_encrypted:
            # Reading all that a machine trusts takes a while.
            await asyncio.to_thread(connection.ssl_context.get)
        with mapped_errors():
            await connection.connect()
        # The client library forgets it when a call is canceled.
        transport = connection._writer.transport
        try:
            yield connection
        finally:
            await connection.disconnect(nowait=True)
            # What a server that hangs does not read would keep it open.
            transport.abort()

    async def _subscribe(self, connection: Any) -> dict[bytes, Kind]:
        """Subscribe to everything; says the kinds of packets by channel."""
        topics = self.topics.subscriptions(has_acks=True)
        with mapped_errors():
            await connection.send_command("SUBSCRIBE", *topics)
            for _ in topics:
                await connection.read_response()
        return {topic.encode(): self.topics.parse(topic).kind for topic in topics}

    async def _listen(self, connection: Any, kinds: dict[bytes, Kind]) -> None:
        received = self.listener.received
        with mapped_errors():
            while True:
                said = await connection.read_response()
                self._heard += 1
                if said[0] == b"message" and (kind := kinds.get(said[1])) is not None:
                    received(kind, said[2])

    def _on_answer(self, refusal: str | None) -> None:
        if refusal is not None:
            now = asyncio.get_running_loop().time()
            self._log.log("refused", now, "redis: a packet was refused: %s", refusal)
        self._answered += 1
        self._unanswered -= 1
        if not self._unanswered:
            self._is_answered.set()

    async def _watch(self, listening: Any, publishing: Any) -> None:
        """Raise TimeoutError when the server falls silent on one of the connections."""
        while True:
            heard, answered = self._heard, self._answered
            with mapped_errors():
                await listening.send_command("PING", check_health=False)
                if not self._unanswered:
                    self._expect_answers(1)
                    await publishing.send_command("PING", check_health=False)
            await asyncio.sleep(self._ping_interval_s)
            if heard == self._heard or answered == self._answered:
                raise TimeoutError(f"the server was silent for {self._ping_interval_s:g} s")

    # Sending.

    async def _send_all(self) -> None:
        """Send what waits in batches: it is one command and one answer for each packet anyway."""
        while True:
            batch = [await self._outbox.take()]
            size = len(batch[0][1])
            while len(self._outbox) and size < _BATCH_BYTES:
                batch.append(self._outbox.take_now())
                size += len(batch[-1][1])
            await self._send_batch(batch)
            if not len(self._outbox):
                self._is_idle.set()

    async def _send(self, to: object, data: bytes) -> None:
        await self._send_batch([(to, data)])

    async def _send_batch(self, batch: list[tuple[object, bytes]]) -> None:
        self._expect_answers(len(batch))
        with mapped_errors():
            await self._writer.send_packed_command(_packed(batch), check_health=False)

    async def _flush(self) -> None:
        await super()._flush()
        await self._is_answered.wait()

    def _expect_answers(self, number: int) -> None:
        self._unanswered += number
        self._is_answered.clear()


def _packed(batch: list[tuple[object, bytes]]) -> bytes:
    """Commands to publish these, as Redis reads them."""
    parts = []
    for topic, data in batch:
        name = str(topic).encode()
        sizes = (len(name), name, len(data))
        parts += [b"*3\r\n$7\r\nPUBLISH\r\n$%d\r\n%b\r\n$%d\r\n" % sizes, data, b"\r\n"]
    return b"".join(parts)
