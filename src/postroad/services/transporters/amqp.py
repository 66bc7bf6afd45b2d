"""Packets through RabbitMQ, or whoever else speaks AMQP 0-9-1.

A packet for a node goes into a queue of that node, one for each kind; a packet for all goes to an
exchange that puts it into the queues of all. Requests, and whatever is balanced, stay in their
queue until they are dealt with: if the connection or the node is lost before, they come again,
here or at another node. So they are handled at least once.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from postroad.core.errors import ConfigError
from postroad.core.limits import MIB
from postroad.services.errors import QueueIsFullError
from postroad.services.kinds import Kind
from postroad.services.topics import BROADCAST, BalancedTopic, Topics

from .amqp_link import AmqpLink, Received, need_aiormq
from .amqp_queues import (
    EXPIRES_S,
    QueueForms,
    can_be_declared,
    check_own_queue_name,
    check_queue_name,
    is_confirmed,
)
from .dialing import dial_in_turn
from .reconnecting import CONNECT_TIMEOUT_S
from .server_address import Scheme, ServerAddress, parse_address
from .sessions import SessionTransporter
from .transporter import Listener

logger = logging.getLogger("postroad.services.transporters")

URL = "amqp://127.0.0.1:5672"
PREFETCH = 100
HEARTBEAT_S = 10
PACKET_BYTES_MAX = 16 * MIB
"""What every RabbitMQ takes unless it is told otherwise."""
_SCHEMES = {"amqp": Scheme(5672, False), "amqps": Scheme(5671, True)}
_PREFETCH_MAX = 65_535
_HEARTBEAT_MAX_S = 600
# When there is no room to say that a packet was dealt with.
_AGAIN_S = 0.1


class _To(NamedTuple):
    """Where a packet goes."""

    exchange: str
    routing_key: str


class _Done(NamedTuple):
    """A packet was dealt with."""

    number: int


class AmqpTransporter(SessionTransporter):
    """Carries packets through an AMQP server.

    Args:
        url: the server, as `amqp://user:password@host:5672/vhost`, or `amqps://` for TLS; several
            with semicolons in between are tried one after the other.
        user: instead of that in the URL, with `password`; `guest` if there is none.
        prefetch: how many requests of a queue this node has at a time. Moleculer has 1, which
            lets one slow request keep all others waiting.
        queue_expires_s: after what time a queue that nobody listens to is deleted; never if None.
        event_ttl_s: how long an event waits for its node; as long as the queue is there if None.
        heartbeat_ttl_s: the same for heartbeats of nodes. These three must be the same at all
            nodes, and are 1000 times smaller than in Moleculer: there they are milliseconds.
        tls: whom to trust, and our own certificate; by default as the machine has it.
        packet_bytes_max: the largest packet that the server takes; one that is larger would cost
            the connection.
        connect_timeout_s: how long connecting may take, all servers together.
        heartbeat_s: how often both sides of the connection show that they are there; a server that
            was silent for somewhat more than three times as long is given up.

    Raises:
        ConfigError: the URL or an option is wrong.
        MissingExtraError: aiormq is not installed.
    """

    name = "amqp"
    balances = True

    def __init__(
        self,
        url: str = URL,
        *,
        user: str | None = None,
        password: str | None = None,
        prefetch: int = PREFETCH,
        queue_expires_s: float | None = EXPIRES_S,
        event_ttl_s: float | None = None,
        heartbeat_ttl_s: float | None = None,
        tls: ssl.SSLContext | None = None,
        packet_bytes_max: int | None = PACKET_BYTES_MAX,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        heartbeat_s: int = HEARTBEAT_S,
    ) -> None:
        super().__init__(connect_timeout_s=connect_timeout_s)
        self._servers = deque(
            parse_address(
                part.strip(), _SCHEMES, user=user, password=password, has_tls=tls is not None
            )
            for part in url.split(";")
            if part.strip()
        )
        if not self._servers:
            raise ConfigError("the URL of an AMQP server is empty")
        self._prefetch = _check_range("prefetch", prefetch, _PREFETCH_MAX)
        self._heartbeat_s = _check_range("heartbeat_s", heartbeat_s, _HEARTBEAT_MAX_S)
        self._forms = QueueForms(
            expires_s=queue_expires_s, event_ttl_s=event_ttl_s, heartbeat_ttl_s=heartbeat_ttl_s
        )
        self._tls = tls
        self._packet_bytes_max = packet_bytes_max
        need_aiormq()
        self._link: AmqpLink | None = None
        self._wanted: frozenset[BalancedTopic] = frozenset()
        # What is listened to on this connection, and what to cancel that with.
        self._consumers: dict[BalancedTopic, str] = {}
        self._is_listening = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def bind(self, topics: Topics, listener: Listener) -> None:
        super().bind(topics, listener)
        for kind in self._own_kinds():
            check_own_queue_name(topics.name_of(kind, topics.node_id))

    @property
    def packet_bytes_max(self) -> int | None:
        return self._packet_bytes_max

    def publish(self, kind: Kind, node_id: str | None, data: bytes) -> None:
        name = check_queue_name(self.topics.name_of(kind, node_id))
        self._put(_To(name, "") if node_id is None else _To("", name), data)

    def publish_balanced(self, topic: str, kind: Kind, data: bytes) -> None:
        self._put(_To("", check_queue_name(topic)), data)

    async def listen_balanced(self, topics: Iterable[BalancedTopic]) -> None:
        wanted = frozenset(topics)
        self._wanted = frozenset(it for it in wanted if can_be_declared(it.name))
        for topic in self._wanted:
            check_queue_name(topic.name)
        for topic in wanted - self._wanted:
            if "$" not in topic.name:  # What happens to a node it does not hear from the server.
                logger.warning("nothing comes to %r while the server balances", topic.name)
        if self._link is not None:
            listening = asyncio.create_task(self._listen_if_possible(self._link))
            self._tasks.add(listening)
            listening.add_done_callback(self._tasks.discard)
            # Otherwise it is done when the server answers again, or with the next connection.
            await asyncio.wait([listening], timeout=self._connect_timeout_s)

    # A session.

    async def _session(self, ready: Callable[[], None]) -> None:
        link = await dial_in_turn(self._servers, self._dial_at, timeout_s=self._connect_timeout_s)
        try:
            self._consumers = {}
            self._link = link
            await self._subscribe(link)
            ready()
            await link.watch()
        finally:
            self._link = None
            await link.close()

    async def _send(self, to: object, data: bytes) -> None:
        link = self._link
        if link is None:
            raise ConnectionError("the connection is lost")
        if isinstance(to, _Done):
            await link.confirm(to.number)
        elif isinstance(to, _To):
            await link.send(to.exchange, to.routing_key, data)

    async def _dial_at(self, server: ServerAddress) -> AmqpLink:
        if server.is_encrypted and self._tls is None:
            # Reading all that a machine trusts takes a while.
            self._tls = await asyncio.to_thread(ssl.create_default_context)
        link = AmqpLink(
            server,
            tls=self._tls,
            prefetch=self._prefetch,
            heartbeat_s=self._heartbeat_s,
            client_name=repr(self.topics),
        )
        try:
            await link.open()
        except BaseException:
            await link.close()
            raise
        return link

    # Queues.

    def _own_kinds(self) -> list[Kind]:
        """The kinds of packets that are heard; each has one queue, for this node and for all."""
        heard = self.topics.subscriptions(has_acks=True)
        return list(dict.fromkeys(self.topics.parse(topic).kind for topic in heard))

    async def _subscribe(self, link: AmqpLink) -> None:
        forms = {kind: self._forms.of(kind) for kind in self._own_kinds()}
        lasting = [kind for kind, form in forms.items() if not form.is_auto_deleted]
        for kind in lasting:
            await link.declare_queue(self._own_queue(kind), forms[kind])
        for kind in forms.keys() - lasting:
            # Soon after one another: a queue that is still there from the connection before goes
            # with that.
            queue = self._own_queue(kind)
            await link.declare_queue(queue, forms[kind])
            await self._get(link, queue, kind, is_confirmed(kind))
            if kind in BROADCAST:
                await link.bind_to_all(queue, self.topics.name_of(kind))
        await self._listen(link)
        # Last, as answers come behind all packets that are on their way to us.
        for kind in lasting:
            await self._get(link, self._own_queue(kind), kind, is_confirmed(kind))
        await link.settle()

    def _own_queue(self, kind: Kind) -> str:
        return self.topics.name_of(kind, self.topics.node_id)

    async def _listen(self, link: AmqpLink) -> None:
        """Listen to the balanced topics that are wanted, and to no others."""
        async with self._is_listening:
            if link is not self._link:
                return
            for topic in self._consumers.keys() - self._wanted:
                await link.cancel(self._consumers.pop(topic))
            for topic in self._wanted - self._consumers.keys():
                await link.declare_queue(topic.name, self._forms.of(topic.kind, is_balanced=True))
                must_confirm = is_confirmed(topic.kind, is_balanced=True)
                self._consumers[topic] = await self._get(link, topic.name, topic.kind, must_confirm)
            await link.settle()

    async def _listen_if_possible(self, link: AmqpLink) -> None:
        with suppress(OSError):
            await self._listen(link)

    async def _get(self, link: AmqpLink, queue: str, kind: Kind, must_confirm: bool) -> str:
        received = self._receiver(link, kind, must_confirm)
        return await link.consume(queue, received, is_confirmed=must_confirm)

    def _receiver(self, link: AmqpLink, kind: Kind, must_confirm: bool) -> Received:
        def receive(data: bytes, number: int) -> None:
            # What comes while the connection is being closed comes again if it must be confirmed.
            if link is self._link:
                done = partial(self._confirm, link, number) if must_confirm else None
                self.listener.received(kind, data, done)

        return receive

    def _confirm(self, link: AmqpLink, number: int) -> None:
        # On another connection the number would be that of another packet; this one comes again.
        if link is not self._link:
            return
        try:
            self._outbox.put(_Done(number), b"")
            self._is_idle.clear()
        except QueueIsFullError:
            asyncio.get_running_loop().call_later(_AGAIN_S, self._confirm, link, number)


def _check_range(option: str, value: int, limit: int) -> int:
    if not 1 <= value <= limit:
        raise ConfigError(f"{option} is {value!r}; it must be from 1 to {limit}")
    return value
