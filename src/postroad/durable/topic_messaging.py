"""Durable messages by topic: the interface that conversations between nodes are built on."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeAlias

import msgspec

from postroad.core import validate_node_name
from postroad.core.errors import ConfigError
from postroad.durable.consumers.consumer import Consumer
from postroad.durable.consumers.message import Message
from postroad.durable.durable_queues import DurableQueues
from postroad.durable.producer import OutgoingMessage
from postroad.durable.transaction import Transaction


class TopicMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message to be sent, with the id that makes sending it twice the same as once."""

    topic: str
    data: bytes
    unique_id: str
    headers: dict[str, str] = {}


class HandlerRegistration:
    """A handler of a topic, until it is removed."""

    def __init__(self, topic: str, consumer: Consumer) -> None:
        self.topic = topic
        self.consumer = consumer

    def __repr__(self) -> str:
        return f"<HandlerRegistration {self.topic!r}>"


TopicHandler: TypeAlias = Callable[
    [Message, "HandlerRegistration | None", Transaction], Awaitable[object] | object
]
"""Called with a message, its registration, and the transaction that acknowledges it."""


class TopicMessaging:
    """Sends messages to topics of other nodes and handles those to this node's.

    messaging = TopicMessaging(queues)
    await messaging.add_message_handler("platform.session", handle)
    await messaging.send(messaging.create_message("platform.session", b"..."), "beta")
    """

    def __init__(self, queues: DurableQueues) -> None:
        self._queues = queues
        self._handlers: dict[str, HandlerRegistration] = {}

    @property
    def my_address(self) -> str:
        """The address of this node for others: its name."""
        return self._queues.service.name

    def address_of_party(self, party: str) -> str:
        """Return the address of a party, which need not be reachable now.

        Raises:
            ConfigError: no node can have that name.
        """
        return validate_node_name(party)

    def is_reachable(self, party: str) -> bool:
        """Whether the address of the party is known at the moment."""
        return party == self.my_address or self._queues.directory.lookup(party) is not None

    def create_message(
        self,
        topic: str,
        data: bytes,
        *,
        unique_id: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> TopicMessage:
        """Make a message; without an id of one's own it gets a random one."""
        return TopicMessage(
            topic=topic,
            data=data,
            unique_id=unique_id or f"R-{secrets.randbits(63)}",
            headers=dict(headers or {}),
        )

    async def send(
        self,
        message: TopicMessage,
        target: str | Iterable[str],
        *,
        sequence_key: str | None = None,
        tx: Transaction | None = None,
    ) -> None:
        """Send a message to one or more nodes; returns when it cannot be lost any more.

        Messages of equal sequence keys arrive in the order they were sent. Without a key, all
        messages to one target are in order.
        """
        targets = [target] if isinstance(target, str) else list(target)
        messages = [
            OutgoingMessage(
                to=self.address_of_party(name),
                queue=message.topic,
                body=message.data,
                key=f"to:{name}" if sequence_key is None else f"key:{sequence_key}",
                idempotency_key=message.unique_id,
                headers=message.headers or None,
            )
            for name in targets
        ]
        if tx is None:
            await self._queues.send_many(messages)
            return
        for outgoing in messages:
            tx.send_message(outgoing)

    async def add_message_handler(self, topic: str, handler: TopicHandler) -> HandlerRegistration:
        """Call `handler(message, registration, tx)` for messages to a topic."""
        if not topic.strip():
            raise ConfigError("a topic must not be blank")
        if topic in self._handlers:
            raise ConfigError(f"topic {topic!r} has a handler; remove it first")
        consumer = await self._queues.consume(
            topic, lambda message, tx: handler(message, self._handlers.get(topic), tx)
        )
        registration = self._handlers[topic] = HandlerRegistration(topic, consumer)
        return registration

    async def remove_message_handler(self, registration: HandlerRegistration) -> None:
        """Handle no more messages of that topic; they are kept."""
        if self._handlers.get(registration.topic) is registration:
            del self._handlers[registration.topic]
            await self._queues.stop_consuming(registration.topic)
