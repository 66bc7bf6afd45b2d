"""Publish/subscribe among members: subscriptions are member properties."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import TypeVar

from postroad.cluster.membership import Member
from postroad.cluster.messaging import (
    ClusterMessaging,
    Decoder,
    Encoder,
    MemberMessageHandler,
    SendFailures,
    decode_with,
    raw_bytes,
)
from postroad.core import PostroadError, ThrottledLogger
from postroad.core.errors import ConfigError

logger = logging.getLogger("postroad.cluster")

M = TypeVar("M")

_PROPERTY = "topic:"
_SUBJECT = "topic."
_WARN_INTERVAL_S = 5.0


class ClusterTopics:
    """Topics of a cluster.

        topics = ClusterTopics(messaging)
        topics.subscribe("prices", lambda message, member: print(member.name, message))
        await topics.publish("prices", b"apple 7")

    Gossip carries a new subscription to the others, within a second or two in a cluster of usual
    size. Handlers start in the order of the messages of one publisher.
    """

    def __init__(self, messaging: ClusterMessaging) -> None:
        self._messaging = messaging
        self._agent = messaging.agent
        self._handlers: dict[str, list[MemberMessageHandler[bytes]]] = {}
        self._log = ThrottledLogger(logger, _WARN_INTERVAL_S)

    def subscribe(
        self,
        topic: str,
        handler: MemberMessageHandler[M],
        *,
        decoder: Decoder[M] = raw_bytes,  # type: ignore[assignment]  # Bytes need no other.
    ) -> MemberMessageHandler[bytes]:
        """Call `handler(message, member)` for messages to the topic.

        A topic can have several handlers. Returns the object to pass to `unsubscribe`.
        """
        _check_topic(topic)

        def decode_and_handle(payload: bytes, member: Member) -> object:
            return handler(decode_with(decoder, payload), member)

        if topic not in self._handlers:
            self._announce_subscription(topic)
        self._handlers.setdefault(topic, []).append(decode_and_handle)
        return decode_and_handle

    def _announce_subscription(self, topic: str) -> None:
        """Handle messages to the topic, and publish the subscription as a property."""
        self._messaging.subscribe(
            _SUBJECT + topic, lambda payload, member: self._deliver(topic, payload, member)
        )
        try:
            self._agent.set_properties({_PROPERTY + topic: ""})
        except PostroadError:
            self._messaging.unsubscribe(_SUBJECT + topic)
            raise

    def unsubscribe(self, topic: str, handler: MemberMessageHandler[bytes] | None = None) -> None:
        """Remove one handler of the topic, or all of them."""
        handlers = self._handlers.get(topic, [])
        remaining = [other for other in handlers if handler is not None and other is not handler]
        if remaining:
            self._handlers[topic] = remaining
        elif handlers:
            del self._handlers[topic]
            self._messaging.unsubscribe(_SUBJECT + topic)
            self._agent.set_properties({_PROPERTY + topic: None})

    def subscribers(self, topic: str) -> list[Member]:
        """Return the reachable subscribers of the topic, this node included."""
        key = _PROPERTY + topic
        return [
            member
            for member in self._agent.members
            if member.is_reachable and key in member.properties
        ]

    async def publish(
        self,
        topic: str,
        message: M,
        *,
        encoder: Encoder[M] = raw_bytes,  # type: ignore[assignment]  # Bytes need no other.
    ) -> SendFailures:
        """Send a message to all reachable subscribers; return what failed."""
        _check_topic(topic)
        names = [member.name for member in self.subscribers(topic)]
        return await self._messaging.multicast(names, _SUBJECT + topic, message, encoder=encoder)

    async def _deliver(self, topic: str, payload: bytes, member: Member) -> None:
        """Call each handler; one that fails does not affect the others."""
        for handler in list(self._handlers.get(topic, ())):
            try:
                result = handler(payload, member)
                if isinstance(result, Awaitable):
                    await result
            except Exception as error:
                now = asyncio.get_running_loop().time()
                self._log.log(topic, now, "handler of topic %r failed: %r", topic, error)

    def __repr__(self) -> str:
        return (
            f"<ClusterTopics of {self._agent.service.name}: {', '.join(self._handlers) or 'none'}>"
        )


def _check_topic(topic: str) -> None:
    if not topic:
        raise ConfigError("the name of a topic must not be empty")
