"""Packets through NATS: each topic is a subject, and queues share what is balanced.

It needs no client library: the little of the protocol that packets use is spoken by itself.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress

from postroad._version import __version__
from postroad.core.errors import ConfigError, MessageTooLargeError
from postroad.services.errors import BrokerDisconnectedError
from postroad.services.kinds import Kind
from postroad.services.topics import BalancedTopic, is_heard_on_nats, nats_pattern, nats_subject

from .dialing import dial_in_turn
from .nats_connection import NatsConnection
from .nats_protocol import publish_head
from .nats_servers import NatsServer, parse_servers
from .reconnecting import CONNECT_TIMEOUT_S, ReconnectingTransporter

logger = logging.getLogger("postroad.services.transporters")

URL = "nats://127.0.0.1:4222"
PING_INTERVAL_S = 10.0
_REMEMBERED_MAX = 4_096


class NatsTransporter(ReconnectingTransporter):
    """Carries packets through NATS servers.

    Args:
        url: a server, or several with commas in between, as
            `nats://user:password@one:4222,two:4222`; `nats://token@one` for a token, `tls://one`
            to insist on TLS. Whatever they say of other servers is not followed.
        user: instead of that in the URL, with `password`.
        token: instead of that in the URL.
        tls: whom to trust, and our own certificate; by default as the machine has it. A server
            that requires TLS gets it in any case.
        connect_timeout_s: how long connecting may take, all servers together.
        ping_interval_s: a server that was silent for so long after a ping is given up.

    Raises:
        ConfigError: the URL is wrong.
    """

    name = "nats"
    balances = True

    def __init__(
        self,
        url: str = URL,
        *,
        user: str | None = None,
        password: str | None = None,
        token: str | None = None,
        tls: ssl.SSLContext | None = None,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        ping_interval_s: float = PING_INTERVAL_S,
    ) -> None:
        super().__init__(connect_timeout_s=connect_timeout_s)
        self._servers = deque(parse_servers(url, user=user, password=password, token=token))
        self._tls = tls
        self._ping_interval_s = ping_interval_s
        self._packet_bytes_max: int | None = None
        self._connection: NatsConnection | None = None
        self._heads: dict[str, bytes] = {}
        # By number, and what of it is balanced.
        self._kinds: dict[bytes, Kind] = {}
        self._sids: dict[BalancedTopic, bytes] = {}
        self._wanted: frozenset[BalancedTopic] = frozenset()

    @property
    def packet_bytes_max(self) -> int | None:
        """What the server said last; None before the first connection."""
        connection = self._connection
        return self._packet_bytes_max if connection is None else connection.facts.max_payload

    def publish(self, kind: Kind, node_id: str | None, data: bytes) -> None:
        self._publish(self.topics.name_of(kind, node_id), data)

    def publish_balanced(self, topic: str, kind: Kind, data: bytes) -> None:
        self._publish(topic, data)

    async def listen_balanced(self, topics: Iterable[BalancedTopic]) -> None:
        self._wanted = frozenset(topics)
        connection = self._connection
        if connection is None:
            return
        gone = self._subscribe_balanced(connection)
        # Otherwise it is done when the server answers again, or with the next connection.
        with suppress(OSError):
            async with asyncio.timeout(self._connect_timeout_s):
                await connection.confirm()
        for sid in gone:
            self._kinds.pop(sid, None)

    async def drain(self) -> None:
        if self._connection is not None:
            await self._connection.drain()

    def _publish(self, topic: str, data: bytes) -> None:
        connection = self._connection
        if connection is None:
            raise BrokerDisconnectedError
        if len(data) > connection.facts.max_payload:
            limit = connection.facts.max_payload
            raise MessageTooLargeError(
                f"a packet of {len(data)} bytes; {self.name} carries {limit}"
            )
        connection.publish(self._heads.get(topic) or self._make_head(topic), data)

    def _make_head(self, topic: str) -> bytes:
        if len(self._heads) >= _REMEMBERED_MAX:
            self._heads.clear()
        head = self._heads[topic] = publish_head(nats_subject(topic))
        return head

    # A session.

    async def _run_session(self, ready: Callable[[], None]) -> None:
        connection = await dial_in_turn(
            self._servers, self._dial_at, timeout_s=self._connect_timeout_s
        )
        try:
            self._subscribe(connection)
            await connection.confirm()
            self._packet_bytes_max = connection.facts.max_payload
            self._connection = connection
            # What was asked for while we waited.
            self._subscribe_balanced(connection)
            ready()
            await connection.watch(self._ping_interval_s)
            raise connection.reason()
        finally:
            self._connection = None
            connection.abort()

    async def _flush(self) -> None:
        connection = self._connection
        if connection is None:
            return
        # Until the server notices that we are gone, it would give us our share of each queue.
        for sid in self._sids.values():
            connection.unsubscribe(sid)
        await connection.confirm()

    async def _dial_at(self, server: NatsServer) -> NatsConnection:
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: NatsConnection(self._received), server.host, server.port
        )
        try:
            await connection.introduced()
            if server.is_encrypted or self._tls is not None or connection.facts.tls_required:
                await connection.encrypt(await self._tls_context(), server.host)
            await connection.enter(self._introduction() | server.credentials())
        except BaseException:
            connection.abort()
            raise
        return connection

    async def _tls_context(self) -> ssl.SSLContext:
        if self._tls is None:
            # Reading all that a machine trusts takes a while.
            self._tls = await asyncio.to_thread(ssl.create_default_context)
        return self._tls

    def _introduction(self) -> dict[str, object]:
        return {
            "verbose": False,
            "pedantic": False,
            # Our own packets come back: one of them may be for a queue that we listen to.
            "echo": True,
            "headers": False,
            "protocol": 1,
            "lang": "python",
            "version": __version__,
            "name": self.topics.node_id,
        }

    # Subscriptions.

    def _subscribe(self, connection: NatsConnection) -> None:
        """Hear what is for this node on a new connection, whose numbers begin again."""
        self._kinds = {}
        self._sids = {}
        for topic in self.topics.subscriptions(has_acks=True):
            sid = connection.subscribe(nats_subject(topic))
            self._kinds[sid] = self.topics.parse(topic).kind
        self._subscribe_balanced(connection)

    def _subscribe_balanced(self, connection: NatsConnection) -> list[bytes]:
        """Hear what is wanted and not heard; says the numbers of what is not wanted any more.

        What is under way for those still comes, and is taken until the server confirms.
        """
        for topic in self._wanted - self._sids.keys():
            if subject := _subject_of(topic):
                sid = self._sids[topic] = connection.subscribe(subject, topic.queue)
                self._kinds[sid] = topic.kind
        gone = [self._sids.pop(topic) for topic in self._sids.keys() - self._wanted]
        for sid in gone:
            connection.unsubscribe(sid)
        return gone

    def _received(self, sid: bytes, data: bytes) -> None:
        kind = self._kinds.get(sid)
        if kind is not None:
            self.listener.received(kind, data)


def _subject_of(topic: BalancedTopic) -> str | None:
    """What to subscribe to; a name that cannot be heard must not keep others from being heard."""
    try:
        if topic.kind is not Kind.EVENT:
            return nats_subject(topic.name)
        if not is_heard_on_nats(topic.name):
            logger.warning("nats: %s matches nothing in the way it is written", topic.name)
        return nats_pattern(topic.name)
    except ConfigError as error:
        logger.error("nats: %s is not listened to: %s", topic.queue, error)
        return None
